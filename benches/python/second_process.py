"""Measures what a second process reaches at a store: shared, by `txstore serve` over TCP, and at RocketMQ.

In:     `python -m benches.python.second_process [--quick] [--rocketmq]`.
Out:    a table of rates, measured in the same turns.
Always: the store is in another process, which is new in each turn. The limits are an echo of the same bytes between two
        processes over a Unix socket, and pwrite with fdatasync. RocketMQ gets requests of the same client, and has its
        own defaults (ASYNC_FLUSH).
"""

import argparse
import contextlib
import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import txstore
from benches.python.loads import BATCH, BODY, GROUP, TOPIC, Commits, in_threads
from benches.python.measure import Measured, Scale, in_turns, per_second, scratch
from benches.python.peers import limit
from benches.python.ratios import DEFAULT, QUICK, number
from tests.peer.rocketmq import Home, Peer
from txstore import Message

_REQUEST_BYTES, _ANSWER_BYTES = 1_342, 250
_OPENS = """
import sys, txstore
with txstore.open(sys.argv[1], transaction_flush_disk_type=sys.argv[2]) as broker:
    print("open", flush=True)
    sys.stdin.read()
"""
_SERVES = """
import sys, txstore
options = {"listen": sys.argv[3], "name_server": None, "transaction_flush_disk_type": sys.argv[2]}
with txstore.serve(sys.argv[1], **options):
    print("open", flush=True)
    sys.stdin.read()
"""
_ECHOES = """
import socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
answer = bytes(int(sys.argv[3]))
while data := line.recv(int(sys.argv[2]), socket.MSG_WAITALL):
    line.sendall(answer)
"""

Target = Callable[[str], contextlib.AbstractContextManager[txstore.RemoteBroker]]
"""Opens a new store in another process, with this `transaction_flush_disk_type`, and connects to it."""


@contextlib.contextmanager
def _process(code: str, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise RuntimeError("the process with the store has ended")
        yield
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


@contextlib.contextmanager
def shared(transaction_flush_disk_type: str) -> Iterator[txstore.RemoteBroker]:
    """Another process has opened the store; this one opens it with `shared=True`."""
    with scratch() as folder:
        store = str(folder / "store")
        with _process(_OPENS, store, transaction_flush_disk_type), txstore.open(store, shared=True) as broker:
            yield broker


@contextlib.contextmanager
def served(transaction_flush_disk_type: str) -> Iterator[txstore.RemoteBroker]:
    """Another process runs `txstore serve`; this one connects to it by TCP."""
    address = f"127.0.0.1:{Peer.free_port()}"
    with (
        scratch() as folder,
        _process(_SERVES, str(folder / "store"), transaction_flush_disk_type, address),
        txstore.connect(address) as broker,
    ):
        yield broker


def rocketmq(home: Home) -> Target:
    """RocketMQ's broker in another process, with the settings of its release."""

    @contextlib.contextmanager
    def connected(_: str) -> Iterator[txstore.RemoteBroker]:
        with (
            scratch() as folder,
            home.start(("-Xmx1g",)) as peer,
            peer.broker(folder / "store", config={}, settings={"brokerIP1": "127.0.0.1"}) as running,
            txstore.connect(running.names) as broker,
        ):
            yield broker

    return connected


def sends(target: Target, count: int, threads: int) -> float:
    """`producer.send` in that many threads."""
    with target("ASYNC_FLUSH") as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count // threads):
                producer.send(Message(TOPIC, BODY))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def transacts(target: Target, count: int, threads: int, transaction_flush_disk_type: str) -> float:
    """`send_in_transaction` in that many threads."""
    with target(transaction_flush_disk_type) as broker:
        producer = broker.transaction_producer(GROUP, Commits())
        for _ in range(200):
            producer.send_in_transaction(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count // threads):
                producer.send_in_transaction(Message(TOPIC, BODY)).raise_for_error()

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def reads(target: Target, count: int) -> float:
    """`consumer.poll(32)` of messages that are there."""
    with target("ASYNC_FLUSH") as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, BODY))
        for turn in range(count // BATCH):
            producer.send_batch([Message(TOPIC, BODY)] * BATCH, queue_id=turn % 4)
        with broker.consumer(GROUP, TOPIC) as consumer:

            def work() -> None:
                left = count // BATCH * BATCH
                while left > 0:
                    left -= len(consumer.poll(32, 10.0))

            return per_second(count // BATCH * BATCH, work)


def echoes(count: int) -> float:
    """The bytes of a send and of its answer, there and back between two processes, over a Unix socket."""
    ours, theirs = socket.socketpair()
    sizes = str(_REQUEST_BYTES), str(_ANSWER_BYTES)
    with ours, theirs:
        command = [sys.executable, "-c", _ECHOES, str(theirs.fileno()), *sizes]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        request = bytes(_REQUEST_BYTES)

        def work() -> None:
            for _ in range(count):
                ours.sendall(request)
                ours.recv(_ANSWER_BYTES, socket.MSG_WAITALL)

        work()
        rate = per_second(count, work)
        ours.close()
        process.wait(60)
    return rate


def _cell(found: Measured) -> str:
    return f"{number(found.median)} ({number(min(found.values))}..{number(max(found.values))})"


def compared(scale: Scale, targets: dict[str, Target]) -> None:
    """Prints a line for each load, with a column for each target."""
    many, few = scale.count(40_000), scale.count(10_000)
    loads: dict[str, tuple[Callable[[Target], float], str]] = {
        "send, 1 thread": (lambda target: sends(target, many, 1), "≥ 25,000"),
        "send, 16 threads": (lambda target: sends(target, many, 16), ""),
        "poll(32)": (lambda target: reads(target, 4 * many), "≥ 150,000"),
        "transaction, ASYNC halves, 1 thread": (lambda target: transacts(target, few, 1, "ASYNC_FLUSH"), "≥ 10,000"),
        "transaction, default, 1 thread": (lambda target: transacts(target, few // 4, 1, "SYNC_FLUSH"), "≥ 0.8 syncs"),
        "transaction, default, 64 threads": (lambda target: transacts(target, few, 64, "SYNC_FLUSH"), "≥ 10,000"),
    }
    limits = in_turns(
        scale.turns,
        {
            "echo of a send's bytes": lambda: echoes(many),
            "pwrite and fdatasync": lambda: limit("fdatasync", few // 4, 1_200),
        },
    )
    names = list(targets)
    print(f"| per second | {' | '.join(names)} | goal of the first |\n|---|{'---|' * len(names)}---|", flush=True)
    for what, (load, goal) in loads.items():
        found = in_turns(scale.turns, {name: functools.partial(load, target) for name, target in targets.items()})
        print(f"| {what} | {' | '.join(map(_cell, found.values()))} | {goal} |", flush=True)
    for what, found_limit in limits.items():
        print(f"| limit: {what} | {number(found_limit.median)} |{' |' * (len(names) - 1)} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.second_process", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; values are rough")
    parser.add_argument("--rocketmq", action="store_true", help="also RocketMQ (needs Java 17 and Maven)")
    chosen = parser.parse_args()
    scale: Any = QUICK if chosen.quick else DEFAULT
    start, load = time.perf_counter(), os.getloadavg()[0]
    print(f"1 KiB bodies, {scale.name} sizes, medians of {scale.turns} turns; load before: {load:.1f}\n")
    targets: dict[str, Target] = {"shared": shared, "txstore serve, TCP": served}
    with tempfile.TemporaryDirectory() as logs:
        if chosen.rocketmq:
            targets["RocketMQ"] = rocketmq(Home.build(Path(logs)))
        compared(scale, targets)
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
