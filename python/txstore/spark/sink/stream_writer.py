"""Stream writer: the micro-batches of a stream as messages.

In:     rows of tasks, and the number of the micro-batch, which Spark gives to both the tasks and the driver.
Out:    as in `writer.py`.
Always: a micro-batch is told apart by `appId` and its number, so a query that is restarted from its checkpoint does not
        publish one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.rows import check_columns
from txstore.spark.sink.writer import Written, publish, roll_back, written

__all__ = ["MessageStreamWriter"]


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        assert options.app is not None
        self._options, self._app = options, options.app

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stores the rows of a task."""
        context = TaskContext.get()
        number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        return written(self._options, self._app, -1 if number is None else int(number), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publishes a micro-batch, unless it was published before."""
        publish(self._options, self._app, batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Rolls back what the tasks stored."""
        roll_back(self._options, messages)
