"""Partitions: cuts ranges of queues into parts for Spark's tasks.

In:     ranges of queue offsets, with an estimate of their bytes.
Out:    parts of at most `maxPartitionBytes`, at least `minPartitions` of them; small queues share a task.
Always: only names and numbers are pickled. The parts of a queue do not overlap and leave nothing out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from txstore.client.cluster import MessageQueue
from txstore.spark.options import ReadOptions

__all__ = ["NetworkPart", "QueueRange", "plan"]

_PARTITION_BYTES = 256 << 20
# Queues share a task up to so many bytes, because a task costs as much as reading them.
_SHARED_BYTES = 8 << 20


class QueueRange(NamedTuple):
    """The messages of a queue from one queue offset to before another."""

    queue: MessageQueue
    start: int
    end: int


class NetworkPart(InputPartition):
    """What one task pulls."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges: tuple[QueueRange, ...] = tuple(ranges)


def plan(
    options: ReadOptions, ranges: Sequence[QueueRange], row_bytes: Callable[[MessageQueue, int], float]
) -> list[NetworkPart]:
    """Cuts the ranges. `row_bytes` estimates the bytes of a message of a queue at an offset."""
    sized = [(one, row_bytes(one.queue, one.start)) for one in ranges if one.end > one.start]
    total = sum((one.end - one.start) * each for one, each in sized)
    most = float(options.partition_bytes_max or _PARTITION_BYTES)
    if options.partitions_min is not None:
        most = max(1.0, min(most, total / options.partitions_min))
    parts: list[list[QueueRange]] = []
    shared = 0.0
    for piece, size in (cut for one, each in sized for cut in _cut(one, each, most)):
        if parts and shared + size <= min(most, _SHARED_BYTES):
            parts[-1].append(piece)
            shared += size
        else:
            parts.append([piece])
            shared = size
    return [NetworkPart(part) for part in parts]


def _cut(one: QueueRange, each: float, most: float) -> Iterator[tuple[QueueRange, float]]:
    """Yields even parts of a range, with their bytes."""
    rows = one.end - one.start
    count = min(rows, max(1, -(-int(rows * each) // int(most))))
    for number in range(count):
        begin, end = one.start + rows * number // count, one.start + rows * (number + 1) // count
        yield QueueRange(one.queue, begin, end), (end - begin) * each
