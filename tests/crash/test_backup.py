"""Guards backups under faults: whatever happens to the process that takes one, and to the store meanwhile, the complete
backups stay whole, and a restored one keeps every promise for all that was acknowledged before it began.

A child is killed with SIGKILL at each step: at chosen lines, up to all, of those that a backup executes. Stores are
backed up while other processes send, end, consume, are killed and recover. A small file system for the backups becomes
full. `TXSTORE_BACKUP_KILLS` and `TXSTORE_BACKUPS` set how often.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import txstore
from tests.backups import backups_in, manifest_of, must_be_whole, restored
from tests.crash.promises import Told, check
from tests.crash.size import chance, count, steps
from tests.crash.workload import BUSY, SIZES
from tests.crash.zygote import Zygote
from tests.golden.unpack import file_hashes
from tests.waiting import eventually
from txstore import DiskFullError, EmbeddedBroker, Message
from txstore.backup import take_backup
from txstore.inspection.deep import look
from txstore.inspection.progress import unwatched

pytestmark = pytest.mark.kill
KILLS = count("BACKUP_KILLS", 40)
BACKUPS = count("BACKUPS", 6)
BACKUPS_A_STORE = 12
FILE = 1 << 16


def fill(broker: EmbeddedBroker, count: int) -> None:
    with broker.producer("p") as producer:
        for number in range(count):
            producer.send(Message("orders", b"%05d" % number + bytes(900)))


def names(folder: Path) -> list[str]:
    return [one.name for one in backups_in(folder)]


def test_kill_at_any_step_leaves_the_last_backups_usable(tmp_path: Path, zygote: Zygote) -> None:
    luck = chance()
    path, folder = tmp_path / "store", tmp_path / "backups"
    with txstore.open(path, **SIZES) as broker:
        fill(broker, 150)
        take_backup(path, folder)
        fill(broker, 100)
        take_backup(path, folder)
        fill(broker, 100)
        arguments: dict[str, Any] = {"path": str(path), "to": str(folder), "keep": 2, "kill_at": None}
        started = shutil.copytree(folder, tmp_path / "started", copy_function=shutil.copy2)
        life = zygote.run("tests.crash.backups:back_up", arguments)
        (word, taken, lines), *_ = life.words
        assert (life.status, word) == (0, "taken"), life
        before = {name: file_hashes(started / name) for name in names(started)}
        at = sorted(luck.sample(range(1, lines + 1), min(KILLS, lines)))
        finished = 0
        for number in steps("kills of a backup", len(at)):
            shutil.rmtree(folder)
            shutil.copytree(started, folder, copy_function=shutil.copy2)
            life = zygote.run("tests.crash.backups:back_up", arguments | {"kill_at": at[number]})
            assert (life.status, life.words) == (-9, []), f"line {at[number]} of {lines}: {life}"
            found = names(folder)
            # The oldest one may have been removed, but only after the new one was complete.
            assert found == [*before] or (found[-1] not in before and found[:-1] in ([*before], [*before][1:])), found
            finished += found != [*before]
            for name in found:
                must_be_whole(folder / name)
                assert name not in before or file_hashes(folder / name) == before[name]
            again = take_backup(path, folder, keep=2)
            must_be_whole(again.path)
            assert {one.name for one in folder.iterdir()} == {*names(folder), "lock"}, "the rest of the killed one"
            assert len(names(folder)) == 2
        assert len(at) < lines or finished > 0
        copy = restored(backups_in(folder)[-1], tmp_path / "restored")
        assert look(str(copy)).findings.damages == []
        with txstore.open(copy) as opened:
            assert opened.stat().max_physical_offset == broker.stat().max_physical_offset
    print(f"{len(at)} of {lines} lines, {finished} after the new backup was complete; {taken}")


def log_files(path: Path) -> list[Path]:
    return list((path / "commitlog").glob("0*"))


class Hearing:
    """Hears a child's reports in a thread, so that what it was told so far is known at any moment."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote, self.words, self.over = zygote, list[list[Any]](), list[Any]()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (words := self._zygote.hear())[0] != "over":
            self.words.append(words)
        self.over = words[1:]

    def until_there_are(self, files: int, store: Path) -> None:
        """Waits until the child's store has so many log files."""
        eventually(lambda: bool(self.over) or len(log_files(store)) >= files)
        assert not self.over, self.words[-1:]

    def wait(self) -> list[Any]:
        self._thread.join()
        return self.over


class Killing:
    """Kills a process when a part of its log is copied."""

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def __call__(self, label: str, total: int, /) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def to(self, done: int) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = None


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_backups_under_load_have_all_that_was_acknowledged_before(
    tmp_path: Path, zygote: Zygote, flush_disk_type: str
) -> None:
    luck = chance()
    path, folder = tmp_path / "store", tmp_path / "backups"
    options = {"flush_disk_type": flush_disk_type, **SIZES}
    told, sent, linked = Told(), 0, 0
    for number in steps(f"backups under load, {flush_disk_type}", BACKUPS):
        if number > 0 and number % BACKUPS_A_STORE == 0:
            shutil.rmtree(path)
            shutil.rmtree(folder)
            told = Told()
        arguments: dict[str, Any] = {
            "path": str(path),
            "options": options | BUSY,
            "seed": luck.randrange(1 << 30),
            "threads": luck.randrange(1, 4),
        }
        pid = zygote.begin("tests.crash.workload:work", arguments)
        hearing = Hearing(zygote)
        hearing.until_there_are(3 * (number % BACKUPS_A_STORE + 1), path)
        begun = len(hearing.words)
        # The writer is killed while its log is copied, or after that.
        backup = take_backup(path, folder, keep=3, progress=Killing(pid) if number % 2 else unwatched)
        if number % 2 == 0:
            os.kill(pid, signal.SIGKILL)
        over = hearing.wait()
        assert over == [-9, False], hearing.words[-1:]
        at_start = Told()
        at_start.sent, at_start.prepared, at_start.ended = dict(told.sent), dict(told.prepared), dict(told.ended)
        # What a consumer has read counts for the store, not for its backup.
        at_start.hear([words for words in hearing.words[:begun] if words[0] != "got"])
        told.hear(hearing.words)
        check(path, told, read_only=False, **options)
        must_be_whole(backup.path)
        copy = restored(backup.path, tmp_path / f"restored-{number}")
        found = look(str(copy)).findings
        assert (found.damages, found.differences) == ([], [])
        check(copy, at_start, read_only=False, **options)
        found = look(str(copy)).findings
        assert (found.damages, found.differences) == ([], [])
        shutil.rmtree(copy)
        sent, linked = sent + len(at_start.sent), linked + backup.linked_bytes
    for one in backups_in(folder):
        must_be_whole(one)
    assert min(sent, linked) > 0, (sent, linked)
    print(f"{flush_disk_type}: {sent:,} messages that were acknowledged before a backup began, all restored")


def test_full_disk_of_the_backups_changes_none_of_them(small_disk: Path, tmp_path: Path) -> None:
    folder = small_disk / "backups"
    with txstore.open(tmp_path / "store", mapped_file_size_commit_log=1 << 20, max_message_size=1 << 16) as broker:
        fill(broker, 5_000)
        first = take_backup(broker.path, folder)
        before = file_hashes(folder)
        fill(broker, 12_000)
        with pytest.raises(DiskFullError, match="the backups that are there are not changed"):
            take_backup(broker.path, folder)
        assert file_hashes(folder) == before
        must_be_whole(first.path)
        copy = restored(first.path, tmp_path / "restored")
        with txstore.open(copy) as opened:
            assert opened.stat().max_physical_offset == first.end
        shutil.rmtree(folder)
        fill(broker, 1)
        larger = take_backup(broker.path, tmp_path / "backups")
        assert manifest_of(larger.path)["log"]["end"] == broker.stat().max_physical_offset


@pytest.fixture(params=["xfs", "btrfs"])
def sharing_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system in a file whose files can share blocks."""
    kind, directory, file = request.param, tmp_path / "image", tmp_path / "image.file"
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    directory.mkdir()
    with file.open("wb") as made:
        made.truncate(512 << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(file)], check=True, capture_output=True)
    command = ["mount", "-t", kind, "-o", "loop", str(file), str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    gc.collect()  # A closed store keeps its maps until it is collected.
    subprocess.run(["umount", str(directory)], check=True)
    file.unlink()


def test_full_files_take_no_space_where_files_can_share_blocks(sharing_disk: Path, tmp_path: Path) -> None:
    size = 8 << 20
    with txstore.open(sharing_disk / "store", mapped_file_size_commit_log=size) as broker:
        with broker.producer("p") as producer:
            while broker.stat().max_physical_offset < 10 * size:
                producer.send_batch([Message("orders", bytes(4096))] * 100)
        broker.flush()
        os.sync()
        before = free_bytes(sharing_disk)
        backup = take_backup(broker.path, sharing_disk / "backups")
        os.sync()
        assert backup.copied_bytes > 10 * size
        assert before - free_bytes(sharing_disk) < 2 * size, "no more than the last file"
        must_be_whole(backup.path)
        with txstore.open(restored(backup.path, tmp_path / "restored")) as opened:
            assert opened.stat().max_physical_offset == backup.end


def free_bytes(directory: Path) -> int:
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize
