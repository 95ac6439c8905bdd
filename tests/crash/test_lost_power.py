"""Guards against lost power on real file systems: ext4, XFS and btrfs, each on a device that remembers its writes.

A process works with a store in several threads, while the kernel writes dirty pages in any order. Then the device is
made again as it was at random moments, with any of the sectors written since its last flush (disk.py). Each such image
is mounted, so that the file system recovers, and its store is compared with what clients had been told before the
moment. The next process works on such an image. Read-only opening and recovery must keep every promise that the flush
type gives. `TXSTORE_POWER_LOSSES` sets the number of images on each file system.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.disk import Disk, let_go, sh, why_not
from tests.crash.promises import Told, check
from tests.crash.size import chance, count, steps
from tests.crash.workload import BUSY, SIZES
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.kill, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
IMAGES = count("POWER_LOSSES", 4)
IMAGES_A_LIFE, LIVES_A_STORE = 8, 3
IMAGE_BYTES = {"ext4": 96 << 20, "xfs": 320 << 20, "btrfs": 160 << 20}
Words = list[list[Any]]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, for images."""
    directory = tmp_path / "memory"
    directory.mkdir()
    sh("mount", "-t", "tmpfs", "-o", "size=3g", "txstore-test", directory)
    yield directory
    sh("umount", "--lazy", directory)  # After a failure it is in use.


@contextmanager
def mounted(kind: str, device: str | Path, directory: Path) -> Iterator[None]:
    """A file system. An image gets a device of its own."""
    if kind == "btrfs":
        sh("btrfs", "device", "scan", "--forget")  # Else an earlier state of the same file system is refused.
    image = device if isinstance(device, Path) else None
    sh("mount", "-t", kind, *(["-o", "loop"] if image else []), device, directory)
    try:
        yield
    except BaseException:
        sh("umount", "--lazy", directory)  # The error keeps the store open.
        raise
    gc.collect()  # A closed store keeps its maps until it is collected.
    own = image and sh("losetup", "--noheadings", "--output", "NAME", "--associated", image)
    sh("umount", directory)
    if image and own:
        let_go(own, image)


def durable(words: Words, flush_disk_type: str) -> Words:
    """What no power loss may take: of `ASYNC_FLUSH`, half messages and discards."""
    if flush_disk_type == "SYNC_FLUSH":
        return words
    return [said for said in words if said[0] == "prepared" or (said[0] == "ended" and said[3] == "discarded")]


@dataclass
class Store:
    """A store on an image, and what its processes were told before the power failed: a list for each life."""

    kind: str
    options: dict[str, Any]
    image: Path
    lives: list[Words] = field(default_factory=list)

    def check(self, directory: Path) -> None:
        """Asserts that a reader and a writer find every promise kept."""
        path, told = directory / "store", Told()
        for words in self.lives:
            told.hear(durable(words, self.options["flush_disk_type"]))
        checked = self.image.with_suffix(".checked")
        sh("cp", "--sparse=always", self.image, checked)
        with mounted(self.kind, checked, directory):
            if (path / "txstore" / "settings.json").exists():
                check(path, told, read_only=True)
            check(path, told, read_only=False, **self.options)


class LastLife:
    """A process that works with a store; then the store as it is if the power fails meanwhile."""

    def __init__(self, store: Store, zygote: Zygote, directory: Path, luck: Random) -> None:
        self.store, self._luck = store, luck
        arguments = {
            "path": str(directory / "store"), "options": store.options | BUSY, "seed": luck.randrange(1 << 30),
            "threads": luck.randrange(1, 4), "seconds": luck.uniform(0.1, 0.6),
        }  # fmt: skip
        with Disk(store.image) as self._disk, mounted(store.kind, self._disk.device, directory):
            self._begun = len(self._disk)
            life = zygote.run("tests.crash.workload:work_and_write_back", arguments)
        assert (life.status, life.hung) == (0, False), f"P2: {life}"
        self._words = life.words

    def lose_power(self, to: Path, *, at_the_end: bool = False) -> tuple[Store, str]:
        """The store if the power fails at a random moment, or after the last write, and how it failed."""
        moment = len(self._disk) if at_the_end else self._luck.randrange(self._begun, len(self._disk) + 1)
        how = self._disk.image_at(moment, to, self._luck)
        failed = self._disk.time_of(moment)
        said = [words[:-1] for words in self._words if words[-1] < failed]
        store = replace(self.store, image=to, lives=[*self.store.lives, said])
        return store, f"{how}; {len(said)} of {len(self._words)} reports before; life {len(store.lives)}"


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_lost_power_takes_nothing_that_was_durable(
    kind: str, flush_disk_type: str, tmp_path: Path, memory: Path, zygote: Zygote
) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    luck, directory, empty = chance(), tmp_path / "image", memory / "empty"
    directory.mkdir()
    with empty.open("wb") as made:
        made.truncate(IMAGE_BYTES[kind])
    sh(f"mkfs.{kind}", "-q", empty)
    new = store = Store(kind, {**SIZES, "flush_disk_type": flush_disk_type}, empty)
    life, told = None, 0
    for number in steps(f"lost power, {kind}, {flush_disk_type}", IMAGES // 2):
        if life is None or number % IMAGES_A_LIFE == 0:
            if life is not None:
                ended = life.store
                store, _ = life.lose_power(memory / f"after-{number}")
                if ended is not new:
                    ended.image.unlink()
            if len(store.lives) == LIVES_A_STORE:
                store = new
            life = LastLife(store, zygote, directory, luck)
        # At a random moment, nothing may have been said yet.
        lost, how = life.lose_power(memory / "image", at_the_end=number == IMAGES // 2 - 1)
        try:
            lost.check(directory)
        except BaseException as error:
            sh("cp", "--sparse=always", memory / "image", tmp_path / "failed.image")
            error.add_note(f"{how}: {tmp_path}/failed.image")
            raise
        told += len(lost.lives[-1])
    assert told > 0, "the power always failed before anything was said"
    print(f"{kind}, {flush_disk_type}: {told:,} reports before the power failed")


@pytest.mark.parametrize("device", ["image", "disk"])
def test_image_shows_its_own_content_while_others_have_mounts(device: str, memory: Path, tmp_path: Path) -> None:
    """As a test does that starts a container meanwhile."""
    directory, image = tmp_path / "image", memory / "image"
    directory.mkdir()
    with image.open("wb") as made:
        made.truncate(IMAGE_BYTES["ext4"])
    sh("mkfs.ext4", "-q", image)
    with contextlib.ExitStack() as used:
        disk = used.enter_context(Disk(image)) if device == "disk" else None
        with mounted("ext4", disk.device if disk else image, directory):
            (directory / "first").touch()
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo here; read line; exit 0"]
            other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert other.stdout is not None
            assert other.stdout.readline() == "here\n"
            threading.Timer(1, other.communicate).start()
    if disk is None:
        sh("cp", "--sparse=always", image, memory / "copy")
    else:
        disk.image_at(len(disk), memory / "copy", Random(0))
    with mounted("ext4", memory / "copy", directory):
        assert (directory / "first").exists()
        (directory / "second").touch()
    sh("cp", "--sparse=always", memory / "copy", image)
    with mounted("ext4", image, directory):
        assert (directory / "second").exists()
    assert other.wait() == 0
