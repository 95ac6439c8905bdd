"""Reads the log as a table, by Arrow in this process and by Spark compared with Parquet.

In:     a store of messages with random bodies of 1 KiB, which no format can compress.
Out:    rates.
Always: what is compared reads the same rows.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import txstore
from benches.python import loads
from txstore import Message

__all__ = ["TWO", "filled", "java_machine", "load", "scan", "spark_session", "spark_task_peak_bytes", "sunk"]

TWO = ["topic", "size"]


def filled(store: Path, count: int) -> int:
    """A closed store; yields the bytes of its log."""
    chance = random.Random(1)
    with txstore.open(store) as broker:
        producer = broker.producer(loads.GROUP)
        for _ in range(count // loads.BATCH):
            bodies = (chance.randbytes(len(loads.BODY)) for _ in range(loads.BATCH))
            producer.send_batch([Message(loads.TOPIC, body) for body in bodies])
        return broker.stat().max_physical_offset


def scan(store: Path, columns: list[str] | None, count: int) -> float:
    """Rows a second of processor time: the rate of one core, whatever else uses the machine."""
    start, rows = time.process_time(), 0
    for batch in pa.RecordBatchReader.from_stream(txstore.scan(store, columns=columns)):
        rows += batch.num_rows
    assert rows == count
    return rows / (time.process_time() - start)


def spark_session() -> SparkSession:
    """Two cores, little memory, only the loopback network."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def java_machine(spark: SparkSession) -> int:
    """The process id of the session's Java machine."""
    gateway: Any = spark.sparkContext._gateway
    pid: int = gateway.proc.pid
    return pid


def load(spark: SparkSession, store: Path, columns: list[str] | None) -> DataFrame:
    chosen = "*" if columns is None else ",".join(columns)
    return spark.read.format("txstore").option("columns", chosen).load(str(store))


def sunk(frame: DataFrame, count: int) -> float:
    """Rows a second into Spark's sink that keeps nothing."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - start)


def spark_task_peak_bytes(store: Path) -> int:
    """The most memory of a task's Python process that reads the whole log, with pyspark and mapped pages."""
    command = [sys.executable, "-m", "benches.python.tables", str(store)]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["peak"])


def _read_as_a_task(store: str) -> None:
    from txstore.spark.options import ReadOptions
    from txstore.spark.ranges import LogRange, read_range
    from txstore.spark.schema import arrow_schema, spark_schema

    options = ReadOptions.of({"path": store})
    first, end = txstore._native.log_range(store)
    for _ in read_range(options, arrow_schema(options, spark_schema(options)), LogRange(options.path, first, end)):
        pass
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    _read_as_a_task(sys.argv[1])
