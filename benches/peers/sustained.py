"""Compares long runs of txstore from Python with RocketMQ's own store within its Java process, in turns.

In:     `python -m benches.peers.sustained [--quick] [--seconds 60] [--turns 5] [--only appends,latency,…]`.
Out:    rows: rates over a whole run, and the time of a send that one in a thousand exceeds.
Always: as in `engine`, RocketMQ runs as a broker does, in a warm process; each run writes a new store of its own to the
        same file system, begins with nothing waiting to be written to the disk and with the page cache full of another
        file's pages, and lasts as long as the other's. So a run meets what a service of days meets: reclaimed pages,
        the kernel's limits of dirty pages, and the disk. RocketMQ's writes have two rates: that of its calls, and that
        at which consumers can read what was stored, since its dispatch thread works later. What ours store can be read
        when a call returns.
"""

import argparse
import os
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import txstore
from benches.peers.engine import GROUP, OURS, THEIRS, TOPIC, Theirs, until_readable
from benches.peers.table import Row, against, heading
from benches.python.loads import NOT_SYNCED, Commits, in_threads, record_bytes
from benches.python.measure import Measured, scratch
from benches.python.peers import limit
from tests.peer import rocketmq
from txstore import Message
from txstore.config import FlushDisk

_SIZES = (128, 1024, 4096)
_SYNC_THREADS = 64
_READ_MESSAGES = 1_000_000
_FLUSH_MS = 500
"""How often a store makes its log durable by default, in milliseconds."""
_READABLE, _PWRITE = f"{THEIRS}, until it can be read", "limit: pwrite, synced alike, in Rust"
_EACH = 100
"""Calls between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is, how often each is run, and how many bytes of the page cache are full before it."""

    seconds: float
    turns: int
    cache_bytes: int


def _available_bytes() -> int:
    """Memory that the page cache can take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much memory is available")


def _fill_page_cache(folder: Path, size: int) -> None:
    """Fills the page cache with clean pages, of a file that has none on disk."""
    path = folder / "filler"
    with path.open("wb") as file:
        file.truncate(size)
    with path.open("rb", buffering=0) as file:
        block = bytearray(1 << 22)
        while file.readinto(block):
            pass


Run: TypeAlias = Callable[[], dict[str, float]]
"""What one run measured, by the names of columns."""


def _compared(what: str, length: Length, runs: list[Run], **facts: Any) -> Iterator[Row]:
    found: dict[str, list[float]] = {}
    with scratch() as folder:
        for _ in range(length.turns):
            for run in runs:
                os.sync()
                _fill_page_cache(folder, length.cache_bytes)
                for name, value in run().items():
                    found.setdefault(name, []).append(value)
    measured = {name: Measured(tuple(values)) for name, values in found.items()}
    yield from against("sustained", what, measured, OURS, [name for name in measured if name != OURS], **facts)


def _rate(seconds: float, threads: int, once: Callable[[], object]) -> float:
    """How many a second, of all threads, until the time is over."""
    done: list[int] = []
    start = time.perf_counter()

    def work() -> None:
        mine = 0
        while time.perf_counter() - start < seconds:
            for _ in range(_EACH):
                once()
            mine += _EACH
        done.append(mine)

    in_threads(threads, work)
    return sum(done) / (time.perf_counter() - start)


def _send(seconds: float, size: int, threads: int = 1, flush_disk_type: FlushDisk = "ASYNC_FLUSH") -> float:
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        return _rate(seconds, threads, lambda: producer.send(Message(TOPIC, body)))


def _slow_send_us(seconds: float, size: int) -> float:
    """The time of a send in microseconds that one in a thousand exceeds."""
    body, times = bytes(size), array("d")
    with scratch() as folder, txstore.open(folder / "store") as broker:
        producer = broker.producer(GROUP)
        start = before = time.perf_counter()
        while before - start < seconds:
            producer.send(Message(TOPIC, body))
            now = time.perf_counter()
            times.append(now - before)
            before = now
    return 1e6 * sorted(times)[len(times) * 999 // 1000]


def _transact(seconds: float, size: int) -> float:
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store", **NOT_SYNCED) as broker:
        producer = broker.transaction_producer(GROUP, Commits())
        return _rate(seconds, 1, lambda: producer.send_in_transaction(Message(TOPIC, body)))


def _read(seconds: float, size: int, messages: int) -> float:
    """A queue in order by 32, the body of each; from its start again at its end."""
    with scratch() as folder, txstore.open(folder / "store") as broker:
        broker.create_topic(TOPIC, 1)
        batch = [Message(TOPIC, bytes(size))] * 100
        for _ in range(messages // 100):
            broker.append_many(batch, [0] * 100)
        offset = seen = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            found, offset = broker.read(TOPIC, 0, offset % messages, 32)
            seen += sum(len(message.body) == size for message in found)
        return seen / (time.perf_counter() - start)


def _their_writes(theirs: Theirs, work: str, **facts: Any) -> dict[str, float]:
    with theirs.broker() as (broker, call):
        start = time.perf_counter()
        result = call(work, count=0, **facts)
        until_readable(broker)
        seconds = time.perf_counter() - start
    assert not result["failed"], result
    return {THEIRS: result["rate"], _READABLE: result["done"] / seconds}


def _named(name: str, work: Callable[[], float]) -> Run:
    return lambda: {name: work()}


# Each part yields its rows as they are measured ----------------------------------------------------------------------


def _append_runs(theirs: Theirs, seconds: float, size: int) -> list[Run]:
    record = record_bytes(bytes(size))
    sent = 0.0

    def ours() -> dict[str, float]:
        nonlocal sent
        sent = _send(seconds, size)
        return {OURS: sent}

    def pwrites() -> dict[str, float]:
        # As many as the store wrote, so that both meet the same limits of the page cache and of the disk.
        return {_PWRITE: limit("pwrite", int(sent * seconds), record, sync_every_ms=_FLUSH_MS)}

    return [ours, partial(_their_writes, theirs, "append", seconds=seconds, body_bytes=size), pwrites]


def _appends(theirs: Theirs, length: Length) -> Iterator[Row]:
    for size in _SIZES:
        runs = _append_runs(theirs, length.seconds, size)
        yield from _compared(f"append {size} B, 1 thread, ASYNC_FLUSH", length, runs)


def _latency(theirs: Theirs, length: Length) -> Iterator[Row]:
    for size in _SIZES:
        runs = [
            _named(OURS, partial(_slow_send_us, length.seconds, size)),
            _named(THEIRS, partial(theirs.slow_append_us, length.seconds, body_bytes=size)),
        ]
        yield from _compared(f"p99.9 of an append of {size} B", length, runs, unit="µs", less_is_better=True)


def _transactions(theirs: Theirs, length: Length) -> Iterator[Row]:
    runs: list[Run] = [
        _named(OURS, partial(_transact, length.seconds, 1024)),
        partial(_their_writes, theirs, "transact", seconds=length.seconds, body_bytes=1024),
    ]
    yield from _compared("whole transaction 1024 B, 1 thread, ASYNC_FLUSH", length, runs)


def _reads(theirs: Theirs, length: Length) -> Iterator[Row]:
    facts: dict[str, Any] = {"seconds": length.seconds, "body_bytes": 1024, "fill": _READ_MESSAGES}
    runs = [
        _named(OURS, partial(_read, length.seconds, 1024, _READ_MESSAGES)),
        _named(THEIRS, partial(theirs.run, "read", 0, **facts)),
    ]
    yield from _compared("read in queue order by 32, decoded, 1024 B", length, runs)


def _synced(theirs: Theirs, length: Length) -> Iterator[Row]:
    facts: dict[str, Any] = {"seconds": length.seconds, "body_bytes": 1024, "threads": _SYNC_THREADS, "sync": True}
    runs = [
        _named(OURS, partial(_send, length.seconds, 1024, _SYNC_THREADS, "SYNC_FLUSH")),
        _named(THEIRS, partial(theirs.run, "append", 0, **facts)),
    ]
    yield from _compared(f"append 1024 B, {_SYNC_THREADS} threads, SYNC_FLUSH", length, runs)


_PARTS = {
    "appends": _appends,
    "transactions": _transactions,
    "reads": _reads,
    "synced": _synced,
    "latency": _latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers.sustained", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of 3 s, an empty page cache: values are rough")
    parser.add_argument("--seconds", type=float, default=60, help="length of each run")
    parser.add_argument("--turns", type=int, default=5, help="how often each runs")
    parser.add_argument("--only", choices=_PARTS, nargs="+", default=list(_PARTS), help="which parts")
    arguments = parser.parse_args()
    length = Length(3, 1, 0) if arguments.quick else Length(arguments.seconds, arguments.turns, _available_bytes())
    print(heading(), flush=True)
    with scratch() as folder:
        home = rocketmq.Home.build(folder)
        with home.start(rocketmq.FAST_MACHINE) as peer:
            theirs = Theirs(peer)
            for work in ("append", "transact"):  # The compiler sees all of it before the measurement.
                for _ in range(3):
                    theirs.run(work, 100_000, body_bytes=1024)
            for part in arguments.only:
                for row in _PARTS[part](theirs, length):
                    print(row.line(), flush=True)


if __name__ == "__main__":
    main()
