"""Spark: the commit log as a DataFrame and as a stream.

`spark.read.format("txstore").load("orders.store")` needs no import of this package: Spark finds `pyspark_txstore`,
which comes in the same wheel. The wheel must be installed on the driver and on every executor. See docs/data/spark.md.
"""

from txstore.spark.datasource import TxStoreDataSource

__all__ = ["TxStoreDataSource"]
