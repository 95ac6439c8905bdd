"""The data source `txstore`: ranges of the commit log for Spark's tasks.

In:     options.
Out:    partitions, each a range between two records; in the task, Arrow batches.
Always: only options and numbers are pickled. The driver plans, the tasks open the files. Filters are never pushed down
        (Spark 4.3 keeps one that was pushed for another query of the same DataFrame), so options choose topics, ranges
        and columns.
Not here: reading a range (`ranges.py`), the offsets of streams (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.spark.options import LATEST, ReadOptions
from txstore.spark.ranges import LogRange, plan, read_range
from txstore.spark.schema import arrow_schema, spark_schema, warn_of_all_columns

if TYPE_CHECKING:
    from txstore.spark.stream import TxStoreStreamReader

__all__ = ["TxStoreDataSource", "TxStoreReader"]


class TxStoreDataSource(DataSource):
    """A store of txstore or of a RocketMQ broker."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format(…)`."""
        return "txstore"

    def schema(self) -> StructType:
        """Returns the columns that the options choose."""
        return spark_schema(ReadOptions.of(self.options))

    def reader(self, schema: StructType) -> TxStoreReader:
        """Returns the reader for `spark.read`."""
        return TxStoreReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> TxStoreStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader for `spark.readStream`."""
        from txstore.spark.stream import TxStoreStreamReader

        return TxStoreStreamReader(ReadOptions.of(self.options), schema)


class TxStoreReader(DataSourceReader):
    """One read of the log, planned once per DataFrame."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        if options.starting == LATEST:
            raise InvalidOptionError("option startingOffsets: a batch cannot begin at latest", option="startingOffsets")
        for option, value in (
            ("maxOffsetsPerTrigger", options.trigger_rows_max),
            ("maxBytesPerTrigger", options.trigger_bytes_max),
        ):
            if value is not None:
                raise InvalidOptionError(f"option {option}: only streams accept it", option=option)
        offsets = options.start_physical_offset, options.end_physical_offset
        if options.view == "transactions" and offsets != (None, None):
            raise InvalidOptionError(
                "option startingPhysicalOffset: the view transactions needs the whole log\n"
                "hint: omit it and endingPhysicalOffset, or read the view traces",
                option="startingPhysicalOffset",
            )

    def partitions(self) -> list[InputPartition]:
        """Returns even ranges between records."""
        options = self._options
        warn_of_all_columns(options, self._schema)
        options.check_topics(_native.log_topics(options.path))
        first, visible = _native.log_range(options.path)
        start, end = _range(options, first, visible)
        if options.view == "transactions":
            return [LogRange(first, visible)]
        return list(plan(options, self._schema, start, end)) or [LogRange(start, start)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)


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
