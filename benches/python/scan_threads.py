"""How much faster several threads scan a log than one, in turns.

    python -m benches.python.scan_threads [STORE] [--threads 2] [--turns 7]

In:     a store; without one, a new one of 1 GB in a temporary directory, in the page cache.
Out:    a row for each choice of columns: seconds with one thread and with several (medians), and the ratio; how much
        processor time several threads need, compared with one.
Always: the machine's load before each row is shown, because a ratio of seconds needs idle cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import txstore
from benches.python.loads import BODY, NOT_SYNCED, TOPIC
from txstore import Message

MESSAGES, BATCH = 850_000, 1_000


def build(path: Path) -> None:
    """Writes messages of 1 KiB."""
    with txstore.open(path, **NOT_SYNCED) as broker:
        producer = broker.producer("producers")
        for start in range(0, MESSAGES, BATCH):
            producer.send_batch([Message(TOPIC, BODY, keys=[f"o-{start + number}"]) for number in range(BATCH)])


def seconds(path: Path, columns: list[str] | None, threads: int) -> tuple[float, float]:
    """Returns how long one scan takes, and its processor time."""
    begin, used = time.perf_counter(), time.process_time()
    for _ in pa.RecordBatchReader.from_stream(txstore.scan(path, columns=columns, threads=threads)):
        pass
    return time.perf_counter() - begin, time.process_time() - used


def compare(path: Path, threads: int, turns: int) -> None:
    """Prints the rows."""
    every = txstore.scan(path).columns
    chosen: dict[str, list[str] | None] = {
        "all columns": None,
        "all but the body": [name for name in every if name != "body"],
        "topic, size": ["topic", "size"],
    }
    for name, columns in chosen.items():
        load = os.getloadavg()[0]
        taken: dict[int, list[tuple[float, float]]] = {1: [], threads: []}
        for _ in range(turns):
            for count, found in taken.items():
                found.append(seconds(path, columns, count))
        (one, one_used), (several, used) = (
            map(statistics.median, zip(*found, strict=True)) for found in taken.values()
        )
        print(
            f"{name:<17} {one:6.2f} s  {several:6.2f} s with {threads}  {one / several:4.2f} x  "
            f"(processor time {used / one_used:4.2f} x; load {load:.1f})"
        )


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if options.store is not None:
        compare(options.store, options.threads, options.turns)
        return
    with tempfile.TemporaryDirectory(prefix="txstore-scan-") as folder:
        path = Path(folder) / "bench.store"
        build(path)
        compare(path, options.threads, options.turns)


if __name__ == "__main__":
    main()
