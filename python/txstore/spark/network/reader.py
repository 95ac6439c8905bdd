"""Reader: the queues of brokers as a DataFrame.

In:     options.
Out:    parts of queues, planned once per DataFrame; in the task, Arrow batches.
Always: the driver asks the brokers, the tasks pull. Only options, names and numbers are pickled.
Not here: streams (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txstore.client.cluster import MessageQueue
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, InvalidOptionError
from txstore.spark.network.partitions import NetworkPart, QueueRange, plan
from txstore.spark.network.pull import read_part
from txstore.spark.network.queues import QueueReads, cluster_of, reached
from txstore.spark.options import ReadOptions, check_batch
from txstore.spark.schema import arrow_schema, warn_of_all_columns

__all__ = ["NetworkReader"]


class NetworkReader(DataSourceReader):
    """One read of queues."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        check_batch(options)

    def partitions(self) -> list[InputPartition]:
        """Returns parts of the queues as they are now."""
        warn_of_all_columns(self._options, self._schema)
        try:
            with cluster_of(self._options, 0) as cluster:
                reads = QueueReads(self._options, cluster)
                ranges = [self._range(reads, queue) for queue in reads.queues(must_exist=True)]
                return [*plan(self._options, ranges, reads.row_bytes)] or [NetworkPart(())]
        except (BrokerUnreachableError, BrokerTimeoutError) as error:
            raise reached(self._options, error) from error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a part."""
        assert isinstance(partition, NetworkPart)
        return read_part(self._options, self._schema, partition)

    @staticmethod
    def _range(reads: QueueReads, queue: MessageQueue) -> QueueRange:
        span = reads.span(queue)
        start, end = reads.start_of(queue, span), reads.end_of(queue, span)
        limits = [*reads.limits_of(queue)]
        if start > end and limits:
            option = limits[-1].option
            text = f"option {option}: {queue} ends at {end}, before its start {start}"
            raise InvalidOptionError(text, option=option)
        return QueueRange(queue, start, end)
