"""Stream writer: the micro-batches of a stream as messages.

In:     rows of tasks, and the number of the micro-batch, which Spark tells to the tasks and to the driver.
Out:    as in `writer.py`, with that number as the batch's.
Always: a micro-batch has its number in the checkpoint, so a query that is restarted publishes none again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txstore.spark.option_names import invalid
from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.rows import check_columns
from txstore.spark.sink.writer import Written, publish, roll_back, written

__all__ = ["MessageStreamWriter"]

_BATCH = "streaming.sql.batchId"


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Writes one stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        assert options.app is not None
        self._options, self._app = options, options.app

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stores the rows of a task."""
        return written(self._options, self._app, _batch_of_task(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publishes a micro-batch, unless that was done before."""
        publish(self._options, self._app, batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Rolls back what the tasks stored."""
        roll_back(self._options, messages)


def _batch_of_task() -> int:
    """Returns the number of the micro-batch that this task is of. Spark gives it to every job of a query."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH)
    if number is None:
        hint = "hint: foreachBatch, which writes each micro-batch with the options appId and batchId"
        raise invalid("format", f"this Spark does not tell a task its micro-batch ({_BATCH})\n{hint}")
    return int(number)
