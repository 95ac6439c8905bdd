"""Ranges: cuts the log into ranges for Spark's tasks, and reads one.

In:     options, offsets between two records.
Out:    even ranges on the driver; in the task, Arrow batches.
Not here: which part of the log is read (`datasource.py` for a batch, `stream.py` for a stream).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from txstore import _native
from txstore.errors import TxStoreError
from txstore.spark.offsets import Queues
from txstore.spark.options import ReadOptions
from txstore.spark.schema import OF_SOURCE, with_source

__all__ = ["LogRange", "plan", "read_range"]

_log = logging.getLogger("txstore.spark")

# A task costs as much as 100 MB of narrow columns, so it gets several times that. Whole records take thrice as long.
_PARTITION_BYTES = 256 << 20
_NARROW_PARTITION_BYTES = 768 << 20


class LogRange(InputPartition):
    """The records that begin in a range of a store's log, in bytes. The end is excluded."""

    def __init__(self, path: str, start: int, end: int, queues: Queues | None = None) -> None:
        super().__init__((path, start, end))
        self.path: str = path
        self.start: int = start
        self.end: int = end
        self.queues: Queues | None = queues
        """The queue offsets to read, for the queues that have limits."""


def plan(
    options: ReadOptions, schema: pa.Schema, start: int, end: int, queues: Queues | None = None
) -> Sequence[LogRange]:
    """Returns even ranges between records, of at most `maxPartitionBytes` each, at least `minPartitions` of them."""
    if end <= start:
        return []
    usual = _PARTITION_BYTES if "body" in schema.names else _NARROW_PARTITION_BYTES
    parts = max(-(-(end - start) // (options.partition_bytes_max or usual)), options.partitions_min or 1)
    cuts = _native.log_cut(options.path, start, end, parts)
    return [LogRange(options.path, *cut, queues) for cut in cuts]


def read_range(options: ReadOptions, schema: pa.Schema, partition: LogRange) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a range between two records, with exactly Spark's schema. An error names the host."""
    try:
        yield from _batches(options, schema, partition)
    except TxStoreError as error:
        error.add_note(_task(partition))
        raise


def _task(partition: LogRange) -> str:
    """Returns what an error in a task needs: which host it ran on, and whether that host has the store at all."""
    at = f"in the task of offsets {partition.start} to {partition.end}, on host {socket.gethostname()}"
    if (Path(partition.path) / "commitlog").is_dir():
        return at
    return (
        f"{at}: this host has no store at {partition.path}, and the driver had one when it planned the query\n"
        "hint: mount the store's directory under that path on every executor, too"
    )


def _batches(options: ReadOptions, schema: pa.Schema, partition: LogRange) -> Iterator[pa.RecordBatch]:
    columns = [name for name in schema.names if name not in OF_SOURCE]
    scan = _native.Scan(
        partition.path,
        # Without any column there would be no rows, and size is the cheapest.
        columns=columns or ["size"],
        start=partition.start,
        end=partition.end,
        is_cut=True,
        **options.arguments(partition.queues),
    )
    with pa.RecordBatchReader.from_stream(scan) as batches:
        while True:
            try:
                batch = batches.read_next_batch()
            except StopIteration:
                break
            except (pa.ArrowException, OSError):
                # The engine's own error says the same, with its class and facts.
                scan.raise_failure()
                raise
            if batch.num_rows:
                yield with_source(batch, schema, partition.path, None)
    if scan.bad_records or scan.lost_bytes:
        _log.warning(
            "%s, %d to %d: skipped %d bad records (%d bytes), and %d bytes that retention removed",
            partition.path, partition.start, partition.end, scan.bad_records, scan.bad_bytes, scan.lost_bytes,
        )  # fmt: skip
