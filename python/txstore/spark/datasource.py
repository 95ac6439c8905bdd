"""The data source `txstore`: ranges of the commit log for Spark's tasks.

In:     options.
Out:    partitions, each a range between two records; in the task, Arrow batches.
Always: only options and numbers are pickled. The driver plans, the tasks open the files. Filters are never pushed down
        (Spark 4.3 keeps one that was pushed for another query of the same DataFrame), so options choose topics, ranges
        and columns.
Not here: the offsets of streams (`stream.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.spark.options import LATEST, ReadOptions
from txstore.spark.schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from txstore.spark.stream import TxStoreStreamReader

__all__ = ["LogRange", "TxStoreDataSource", "TxStoreReader", "plan", "read_range"]

_log = logging.getLogger("txstore.spark")

# A task costs as much as 100 MB of narrow columns, so it gets several times that. Whole records take thrice as long.
_PARTITION_BYTES = 256 << 20
_NARROW_PARTITION_BYTES = 768 << 20


class LogRange(InputPartition):
    """The records that begin in a range of the log, in bytes. The end is excluded."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start: int = start
        self.end: int = end


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
    return begin, max(begin, visible if end is None else _native.log_boundary(options.path, end))


def plan(options: ReadOptions, schema: pa.Schema, start: int, end: int) -> Sequence[LogRange]:
    """Returns even ranges between records, of at most `maxPartitionBytes` each, at least `minPartitions` of them."""
    usual = _PARTITION_BYTES if "body" in schema.names else _NARROW_PARTITION_BYTES
    parts = max(-(-(end - start) // (options.partition_bytes_max or usual)), options.partitions_min or 1)
    return [LogRange(*cut) for cut in _native.log_cut(options.path, start, end, parts)] if end > start else []


def read_range(options: ReadOptions, schema: pa.Schema, partition: LogRange) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a range between two records, with exactly Spark's schema."""
    scan = _native.Scan(
        options.path,
        columns=schema.names,
        start=partition.start,
        end=partition.end,
        is_cut=True,
        **options.arguments(),
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
                yield batch if batch.schema.equals(schema) else batch.cast(schema)
    if scan.bad_records or scan.lost_bytes:
        _log.warning(
            "%s, %d to %d: skipped %d bad records (%d bytes), and %d bytes that retention removed",
            options.path, partition.start, partition.end, scan.bad_records, scan.bad_bytes, scan.lost_bytes,
        )  # fmt: skip
