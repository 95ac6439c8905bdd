"""What one task of Spark reads over the network and writes by the sink, against `txstore serve` on loopback.

    python -m benches.python.spark_network [--quick] [--messages 300000] [--turns 3]

In:     a server in a process of its own, with messages of 1 KiB in the page cache.
Out:    MB/s of a task that pulls all of a topic's queues, with all columns and without bodies; messages/s that one task
        and the driver publish, to the server and to a store of this machine; the same of a producer's batches, which
        the server writes once instead of twice; the most memory that the process of the task had.
Always: the source's and the sink's own code, without Spark, whose part is the same for files. The load is shown.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import compute

import txstore
from benches.python.loads import BODY, NOT_SYNCED
from txstore import Message, Producer
from txstore.spark.network.reader import NetworkReader
from txstore.spark.options import ReadOptions
from txstore.spark.schema import spark_schema
from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.writer import publish, written

TOPIC, BATCH = "orders", 1_000
SERVE = """
import sys, txstore
with txstore.serve(sys.argv[1], listen="127.0.0.1:0", name_server="127.0.0.1:0") as server:
    print(server.name_server, flush=True)
    sys.stdin.read()
"""


def build(path: Path, messages: int) -> None:
    """Writes messages of 1 KiB."""
    with txstore.open(path, **NOT_SYNCED) as broker:
        producer = broker.producer("producers")
        for start in range(0, messages, BATCH):
            producer.send_batch([Message(TOPIC, BODY, keys=[f"o-{start + number}"]) for number in range(BATCH)])


def read(brokers: str, **more: str) -> int:
    """Reads all queues in one task. Returns the bytes of the records."""
    texts = {"brokers": brokers, "subscribe": TOPIC, "maxPartitionBytes": "1t", "columns": "*"} | more
    options = ReadOptions.of(texts)
    reader = NetworkReader(options, spark_schema(options))
    sizes = 0
    for part in reader.partitions():
        for batch in reader.read(part):
            sizes += compute.sum(batch.column("size")).as_py()
    return sizes


def write(target: dict[str, str], batch: int, messages: int) -> int:
    """Writes messages of 1 KiB as one task and publishes them. Returns how many."""
    options = WriteOptions.of(target)
    bodies = pa.array([BODY] * BATCH, pa.binary())
    rows = pa.RecordBatch.from_arrays([pa.repeat("paid", BATCH), bodies], names=["topic", "body"])
    publish(options, "bench", batch, [written(options, "bench", batch, iter([rows] * (messages // BATCH)))])
    return messages // BATCH * BATCH


def send(producer: Producer, messages: Sequence[Message], batches: int) -> int:
    """Sends the same messages several times. Returns how many that is."""
    for _ in range(batches):
        producer.send_batch(messages)
    return batches * len(messages)


def measure(name: str, unit: str, turns: int, work: Callable[[int], float]) -> None:
    """Prints the median rate of some turns."""
    rates = []
    for turn in range(turns):
        begin = time.perf_counter()
        done = work(turn)
        rates.append(done / (time.perf_counter() - begin))
    shown = ", ".join(f"{rate:,.0f}" for rate in rates)
    print(f"{name:<28} {statistics.median(rates):>10,.0f} {unit}  ({shown}; load {os.getloadavg()[0]:.1f})")


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes; values are rough")
    options = parser.parse_args()
    if options.quick:
        options.messages, options.turns = 30_000, 1
    with tempfile.TemporaryDirectory(prefix="txstore-network-") as folder:
        path = Path(folder) / "bench.store"
        build(path, options.messages)
        command = [sys.executable, "-c", SERVE, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            brokers = server.stdout.readline().strip()
            narrow = {"columns": "topic,size,store_timestamp"}
            measure("read, all columns", "MB/s", options.turns, lambda _: read(brokers) / 1e6)
            measure("read, topic, size, time", "MB/s", options.turns, lambda _: read(brokers, **narrow) / 1e6)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{'memory of the reader':<28} {memory:>10,.0f} MiB")
            sent, turns = options.messages // 3, options.turns
            measure("write, 1 KiB", "messages/s", turns, lambda turn: write({"brokers": brokers}, turn, sent))
            own = {"path": str(Path(folder) / "own.store")}
            measure("write to a path, 1 KiB", "messages/s", turns, lambda turn: write(own, turn, sent))
            same = [Message("sent", BODY)] * BATCH
            with txstore.connect(brokers) as broker:
                producer = broker.producer("batches")
                measure(
                    "a producer's batches, 1 KiB", "messages/s", turns, lambda _: send(producer, same, sent // BATCH)
                )
            assert server.stdin is not None
            server.stdin.close()


if __name__ == "__main__":
    main()
