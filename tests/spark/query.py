"""A streaming query as a program of its own, to be killed: `python -m tests.spark.query STORE CHECKPOINT OUT ROWS`.

In:     a store's directory or the address of brokers, directories for the checkpoint and the Parquet files, rows per
        micro-batch.
Out:    Parquet files of topic, physical_offset and size; ends when the log's present end is reached.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.workers import environment


def builder(memory: str = "1g") -> SparkSession.Builder:
    """The configuration of a session as in the tests."""
    os.environ.update(environment())
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", memory)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # A machine with other work starts a worker late.
        .config("spark.python.authenticate.socketTimeout", "2m")
        .config("spark.log.level", "ERROR")
    )


def main(store: str, checkpoint: str, out: str, rows: str) -> None:
    """Reads up to the log's present end."""
    frame = (
        builder()
        .getOrCreate()
        .readStream.format("txstore")
        .option("columns", "topic,physical_offset,size")
        .option("maxOffsetsPerTrigger", rows)
        .option("path" if Path(store).is_dir() else "brokers", store)
        .load()
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    print("started", flush=True)
    writer.start(out).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
