"""The data source `txstore`: ranges of the commit log for Spark's tasks.

In:     options.
Out:    partitions, each a range between two records; in the task, Arrow batches.
Always: only options and numbers are pickled. The driver plans, the tasks open the files. Filters are never pushed down
        (Spark 4.3 keeps one that was pushed for another query of the same DataFrame), so options choose topics, ranges
        and columns.
Not here: reading a range (`ranges.py`), the offsets of streams (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.spark.option_names import invalid
from txstore.spark.options import ReadOptions, check_batch
from txstore.spark.ranges import LogRange, plan, read_range
from txstore.spark.schema import arrow_schema, spark_schema, warn_of_all_columns
from txstore.spark.versions import SPARK_VERSION, STREAM_WRITERS

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    from txstore.spark.network.reader import NetworkReader
    from txstore.spark.network.stream import NetworkStreamReader
    from txstore.spark.stream import TxStoreStreamReader

__all__ = ["TxStoreDataSource", "TxStoreReader"]


class TxStoreDataSource(DataSource):
    """A store of txstore or of a RocketMQ broker, or the queues of brokers over the network."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format(…)`."""
        return "txstore"

    def schema(self) -> StructType:
        """Returns the columns that the options choose."""
        return spark_schema(ReadOptions.of(self.options))

    def reader(self, schema: StructType) -> TxStoreReader | NetworkReader:
        """Returns the reader for `spark.read`."""
        options = ReadOptions.of(self.options)
        if options.brokers is not None:
            from txstore.spark.network.reader import NetworkReader

            return NetworkReader(options, schema)
        return TxStoreReader(options, schema)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> TxStoreStreamReader | NetworkStreamReader:
        """Returns the reader for `spark.readStream`."""
        options = ReadOptions.of(self.options)
        if options.brokers is not None:
            from txstore.spark.network.stream import NetworkStreamReader

            return NetworkStreamReader(options, schema)
        from txstore.spark.stream import TxStoreStreamReader

        return TxStoreStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Returns the writer for `DataFrame.write`."""
        from txstore.spark.sink.options import WriteOptions, refuse_overwrite
        from txstore.spark.sink.writer import MessageWriter

        refuse_overwrite(overwrite)
        return MessageWriter(WriteOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Returns the writer for `DataFrame.writeStream`."""
        from txstore.spark.sink.options import WriteOptions, refuse_overwrite

        if not STREAM_WRITERS:
            hint = "hint: foreachBatch, which writes each micro-batch with the options appId and batchId"
            raise invalid(
                "format", f"Spark 4.1 is the first that writes a stream to it, this is {SPARK_VERSION}\n{hint}"
            )
        from txstore.spark.sink.stream_writer import MessageStreamWriter

        refuse_overwrite(overwrite, is_stream=True)
        return MessageStreamWriter(WriteOptions.of(self.options, is_stream=True), schema)


class TxStoreReader(DataSourceReader):
    """One read of the log, planned once per DataFrame."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        check_batch(options)
        if options.reads_whole:
            _refuse_ranges(options)

    def partitions(self) -> list[InputPartition]:
        """Returns even ranges between records."""
        warn_of_all_columns(self._options, self._schema)
        self._options.check_topics()
        found = [part for options in self._options.each() for part in self._planned(options)]
        return [*found] or [LogRange(self._options.path, 0, 0)]

    def _planned(self, options: ReadOptions) -> Sequence[LogRange]:
        """Returns the ranges of one store."""
        first, visible = _native.log_range(options.path)
        if options.reads_whole:
            if options.statistics_path is not None:
                _native.Scan(options.path, **options.arguments()).check()
            return [LogRange(options.path, first, visible)]
        start, end = _range(options, first, visible)
        limits, fails = options.limits, options.fail_on_data_loss
        queues = limits.queues(options.path, limits.starts(options.path, fails), fails)
        return plan(options, self._schema, *limits.span(options.path, queues, start, end), queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)


def _refuse_ranges(options: ReadOptions) -> None:
    for option, given in (
        ("startingPhysicalOffset", options.start_physical_offset is not None),
        ("endingPhysicalOffset", options.end_physical_offset is not None),
        ("startingOffsets", options.limits.starting),
        ("endingOffsets", options.limits.ending),
    ):
        if given:
            raise InvalidOptionError(
                f"option {option}: the view {options.view} needs the whole log\n"
                f"hint: omit it, or read the view {'traces' if options.view == 'transactions' else 'commitlog'}",
                option=option,
            )


def _range(options: ReadOptions, first: int, visible: int) -> tuple[int, int]:
    """Returns where a batch begins and ends, at records."""
    start, end = options.start_physical_offset, options.end_physical_offset
    for option, offset in (("startingPhysicalOffset", start), ("endingPhysicalOffset", end)):
        if offset is not None and offset > visible:
            raise InvalidOptionError(
                f"option {option}: {offset} is after the end of the log\nhint: the log holds {first} to {visible}",
                option=option,
            )
    if start is not None and end is not None and start > end:
        raise InvalidOptionError(
            f"option endingPhysicalOffset: the range ends at {end}, before its start {start}",
            option="endingPhysicalOffset",
        )
    if start is not None and start < first and options.fail_on_data_loss:
        raise InvalidOptionError(
            f"option startingPhysicalOffset: retention removed {start}\n"
            f"hint: the first offset left is {first}; failOnDataLoss=false begins there",
            option="startingPhysicalOffset",
        )
    begin = first if start is None else _native.log_boundary(options.path, max(start, first))
    until = max(begin, visible if end is None else _native.log_boundary(options.path, end))
    return _native.log_time_range(
        options.path, begin, until, start_store_ms=options.start_store_ms, end_store_ms=options.end_store_ms
    )
