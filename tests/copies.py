"""Copies a store as a killed process leaves it.

In:     a store that may be open.
Out:    its files in another folder.
Always: sockets are left out: they belong to the running program, and Python cannot copy them. Holes stay holes: the log
        file of an open store has a gigabyte of them.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["copy_with_holes", "killed_copy"]

_COPIES_MAX = 10


def killed_copy(store: Path, copy: Path) -> Path:
    """Copies a store's files and returns the copy. Begins again if a file was replaced after it was listed."""
    ignored = shutil.ignore_patterns("*.sock")
    for _ in range(_COPIES_MAX - 1):
        with contextlib.suppress(shutil.Error):
            return shutil.copytree(store, copy, ignore=ignored, copy_function=copy_with_holes)
        shutil.rmtree(copy)
    return shutil.copytree(store, copy, ignore=ignored, copy_function=copy_with_holes)


def copy_with_holes(source: str | Path, target: str | Path) -> str | Path:
    """Copies a file, but not what it has no blocks for. Returns the copy."""
    with Path(source).open("rb") as read, Path(target).open("wb") as written:
        os.truncate(written.fileno(), os.fstat(read.fileno()).st_size)
        for start, end in _extents(read.fileno()):
            os.lseek(written.fileno(), start, os.SEEK_SET)
            while start < end:
                copied = os.sendfile(written.fileno(), read.fileno(), start, end - start)
                if copied == 0:  # The writer has cut it meanwhile.
                    return target
                start += copied
    return target


def _extents(file: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that have blocks."""
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # There is no more.
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end
