"""Measures what docs/operate/sizing.md states: memory for each pending transaction and topic, disk for a message.

Run `python -m benches.sizing` (`--pending 200000 --topics 2000 --connections 1000 --messages 100000`). Prints bytes for
each. Memory is the anonymous memory of a process of its own (`Anonymous` of /proc/PID/smaps_rollup).
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import txstore
from txstore import LocalTransactionState, Message

_BATCH = 500


def anonymous_bytes(process: int) -> int:
    """The anonymous memory of a process."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def in_a_process(work: Callable[[Path, int], float], count: int) -> float:
    """Runs `work(folder, count)` in a new process and returns its result."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = context.Process(target=_call, args=(work, Path(folder), count, theirs))
        process.start()
        found: float = mine.recv()
        process.join()
    return found


def _call(work: Callable[[Path, int], float], folder: Path, count: int, answer: Connection) -> None:
    answer.send(work(folder, count))


def pending(folder: Path, count: int) -> float:
    """Bytes of memory for each pending transaction."""
    with txstore.open(folder / "store", transaction_flush_disk_type="ASYNC_FLUSH") as broker:
        producer = broker.transaction_producer("payments", check_listener=lambda _: LocalTransactionState.UNKNOWN)
        message = Message("orders", b"x" * 100)
        producer.send_in_transaction(message, executer=lambda *_: LocalTransactionState.UNKNOWN)
        gc.collect()
        before = anonymous_bytes(os.getpid())
        for _ in range(count):
            broker.prepare(message, 0, "payments")
        gc.collect()
        return (anonymous_bytes(os.getpid()) - before) / count


def topics(folder: Path, count: int) -> float:
    """Bytes of memory for each topic with four queues that have messages."""
    with txstore.open(folder / "store") as broker:
        broker.producer("p").send(Message("first", b"x"))
        gc.collect()
        before = anonymous_bytes(os.getpid())
        for number in range(count):
            broker.create_topic(f"topic-{number}", 4)
            broker.append_many([Message(f"topic-{number}", b"x")] * 4, [0, 1, 2, 3], "p")
        gc.collect()
        return (anonymous_bytes(os.getpid()) - before) / count


def connections(folder: Path, count: int) -> float:
    """Bytes of memory of `txstore serve` for each idle connection."""
    entry = "import sys; from txstore.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", entry, "serve", os.fspath(folder / "store"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--name-server", "none"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        host, _, port = server.stdout.readline().split()[1].rpartition(":")
        with txstore.connect(f"{host}:{port}") as broker:
            before = anonymous_bytes(server.pid)
            lines = [socket.create_connection((host, int(port))) for _ in range(count)]
            broker.producer("p").send(Message("orders", b"x"))  # It is answered after they were accepted.
            found = (anonymous_bytes(server.pid) - before) / count
            for line in lines:
                line.close()
        server.terminate()
    return found


def disk(folder: Path, count: int, body: int, *, half: bool) -> float:
    """Bytes of disk for each message beyond its body, with one key."""
    with txstore.open(folder / "store", transaction_flush_disk_type="ASYNC_FLUSH") as broker:
        message = Message("orders", b"x" * body, keys=["order-17"], tags="paid")
        broker.producer("shop").send(message)
        before = broker.stat().max_physical_offset
        for _ in range(count // _BATCH):
            if half:
                for _ in range(_BATCH):
                    sent = broker.prepare(message, 0, "payments")
                    broker.end(sent, LocalTransactionState.COMMIT, "payments")
            else:
                broker.append_many([message] * _BATCH, [0] * _BATCH, "shop")
        return (broker.stat().max_physical_offset - before) / (count // _BATCH * _BATCH) - body


def plain_bytes(folder: Path, count: int) -> float:
    """Bytes of the log for each plain message, beyond its body."""
    return disk(folder, count, 100, half=False)


def transaction_bytes(folder: Path, count: int) -> float:
    """Bytes of the log for each committed transaction with a body of 100 bytes, beyond one body."""
    return disk(folder, count, 100, half=True)


def main() -> None:
    """Measures all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    for what, work, count in (
        ("memory for each pending transaction", pending, options.pending),
        ("memory for each topic of four queues", topics, options.topics),
        ("memory of a server for each idle connection", connections, options.connections),
        ("log for each plain message, beyond its body", plain_bytes, options.messages),
        ("log for each committed transaction of 100 bytes, beyond its body", transaction_bytes, options.messages),
    ):
        print(f"{what:<66} {in_a_process(work, count):10,.0f} bytes ({count:,})", flush=True)


if __name__ == "__main__":
    main()
