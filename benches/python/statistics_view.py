"""How long the view `statistics` takes, with the files that a writer keeps and without.

    python -m benches.python.statistics_view [--gigabytes 10] [--turns 5]

In:     nothing. Writes a store of messages of 1 KiB into the temporary directory, and removes it.
Out:    a row for each state: seconds (median), and bytes from the disk. Cold: the page cache has none of the store.
Always: the machine's load is shown, because seconds need an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import txstore
from benches.python.loads import BODY, NOT_SYNCED, TOPIC
from txstore import Message

BATCH = 1_000


def build(path: Path, gigabytes: float) -> None:
    """Writes messages of 1 KiB."""
    with txstore.open(path, **NOT_SYNCED) as broker:
        producer = broker.producer("producers")
        while broker.stat().max_physical_offset < gigabytes * 1e9:
            producer.send_batch([Message(TOPIC, BODY)] * BATCH)


def forget(path: Path) -> None:
    """Makes the page cache forget a store."""
    for file in [file for file in path.rglob("*") if file.is_file()]:
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


def measured(path: Path, folder: Path | None, is_cold: bool) -> tuple[float, int]:
    """Returns how long one read takes, in seconds, and its bytes from the disk."""
    if is_cold:
        forget(path)
    before, begin = _read_bytes(), time.perf_counter()
    pa.table(txstore.scan(path, view="statistics", statistics_path=folder))
    return time.perf_counter() - begin, _read_bytes() - before


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def compare(path: Path, turns: int) -> None:
    """Prints the rows."""
    kept, folder = path / "txstore" / "statistics", path.with_name("folder")
    states: list[tuple[str, Path | None]] = [
        ("kept by the writer", None),
        ("counted", None),
        ("kept by readers", folder),
    ]
    for name, used in states:
        if name == "counted":
            shutil.rmtree(kept)
        if used is not None:
            measured(path, used, is_cold=False)
        for is_cold in (False, True):
            load = os.getloadavg()[0]
            taken = [measured(path, used, is_cold) for _ in range(turns)]
            seconds, read = (statistics.median(values) for values in zip(*taken, strict=True))
            print(
                f"{name:<20} {'cold' if is_cold else 'warm'} {seconds:8.4f} s {read / 1e6:8.1f} MB  (load {load:.1f})"
            )


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txstore-statistics-") as folder:
        path = Path(folder) / "bench.store"
        build(path, options.gigabytes)
        compare(path, options.turns)


if __name__ == "__main__":
    main()
