"""Holes in a log: zeros where records were, as a lost page reads.

In:     a closed store, the position of the hole.
Out:    which records are lost, and what an error must name.
Always: the bytes around the hole stay.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import txstore
from tests.golden import reader

__all__ = ["HOLES", "SIZES", "Hole", "copy_store", "dig", "write"]

PAGE = 4096
HOLES = (
    "first record",
    "middle record",
    "last record",
    "first page",
    "middle page",
    "last page",
    "end of a file",
    "beginning of a file",
    "last file",
)
# One file that is mostly empty, and many small ones.
SIZES = {"large": 8 << 20, "small": 1 << 20}


@dataclass(frozen=True)
class Hole:
    """What is lost, and where the first damaged record is."""

    lost: frozenset[int]
    kept: tuple[int, ...]
    file: str
    offset: int
    bytes: int


def write(path: Path, file_size: int) -> None:
    with txstore.open(path, mapped_file_size_commit_log=file_size) as broker:
        producer = broker.producer("producers")
        for number in range(3000):
            producer.send(txstore.Message("orders", b"%d:" % number + b"A" * 700))


def copy_store(path: Path, copy: Path) -> None:
    """A copy without what is never read here: the index, a large file that is mostly empty."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("index"))


def dig(path: Path, name: str, file_size: int) -> Hole | None:
    """Makes the hole; None: such a store has no such page."""
    records = [(one.physical_offset, len(one.raw)) for one in reader.records(path)]
    start, end = zeros(records, name, file_size)
    if start == end:
        return None
    for base in range(start - start % file_size, end, file_size):
        with (path / "commitlog" / f"{base:020}").open("r+b") as file:
            file.seek(max(start, base) - base)
            file.write(bytes(min(end, base + file_size) - max(start, base)))
    lost = [at for at, size in records if at < end and start < at + size]
    kept = tuple(at for at, _ in records if at not in set(lost))
    first = min(lost)
    after = min((at for at in kept if at > first), default=records[-1][0] + records[-1][1])
    return Hole(frozenset(lost), kept, f"{first - first % file_size:020}", first % file_size, after - first)


def zeros(records: list[tuple[int, int]], name: str, file_size: int) -> tuple[int, int]:
    """The range of zeros."""
    end = sum(records[-1])
    files = [at for (before, _), (at, _) in pairwise(records) if before // file_size != at // file_size]
    whole = {"first record": 0, "middle record": len(records) // 2, "last record": -1}
    pages = {"first page": 0, "middle page": end // 2 // PAGE * PAGE, "last page": (end - 1) // PAGE * PAGE}
    if name in whole:
        at, size = records[whole[name]]
        return at, at + size
    if name in pages:
        return pages[name], min(pages[name] + PAGE, end)
    if not files:
        return 0, 0
    if name == "end of a file":
        # The last record and the blank one, which fills the file.
        return max(at for at, _ in records if at < files[0]), files[0]
    if name == "beginning of a file":
        return files[0], files[0] + 2000
    return files[-1], files[-1] + 100
