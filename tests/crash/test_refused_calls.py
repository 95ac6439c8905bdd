"""Guards against failing system calls: a program gets a named error or the correct result, whichever call fails and
how.

strace lets the N-th call of a kind fail in the real process: EIO, ENOSPC, EROFS, EINTR, too many files, a write that
writes nothing; once, or from then on; while a store is created, worked with and closed, and while one is recovered that
a kill left. Afterwards the store is opened without faults, and every promise is checked. tests/crash/sweep.rs does the
same on storage in memory, for every call. `TXSTORE_FAILED_CALLS` sets how many cases are tried.
"""

from __future__ import annotations

import re
import resource
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.copies import killed_copy
from tests.crash.promises import Told, check
from tests.crash.size import chance, count, steps
from tests.crash.tracer import Fault, Tracer, files_of, why_not
from tests.crash.workload import SIZES
from tests.crash.zygote import Life, Zygote
from tests.waiting import eventually

pytestmark = [pytest.mark.kill, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
FAILED_CALLS = count("FAILED_CALLS", 24)
SHORT_WRITES = count("SHORT_WRITES", 4)
OPTIONS: dict[str, Any] = {**SIZES, "mapped_file_size_commit_log": 1 << 14, "flush_interval_commit_log": 3600.0}
USUAL = ("EIO", "ENOSPC", "EROFS", "EINTR")
ERRORS: dict[str, tuple[str, ...]] = {
    "pwrite64": (*USUAL, "nothing written"),
    "fdatasync": USUAL,
    "fsync": USUAL,
    "openat": (*USUAL, "EMFILE"),
    "renameat": USUAL,
    "unlinkat": USUAL,
    "fallocate": (*USUAL, "EOPNOTSUPP"),
    "ftruncate": USUAL,
    "mkdirat": USUAL,
    "mmap": ("EIO", "ENOMEM"),
    "pread64": ("EIO", "EINTR"),
    "fcntl": ("EIO", "EINTR", "EMFILE", "ENOLCK"),
}
# After these an interruption is invisible: the call is repeated.
CONTINUED = {"pwrite64", "fdatasync", "fsync", "openat", "fallocate", "ftruncate", "pread64"}
NAMED = {"StoreIOError", "StorePoisonedError", "DiskFullError", "TooManyFilesError"}


class Scene:
    """A store to begin with (none, or one that a kill left), and what was told of it."""

    def __init__(self, zygote: Zygote, directory: Path, flush_disk_type: str, *, crashed: bool) -> None:
        self.label = f"{flush_disk_type}, {'crashed' if crashed else 'new'}"
        self.options = {**OPTIONS, "flush_disk_type": flush_disk_type}
        self._zygote, self._directory = zygote, directory
        self._template = directory / "template"
        self._told = Told()
        if crashed:
            arguments = {"path": str(self._template), "options": self.options, "name": "before", "crash": True}
            life = zygote.run("tests.crash.script:run", arguments)
            assert life.status == 9
            self._told.hear(life.words)
        self.calls = self._count_calls()

    def _count_calls(self) -> Counter[str]:
        path = self._fresh()
        _, tracer = self._traced(path, ["-e", f"trace={','.join(ERRORS)}"])
        calls = tracer.calls()
        # Maps without a file belong to the allocator: those of files are counted separately.
        files = files_of(path)
        _, tracer = self._traced(self._fresh(), ["-e", "trace=mmap", *files])
        calls["mmap"] = tracer.calls()["mmap"]
        return calls

    def _fresh(self) -> Path:
        path = self._directory / "store"
        shutil.rmtree(path, ignore_errors=True)
        if self._template.exists():
            killed_copy(self._template, path)
        return path

    def _traced(self, path: Path, arguments: list[str]) -> tuple[Life, Tracer]:
        script = {"path": str(path), "options": self.options, "name": "traced", "wait": True}
        pid = self._zygote.begin("tests.crash.script:run", script)
        assert self._zygote.hear() == ["waiting"]
        tracer = Tracer(pid, self._directory / "calls", arguments)
        tracer.release()
        life = self._zygote.finish()
        tracer.wait()
        return life, tracer

    def faults(self) -> list[Fault]:
        """All cases."""
        return [
            Fault(call, number, error, for_good)
            for call, errors in ERRORS.items()
            for error in errors
            for number in range(1, self.calls[call] + 1)
            for for_good in (False, True)
            # No process is interrupted for ever.
            if not (for_good and error == "EINTR")
        ]

    def meet(self, fault: Fault) -> bool:
        """Runs the script with a fault, then opens the store without. Returns whether the fault was reached."""
        path = self._fresh()
        arguments = ["-e", f"trace={fault.call}", "-e", fault.injection]
        if fault.call == "mmap":
            path.mkdir(exist_ok=True)
            known = ("commitlog", "txstore/published")
            bases = [f"commitlog/{number * OPTIONS['mapped_file_size_commit_log']:020}" for number in range(20)]
            arguments += [word for name in (*known, *bases) for word in ("-P", str(path / name))]
        life, tracer = self._traced(path, arguments)
        about = f"{self.label}; {fault}"
        assert (life.status, life.hung) == (0, False), f"P2: {about}: {life}"
        errors = [facts for word, *facts in life.words if word == "error"]
        for name, text in errors:
            assert name in NAMED, f"P3: {about}: {name}: {text}"
            assert name == "StorePoisonedError" or str(path) in text, f"P3: {about}: {name} names no file: {text}"
        if fault.error == "EINTR" and fault.call in CONTINUED:
            assert errors == [], f"an interruption is continued: {about}: {errors}"
        told = Told()
        told.__dict__.update({name: value.copy() for name, value in self._told.__dict__.items()})
        told.hear([words for words in life.words if words[0] != "waiting"])
        try:
            check(path, told, read_only=False, **self.options)
            check(path, told, read_only=True)
        except BaseException as error:
            error.add_note(f"after {about}; told: {errors}")
            raise
        return tracer.met()


@pytest.fixture(scope="module")
def scenes(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    kinds = [(flush, crashed) for flush in ("ASYNC_FLUSH", "SYNC_FLUSH") for crashed in (False, True)]
    return [Scene(zygote, tmp_path_factory.mktemp("refused"), flush, crashed=crashed) for flush, crashed in kinds]


def test_P2_P3_refused_call_ends_in_a_named_error_or_in_success(scenes: list[Scene]) -> None:
    luck = chance()
    cases = [(scene, fault) for scene in scenes for fault in scene.faults()]
    # Some of each call and error: there are many more ways to refuse an opening than a rename.
    kinds: dict[tuple[str, str], list[tuple[Scene, Fault]]] = {}
    for scene, fault in luck.sample(cases, len(cases)):
        kinds.setdefault((fault.call, fault.error), []).append((scene, fault))
    rows = [row for rank in range(len(cases)) for row in (kind[rank : rank + 1] for kind in kinds.values())]
    chosen = [case for row in rows for case in row][:FAILED_CALLS]
    met = 0
    for number in steps("refused calls", len(chosen)):
        scene, fault = chosen[number]
        met += scene.meet(fault)
    print(f"{met} of {len(chosen)} faults were met; there are {len(cases)}")
    assert met > 0.9 * len(chosen)


def test_short_write_is_continued(zygote: Zygote, tmp_path: Path) -> None:
    """A limit of file sizes cuts a write off; while strace delays its return, the limit is raised."""
    arguments = {"path": str(tmp_path / "store"), "options": SIZES, "name": "short", "wait": True, "room": 100}
    pid = zygote.begin("tests.crash.script:limited", arguments)
    begin = [zygote.hear() for _ in range(3)]
    assert begin[-1] == ["waiting"]
    held_back = "inject=pwrite64:delay_exit=6000000:when=1"
    tracer = Tracer(pid, tmp_path / "calls", ["-e", "trace=pwrite64", "-e", held_back])
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    before = log.read_bytes()
    tracer.release()
    assert zygote.hear() == ["full"]
    eventually(lambda: log.read_bytes() != before)
    most = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    life = zygote.finish()
    tracer.wait()
    assert life.status == 0, life
    lengths = re.findall(r", (\d+), \d+\) += (\d+)", (tmp_path / "calls").read_text())
    assert [written for asked, written in lengths if asked != written] == ["100"], "no write was short"
    told = Told()
    told.hear([words for words in begin[:-1] + life.words if words[0] != "waiting"])
    check(tmp_path / "store", told, read_only=True)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_L1_write_that_is_cut_off_leaves_nothing_and_the_store_continues(
    zygote: Zygote, tmp_path: Path, flush_disk_type: str
) -> None:
    luck = chance()
    options = {**SIZES, "flush_disk_type": flush_disk_type}
    for number in steps(f"writes cut off, {flush_disk_type}", SHORT_WRITES):
        path = tmp_path / str(number)
        arguments = {"path": str(path), "options": options, "name": f"cut-{number}", "room": luck.randrange(1, 1500)}
        life = zygote.run("tests.crash.script:limited", arguments)
        assert (life.status, life.hung) == (0, False), life
        errors = [facts for word, *facts in life.words if word == "error"]
        assert all(name == "StoreIOError" and str(path) in text for name, text in errors), errors
        told = Told()
        told.hear(life.words)
        check(path, told, read_only=True)
