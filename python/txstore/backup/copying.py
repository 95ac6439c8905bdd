"""Copies single files, and makes copies durable.

In:     a file that may be growing; how many of its bytes.
Out:    a copy of these bytes, with holes where the file has holes.
Always: a copy is new, and only its owner may read it.
Not here: which files (`taking`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from txstore.errors import DiskFullError, StoreIOError, TooManyFilesError, TxStoreError

__all__ = ["copy_file", "make_durable", "sync_folder", "sync_folders", "system_errors"]

_PIECE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
# What a kernel or a file system answers that cannot copy by itself from one of the files to the other.
_CANNOT_COPY = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EIO}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_MODE = 0o600


def copy_file(
    source: Path,
    target: Path,
    length: int | None = None,
    *,
    may_share: bool = False,
    report: Callable[[int], object] = lambda _: None,
) -> None:
    """Copies the first `length` bytes of a file, by default all. The copy is as long as the file; the rest are zeros.

    By default its length is that of the open file: where a writer replaces the file, the path may lead to another soon.

    `may_share`: on a file system that can, both files share the blocks, which takes no space. `report` is called with
    the number of bytes done. Raises the system's errors, also if the file is shorter.
    """
    with source.open("rb", buffering=0) as origin, open(target, "xb", buffering=0, opener=_private) as copy:
        size = os.fstat(origin.fileno()).st_size
        length = size if length is None else length
        os.truncate(copy.fileno(), size)
        for start, stop in _data(origin.fileno(), length):
            at = start
            while at < stop:
                at += _copy_piece(origin, copy, at, min(stop - at, _PIECE_BYTES), may_share=may_share)
                report(at)
        report(length)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _MODE)


def _data(file: int, length: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of the first `length` bytes that are not holes."""
    at = 0
    while at < length:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # A hole follows up to the file's end.
                return
            yield at, length
            return
        if start >= length:
            return
        at = min(os.lseek(file, start, os.SEEK_HOLE), length)
        yield start, at


def _copy_piece(origin: BinaryIO, copy: BinaryIO, at: int, count: int, *, may_share: bool) -> int:
    if may_share:
        try:
            done = os.copy_file_range(origin.fileno(), copy.fileno(), count, at, at)
            if done > 0:
                return done
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
    data = os.pread(origin.fileno(), min(count, _BUFFER_BYTES), at)
    if not data:
        raise OSError(errno.EIO, f"the file ends at byte {at}", origin.name)
    return os.pwrite(copy.fileno(), data, at)


def make_durable(file: Path, modified_ns: int | None = None) -> None:
    """Makes a copy durable, and gives it the time at which the original was written.

    Its bytes leave the page cache, where a running service needs the space.
    """
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if modified_ns is not None:
            os.utime(handle, ns=(modified_ns, modified_ns))
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def sync_folders(top: Path) -> None:
    """Makes the names in a folder and in all folders below it durable."""
    for folder, _, _ in os.walk(top, topdown=False):
        sync_folder(folder)


def sync_folder(folder: str | Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def system_errors(doing: str, hint: str) -> Iterator[None]:
    """Raises the system's errors as DiskFullError, TooManyFilesError or StoreIOError. `hint` is about a full disk."""
    try:
        yield
    except TxStoreError:
        raise
    except OSError as error:
        text = f"{doing}: {error.strerror or error}: {error.filename or error.filename2 or 'no file is named'}"
        facts = {"errno": error.errno, "filename": error.filename}
        if error.errno in _FULL:
            raise DiskFullError(f"{text}\nhint: {hint}", **facts) from error
        kind = TooManyFilesError if error.errno in (errno.EMFILE, errno.ENFILE) else StoreIOError
        raise kind(text, **facts) from error
