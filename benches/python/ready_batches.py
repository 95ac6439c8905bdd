"""A Spark source whose batches are ready in Arrow files: the limit of any source in Python.

In:     a store; a folder.
Out:    a file for each task that txstore would plan; a source that returns their batches as they are.
Always: reading costs nothing, so what remains is Spark's own: two processes, the socket between them, and the JVM's
        conversion to rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from txstore import _native
from txstore.spark.options import ReadOptions
from txstore.spark.ranges import plan, read_range
from txstore.spark.schema import arrow_schema, spark_schema

__all__ = ["ReadyBatches", "processor_seconds", "write_ready"]


def write_ready(store: Path, folder: Path, columns: list[str] | None) -> str:
    """Writes the batches of each task to a file; returns the folder."""
    chosen = {} if columns is None else {"columns": ",".join(columns)}
    options = ReadOptions.of({"path": str(store), **chosen})
    schema = arrow_schema(options, spark_schema(options))
    folder.mkdir()
    for number, part in enumerate(plan(options, schema, *_native.log_range(store))):
        with pa.ipc.new_file(str(folder / f"{number:04}.arrow"), schema) as file:
            for batch in read_range(options, schema, part):
                file.write_batch(batch)
    return str(folder)


def _files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("*.arrow"))


class ReadyBatches(DataSource):
    """A folder of Arrow files."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def schema(self) -> StructType:
        with pa.memory_map(_files(self.options["path"])[0]) as mapped:
            return from_arrow_schema(pa.ipc.open_file(mapped).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"])


class _Reader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(name) for name in _files(self._folder)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


def processor_seconds(jvm: int) -> tuple[float, float]:
    """Processor time until now of a session's Java machine, and of the Python processes that it started."""
    ticks, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        # Its own time; that of children that have ended is in the other two.
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    own, ended = ticks[jvm]
    below = {pid for pid in ticks if pid != jvm and jvm in _ancestors(pid, parents)}
    python = ended + sum(sum(ticks[pid]) for pid in below)
    unit = os.sysconf("SC_CLK_TCK")
    return own / unit, python / unit


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid
