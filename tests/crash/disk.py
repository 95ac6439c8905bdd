"""A block device that remembers each write and each flush, so that every moment of it can be made again as an image.

In:     an image, which stays as it is.
Out:    a device file to mount; then images of what the device held if the power had failed at a moment.
Always: what was flushed before the moment is in the image. Of what was written since, any sectors are, in any
        combination, as a disk with a volatile cache may leave them.

A FUSE file system of one file is the device's backing store (Linux's include/uapi/linux/fuse.h); `losetup` makes a
device of it. The kernel's own dm-log-writes does the same, but few kernels have it.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import itertools
import mmap
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import eventually

_MAJOR, _MINOR = 7, 31
_MAX_PAGES_FLAG = 1 << 22
_WRITE_BYTES_MAX = 1 << 20
_REQUEST, _ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_TRANSFER = struct.Struct("<QQI")  # The first fields of a read and of a write: handle, position, size.
_TRANSFER_BYTES = 40
_VALID_SECONDS = 3600
_REGULAR = 0o100600
SECTOR_BYTES = 4096
"""What a power loss leaves whole. A super block, which has one checksum, has 4096 bytes in btrfs, and 1024 in ext4."""


class Operation(enum.IntEnum):
    """What the kernel asks for."""

    FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE = 2, 3, 4, 14, 15, 16, 18
    FSYNC, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 20, 25, 26, 36, 42


_WITHOUT_ANSWER = frozenset((Operation.FORGET, Operation.INTERRUPT, Operation.BATCH_FORGET))


def why_not() -> str | None:
    """Why no such device can be made here, or None."""
    if os.geteuid() != 0:
        return "only root may mount"
    if not Path("/dev/fuse").exists() or shutil.which("losetup") is None:
        return "there is no /dev/fuse, or no losetup"
    return None


def sh(*command: object) -> str:
    """Runs a command; its output, or an error with what it said."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.strip()}"
    return done.stdout.strip()


def let_go(device: str, file: Path) -> None:
    """Waits until a loop device no longer has the file, which was unmounted or detached.

    A program with a mount namespace of its own, as some tests start, has a copy of each mount that it found, and keeps
    the file system alive until it ends. Mounted meanwhile, the file would show what it held before.
    """
    backing_file = Path("/sys/block", Path(device).name, "loop", "backing_file")

    def is_free() -> bool:
        try:
            return backing_file.read_text().strip() != str(file)
        except OSError as error:
            # With its file a device loses this attribute, whether it was opened before or not.
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return True
            raise

    eventually(is_free)


class Disk:
    """The device. Within the context it is there, as `device`; its record stays afterwards."""

    def __init__(self, image: Path) -> None:
        self._image = image
        self._file = image.with_suffix(".device")
        self.device = ""
        self._times: list[float] = []
        """When each request arrived: `time.monotonic()`."""
        self._writes: list[tuple[int, bytes] | None] = []
        """Position and bytes; None: a flush."""

    def __enter__(self) -> Self:
        self._file.touch()
        with self._image.open("rb") as image:
            self._now = mmap.mmap(image.fileno(), 0, access=mmap.ACCESS_COPY)
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode={_REGULAR:o},user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"txstore-test", os.fsencode(self._file), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "FUSE cannot be mounted", str(self._file))
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()
        self.device = sh("losetup", "--find", "--show", self._file)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sh("losetup", "--detach", self.device)
        let_go(self.device, self._file)
        eventually(self._is_unmounted)  # The kernel closes the file a moment after the device no longer names it.
        self._server.join()
        os.close(self._fuse)
        self._now.close()

    def _is_unmounted(self) -> bool:
        done = subprocess.run(["umount", str(self._file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "busy" in done.stderr, done.stderr
        return done.returncode == 0

    def __len__(self) -> int:
        """The number of writes and flushes."""
        return len(self._writes)

    def time_of(self, moment: int) -> float:
        """When the write or flush of this number arrived; later than all if there is none yet."""
        return self._times[moment] if moment < len(self._times) else float("inf")

    def image_at(self, moment: int, to: Path, luck: random.Random) -> str:
        """Makes an image of the device without power from the given write on. Returns what became of the cache."""
        sh("cp", "--sparse=always", self._image, to)
        flushed = next((at for at in range(moment - 1, -1, -1) if self._writes[at] is None), 0)
        share = luck.choice([0.0, 1.0, luck.random()])
        with to.open("r+b", buffering=0) as file:
            for number, write in enumerate(self._writes[:moment]):
                if write is None:
                    continue
                position, data = write
                if number < flushed or share == 1.0:
                    os.pwrite(file.fileno(), data, position)
                    continue
                end = position + len(data)
                borders = [position, *range(position - position % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES), end]
                for begin, after in itertools.pairwise(borders):
                    if luck.random() < share:
                        os.pwrite(file.fileno(), data[begin - position : after - position], begin)
        return f"write {moment} of {len(self)}, flushed before {flushed}, {share:.2f} of the sectors since"

    def _serve(self) -> None:
        """Answers the kernel, one request after another, until the file is unmounted."""
        while True:
            try:
                request = os.read(self._fuse, _WRITE_BYTES_MAX + mmap.PAGESIZE)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno not in (errno.ENOENT, errno.EINTR):
                    raise
                continue  # The request was interrupted.
            _, operation, unique, *_ = _REQUEST.unpack_from(request)
            if operation in _WITHOUT_ANSWER:
                continue
            code, body = self._answer(operation, request[_REQUEST.size :])
            os.write(self._fuse, _ANSWER.pack(_ANSWER.size + len(body), code, unique) + body)

    def _answer(self, operation: int, request: bytes) -> tuple[int, bytes]:
        """0 and the answer's body, or an error's number below zero."""
        match operation:
            case Operation.INIT:
                begin = struct.pack(
                    "<IIIIHHIIHH", _MAJOR, _MINOR, 0, _MAX_PAGES_FLAG, 16, 12, _WRITE_BYTES_MAX, 1, 256, 0
                )
                return 0, begin + bytes(64 - len(begin))
            case Operation.GETATTR | Operation.SETATTR:
                size = len(self._now)
                times = (1, size, size // 512, 0, 0, 0, 0, 0, 0)
                return 0, struct.pack("<QII6Q3I7I", _VALID_SECONDS, 0, 0, *times, _REGULAR, 1, 0, 0, 0, 4096, 0)
            case Operation.OPEN:
                return 0, bytes(16)
            case Operation.READ:
                _, position, size = _TRANSFER.unpack_from(request)
                return 0, self._now[position : position + size]
            case Operation.WRITE:
                _, position, size = _TRANSFER.unpack_from(request)
                data = request[_TRANSFER_BYTES : _TRANSFER_BYTES + size]
                self._note((position, data))
                self._now[position : position + size] = data
                return 0, struct.pack("<II", size, 0)
            case Operation.FSYNC:
                self._note(None)
                return 0, b""
            case Operation.RELEASE | Operation.FLUSH:
                return 0, b""
        return -errno.ENOSYS, b""

    def _note(self, write: tuple[int, bytes] | None) -> None:
        self._times.append(time.monotonic())
        self._writes.append(write)
