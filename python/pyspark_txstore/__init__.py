"""Registers the data source: Spark finds this module by itself for `spark.read.format("txstore")`.

Spark imports every top-level module named `pyspark_…` when any data source is looked up. So this imports nothing of
txstore before the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source `txstore`; its options are in docs/data/spark.md."""

    def _source(self) -> DataSource:
        from txstore.spark import TxStoreDataSource

        return TxStoreDataSource(self.options)

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format(…)`."""
        return "txstore"

    def schema(self) -> StructType:
        """Returns the columns that the options choose."""
        return cast("StructType", self._source().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for `spark.read`."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader for `spark.readStream`."""
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer for `DataFrame.write`."""
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Returns the writer for `DataFrame.writeStream`."""
        return self._source().streamWriter(schema, overwrite)
