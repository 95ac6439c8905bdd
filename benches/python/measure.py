"""Runs things in turns; medians and spread, and what a process or a folder takes.

In:     callables that do some work and return how fast it was.
Out:    values.
Always: compared callables run in the same turns (A B C, A B C, …), since a machine's speed drifts more between runs
        than within one.
"""

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Measured", "Scale", "anonymous_bytes", "disk_bytes", "in_turns", "per_second", "scratch"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done. `count` scales a number of things down, but never below `least`."""

    name: str
    turns: int
    part: float

    def count(self, number: int, least: int = 1000) -> int:
        return max(min(least, number), int(number * self.part))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: the value of each turn."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def over(self, other: "Measured") -> "Measured":
        """The ratio in each turn."""
        return Measured(tuple(ours / theirs for ours, theirs in zip(self.values, other.values, strict=True)))


def in_turns(turns: int, works: Mapping[str, Callable[[], float]]) -> dict[str, Measured]:
    """Runs all of them, then all again, …; from three turns on once before, to warm up, which is not counted."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1 if turns > 2 else 0, turns):
        for name, work in works.items():
            gc.collect()
            value = work()
            if turn >= 0:
                found[name].append(value)
    return {name: Measured(tuple(values)) for name, values in found.items()}


def per_second(count: int, work: Callable[[], object]) -> float:
    """How many a second `work` does, if it does `count`."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, so that every turn writes fresh pages."""
    folder = Path(tempfile.mkdtemp(prefix="txstore-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def anonymous_bytes() -> int:
    """Anonymous memory of this process: mapped files are the page cache's."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much memory is anonymous")


def disk_bytes(folder: Path) -> int:
    """The disk space that a folder's files really take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
