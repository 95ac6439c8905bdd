"""Guards a full disk: sends report it, ends still work, and sends work again with free space, without reopening.

A small tmpfs is filled so that each allocation in turn is the one that fails: while a store is created, while one
thread sends and ends, and while several do and checks run. Pending transactions can always be ended; when there is
space again, sends work by themselves. No signal occurs, not even in readers of other processes that map the published
page. Real file systems in an image do the same, also those that copy on write: there each overwritten byte needs space.
`TXSTORE_FULL_DISKS` sets how often the disk becomes full.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.promises import Told, check
from tests.crash.size import chance, count, steps
from tests.crash.workload import BUSY, SIZES
from tests.crash.zygote import Life, Zygote

pytestmark = [pytest.mark.kill, pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")]
FULL_DISKS = count("FULL_DISKS", 20)
SMALL = {**SIZES, "max_index_num": 2_000}


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A file system in a file: its kind, and where it is mounted."""
    kind, directory, file = request.param, tmp_path / "image", tmp_path / "image.file"
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    directory.mkdir()
    with file.open("wb") as made:
        made.truncate({"ext4": 96 << 20, "xfs": 320 << 20, "btrfs": 160 << 20}[kind])
    subprocess.run([f"mkfs.{kind}", "-q", str(file)], check=True, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-t", kind, "-o", "loop", str(file), str(directory)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {mounted.stderr.strip()}")
    yield kind, directory
    gc.collect()  # A closed store keeps its maps until it is collected.
    subprocess.run(["umount", str(directory)], check=True)
    file.unlink()


def look_at(life: Life, path: Path, told: Told, options: dict[str, Any]) -> None:
    """Asserts that there is no signal, no hang, only the error for a full disk, and that a reader and a writer find
    every promise kept.
    """
    assert (life.status, life.hung) == (0, False), f"P2: {life}"
    assert all(facts[0] == "DiskFullError" for word, *facts in life.words if word == "error"), life.words
    told.hear(life.words)
    check(path, told, read_only=True)
    check(path, told, read_only=False, **options)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("moment", ["opening", "working"])
def test_full_disk_refuses_sends_but_no_end(
    small_disk: Path, zygote: Zygote, flush_disk_type: str, moment: str
) -> None:
    luck = chance()
    options = {**SMALL, "flush_disk_type": flush_disk_type}
    path = small_disk / "store"
    for number in steps(f"full disks, {moment}, {flush_disk_type}", FULL_DISKS // 5):
        arguments = {
            "path": str(path), "options": options, "name": f"full-{number}", "filled": str(small_disk),
            "while": moment, "pages_left": luck.randrange(60), "halves": luck.randrange(1, 40),
        }  # fmt: skip
        life = zygote.run("tests.crash.script:on_a_full_disk", arguments)
        look_at(life, path, Told(), options)
        shutil.rmtree(path)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_freed_space_is_used_without_opening_again(small_disk: Path, zygote: Zygote, flush_disk_type: str) -> None:
    luck = chance()
    options = {**SMALL, "flush_disk_type": flush_disk_type}
    path, told, times, refused = small_disk / "store", Told(), 0, 0
    for _ in steps(f"full disks, threads, {flush_disk_type}", FULL_DISKS // 10 // 4 + 1):
        arguments = {
            "path": str(path), "options": options | BUSY, "seed": luck.randrange(1 << 30),
            "threads": luck.randrange(1, 4), "seconds": 0.25, "filled": str(small_disk),
        }  # fmt: skip
        life = zygote.run("tests.crash.workload:work", arguments)
        look_at(life, path, told, options)
        words = [word for word, *_ in life.words]
        assert "sent" in words[len(words) - words[::-1].index("room") :], "nothing was sent when there was space again"
        times, refused = times + words.count("full"), refused + words.count("error")
        shutil.rmtree(path)
        told = Told()
    print(f"full {times} times, {refused} refusals")
    assert refused > 0


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "with a copy that shares its blocks"])
def test_full_disk_is_an_error_on_every_file_system(
    image: tuple[str, Path], zygote: Zygote, flush_disk_type: str, shares: bool
) -> None:
    kind, directory = image
    if shares and kind == "ext4":
        pytest.skip("ext4 shares no blocks")
    luck, times, refused = chance(), 0, 0
    options = {**SMALL, "mapped_file_size_commit_log": 4 << 20, "flush_disk_type": flush_disk_type}
    path, copy = directory / "store", directory / "store.copy"
    for number in steps(f"full disks, {kind}, {flush_disk_type}{', shared' * shares}", max(1, FULL_DISKS // 20)):
        arguments = {
            "path": str(path), "options": options, "name": f"full-{number}", "filled": str(directory),
            "shares": shares, "times": luck.randrange(1, 4), "halves": luck.randrange(1, 100),
            "sends": luck.randrange(200, 1500), "messages": luck.randrange(3, 20),
            "pages_left": luck.choice([0, luck.randrange(60)]),
        }  # fmt: skip
        life = zygote.run("tests.crash.script:on_a_full_image", arguments, limit=240.0)
        look_at(life, path, Told(), options)
        words = [word for word, *_ in life.words]
        times, refused = times + words.count("full"), refused + words.count("error")
        gc.collect()  # A closed store keeps its maps, and with them its files, until it is collected.
        shutil.rmtree(path)
        if shares:
            shutil.rmtree(copy)
    print(f"full {times} times, {refused} refusals")
