"""A driver as users start theirs, on any kind of Spark: `python -m tests.spark.deployed STORE WORK [options]`.

In:     a store, a folder for a stream's output; `--master`, or `--connect` for a session of Spark Connect; settings of
        Spark as `--conf key=value`; `--register`, to call `register()` instead of Spark's own search for sources.
Out:    a line of JSON: rows of a batch, of a view in SQL and of a stream, the executors' interpreters.
Always: what Spark reports is left as it is; the exit code is that of the program.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

MEMORY = "1g"


def session(asked: argparse.Namespace) -> SparkSession:
    """A session of small machines on the loopback network."""
    settings = {
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": MEMORY,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(asked.work) / "warehouse"),
        "spark.python.authenticate.socketTimeout": "2m",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.appName("txstore deployed")
    builder = builder.remote("local[2]") if asked.connect else builder.master(asked.master)
    for name, value in [*settings.items(), *(text.split("=", 1) for text in asked.conf)]:
        builder = builder.config(name, value)
    return builder.getOrCreate()


def streamed(spark: SparkSession, store: str, work: Path) -> int:
    """Rows of a stream into Parquet."""
    frame = spark.readStream.format("txstore").option("columns", "topic,physical_offset").load(store)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(work / "out"))
    assert query.awaitTermination(300)
    return spark.read.parquet(str(work / "out")).select("physical_offset").distinct().count()


def executors(spark: SparkSession) -> list[tuple[str, str]]:
    """The interpreters of the executors, and their directories."""
    found = spark.sparkContext.parallelize(range(4), 4).map(lambda _: (sys.executable, str(Path.cwd())))
    return sorted(set(found.collect()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.deployed")
    parser.add_argument("store")
    parser.add_argument("work")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--connect", action="store_true")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--register", action="store_true")
    asked = parser.parse_args(arguments)
    spark, work = session(asked), Path(asked.work)
    if asked.register:
        from txstore.spark import TxStoreDataSource

        spark.dataSource.register(TxStoreDataSource)
    batch = spark.read.format("txstore").option("maxPartitionBytes", "80k").load(asked.store)
    spark.sql(f"CREATE TEMPORARY VIEW v USING txstore OPTIONS (path '{asked.store}', columns 'topic')")
    found = {
        "batch": batch.count(),
        "view": spark.sql("SELECT count(*) AS messages FROM v").collect()[0].messages,
        "stream": streamed(spark, asked.store, work),
        "executors": [] if asked.connect else executors(spark),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
