"""A query's writes as a program of its own, to be killed at a chosen point: `python -m tests.spark.sink_program …`.

In:     the address of a server, a file of the batches that are done (as Spark's commit log), how many batches and rows
        there are, and where to kill this process: a name of `POINTS`, or `-`.
Out:    messages of the topic `paid` with the numbers of all rows; the file.
Always: as Spark does it, a batch that is not in the file is written again, with its number and rows, in other parts.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from txstore import LocalTransactionState
from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.target import Target, Waiting
from txstore.spark.sink.writer import publish, written

APP = "killed"
POINTS = ("in a task", "before the record", "after the record", "between commits", "after the commits")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(Target):
    """A target that kills its process at a point."""

    point = "-"

    def record(self, app: str, batch: int, body: bytes) -> bytes:
        if self.point == "before the record":
            _die()
        found = super().record(app, batch, body)
        if self.point == "after the record":
            _die()
        return found

    def end(self, waiting: Sequence[Waiting], state: LocalTransactionState) -> None:
        if self.point == "between commits" and state is LocalTransactionState.COMMIT:
            super().end(waiting[: len(waiting) // 2], state)
            _die()
        super().end(waiting, state)


def parts_of(rows: range) -> list[pa.RecordBatch]:
    """The rows of a batch, in two tasks of different sizes."""
    cut = random.randrange(rows.start, rows.stop)
    parts = range(rows.start, cut), range(cut, rows.stop)
    types = pa.schema([("topic", pa.string()), ("body", pa.string())])
    return [pa.RecordBatch.from_pylist([{"topic": "paid", "body": str(n)} for n in part], types) for part in parts]


def main(brokers: str, done: Path, batches: int, rows: int, point: str) -> None:
    """Writes the batches that are not done."""
    from txstore.spark.sink import writer

    Killed.point = point
    vars(writer)["Target"] = Killed
    options = WriteOptions.of({"brokers": brokers})
    for batch in range(len(done.read_text()) if done.exists() else 0, batches):
        tasks = [
            written(options, APP, batch, iter([part])) for part in parts_of(range(batch * rows, (batch + 1) * rows))
        ]
        if point == "in a task":
            _die()
        publish(options, APP, batch, tasks)
        if point == "after the commits":
            _die()
        with done.open("a") as file:
            file.write("x")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
