"""Compares txstore from Python with RocketMQ's own store within its Java process, in turns.

In:     `python -m benches.peers.engine [--quick]`.
Out:    rows.
Always: RocketMQ runs as a broker does, with its store, its transaction service and its threads, but is called without a
        network; its process is warmed up first; every turn of both writes a new store of its own to the same file
        system.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import txstore
from benches.peers.table import Row, against, alone
from benches.python import rounds, states
from benches.python.loads import NOT_SYNCED, Commits, in_threads
from benches.python.measure import Measured, Scale, in_turns, per_second, scratch
from tests.peer import rocketmq
from txstore import Message
from txstore.config import FlushDisk

TOPIC, GROUP = "bench", "bench-group"
OURS, THEIRS = "from Python", "RocketMQ, within Java"
_CHECKS = 15
_PENDING_EVERY = 10
_HALF_BYTES = 128
_GIB = 1 << 30


# A broker as it is by default, except the timer wheel's file of 38 MB, and rounds of its own, which would check
# before it is asked to.
_CONFIG: rocketmq.Facts = {"timerWheelEnable": False}
_SETTINGS: rocketmq.Facts = {"defaultTopicQueueNums": 1, "transactionCheckInterval": 3_600_000}


class Theirs:
    """RocketMQ in a warm process."""

    def __init__(self, peer: rocketmq.Peer) -> None:
        self._peer = peer

    def run(self, work: str, count: int, *, sync: bool = False, fill: int = 0, **facts: Any) -> float:
        """How many a second, on a new store. `fill`: messages that are there before."""
        with self.broker(sync=sync) as (broker, call):
            if fill:
                call("append", **facts, count=fill)
                until_readable(broker)
            result = call(work, **facts, count=count)
        assert not result.get("failed"), result
        return float(result["rate"])

    def slow_append_us(self, seconds: float, **facts: Any) -> float:
        """The time of an append in microseconds that one in a thousand exceeds, on a new store."""
        with self.broker() as (_, call):
            return float(call("latency", **facts, seconds=seconds)["p999_us"])

    def check(self, count: int, pending_every: int, check_rounds: int, body_bytes: int) -> rocketmq.Facts:
        """`check_rounds` over so many halves, each `pending_every`-th pending: seconds awake, bytes, checks to do."""
        with self.broker() as (_, call):
            call("halves", count=count, pending_every=pending_every, body_bytes=body_bytes)
            result = call("check", rounds=check_rounds)
        assert isinstance(result, dict)
        assert result["asked"] == check_rounds * -(-count // pending_every), result
        return result

    def open(self, store: Path) -> rocketmq.Facts:
        """Opens a copy of a store, whose files it changes."""
        with scratch() as folder:
            states.copied(store, folder / "store")
            result = self._peer.call(
                "engine.open", store=str(folder / "store"), store_config=_CONFIG, broker_config={}, topic=TOPIC
            )
        assert isinstance(result, dict)
        return result

    @contextmanager
    def broker(self, *, sync: bool = False) -> Iterator[tuple[rocketmq.EmbeddedBroker, Callable[..., Any]]]:
        """A broker on a new store, and a function that calls its engine."""
        config = _CONFIG | {"flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
        with scratch() as folder:
            with self._peer.broker(folder / "store", config=config, settings=_SETTINGS) as broker:

                def call(work: str, **facts: Any) -> Any:
                    return self._peer.call(f"engine.{work}", handle=broker.facts["handle"], topic=TOPIC, **facts)

                yield broker, call
            _empty(folder / "store")


def until_readable(broker: rocketmq.EmbeddedBroker) -> None:
    """Waits until consumers can read all that was stored."""
    while broker.status()["undispatched_bytes"]:
        time.sleep(0.01)


def _empty(store: Path) -> None:
    """Frees the space of a stopped broker's files. Java has them mapped until its process ends, removed or not."""
    for path in store.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def send(count: int, size: int, threads: int, flush_disk_type: FlushDisk) -> float:
    """`producer.send(Message(...))`, one call each."""
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, body))

        def work() -> None:
            for _ in range(count // threads):
                producer.send(Message(TOPIC, body))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def transact(count: int, size: int, threads: int = 1, **options: Any) -> float:
    """`producer.send_in_transaction` with a listener that commits at once."""
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store", **options) as broker:
        producer = broker.transaction_producer(GROUP, Commits())

        def work() -> None:
            for _ in range(count // threads):
                producer.send_in_transaction(Message(TOPIC, body))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def read(count: int, size: int) -> float:
    """A queue in order by 32, the body of each."""
    with scratch() as folder, txstore.open(folder / "store") as broker:
        broker.create_topic(TOPIC, 1)
        batch = [Message(TOPIC, bytes(size))] * 100
        for _ in range(count // 100 + 1):
            broker.append_many(batch, [0] * 100)

        def work() -> None:
            offset = seen = 0
            while seen < count:
                messages, offset = broker.read(TOPIC, 0, offset, 32)
                seen += sum(len(message.body) == size for message in messages)

        return per_second(count, work)


class Unknown(txstore.TransactionListener):
    """A local transaction whose outcome stays unknown."""

    def execute_local_transaction(self, message: object, arg: object) -> txstore.LocalTransactionState:
        return txstore.LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> txstore.LocalTransactionState:
        return txstore.LocalTransactionState.UNKNOWN


def bytes_of_checks(size: int) -> float:
    """Bytes by which the log grows while one pending transaction is checked 15 times."""
    soon = timedelta(milliseconds=1)
    options: dict[str, Any] = {"transaction_timeout": soon, "transaction_check_interval": soon}
    with scratch() as folder, txstore.open(folder / "store", transaction_check_max=1_000, **options) as broker:
        producer = broker.transaction_producer(GROUP, Unknown())
        producer.send_in_transaction(Message(TOPIC, bytes(size)))
        before = broker.stat().max_physical_offset
        while (waiting := broker.store.halves_waiting(-1, 1))[0].checks < _CHECKS:
            time.sleep(0.01)
        assert len(waiting) == 1
        return float(broker.stat().max_physical_offset - before)


# Each part yields its rows as they are measured ----------------------------------------------------------------------


def appends(theirs: Theirs, scale: Scale) -> Iterator[Row]:
    for size in (128, 1024, 4096):
        count = scale.count(400_000)
        works = {
            OURS: lambda size=size, count=count: send(count, size, 1, "ASYNC_FLUSH"),
            THEIRS: lambda size=size, count=count: theirs.run("append", count, body_bytes=size),
        }
        yield from _compared(f"append {size} B, 1 thread, ASYNC_FLUSH", scale, works)
    for threads, least in ((1, 10_000), (64, 100_000)):
        count = scale.count(least, 640)
        works = {
            OURS: lambda threads=threads, count=count: send(count, 1024, threads, "SYNC_FLUSH"),
            THEIRS: lambda threads=threads, count=count: theirs.run(
                "append", count, sync=True, body_bytes=1024, threads=threads
            ),
        }
        yield from _compared(f"append 1024 B, {threads} thread{'s' * (threads > 1)}, SYNC_FLUSH", scale, works)


def transactions(theirs: Theirs, scale: Scale) -> Iterator[Row]:
    count = scale.count(200_000)
    works = {
        OURS: lambda: transact(count, 1024, **NOT_SYNCED),
        THEIRS: lambda: theirs.run("transact", count, body_bytes=1024),
    }
    yield from _compared("whole transaction 1024 B, 1 thread, ASYNC_FLUSH", scale, works)


def reads(theirs: Theirs, scale: Scale) -> Iterator[Row]:
    count = scale.count(400_000)
    works = {
        OURS: lambda: read(count, 1024),
        THEIRS: lambda: theirs.run("read", count, body_bytes=1024, fill=count + 64),
    }
    yield from _compared("read in queue order by 32, decoded, 1024 B", scale, works)


def checks(theirs: Theirs, scale: Scale) -> Iterator[Row]:
    """A round over halves of which nine in ten have ended, and what 15 rounds write."""
    halves = scale.count(100_000)
    pending = halves // _PENDING_EVERY
    with scratch() as folder:
        states.filled(folder / "store", halves=halves, pending=pending)
        with txstore.open(folder / "store", transaction_timeout=timedelta(0)) as broker:
            rounds.stop_own(broker)

            def ours(one_round: Callable[[txstore.EmbeddedBroker, int], float]) -> float:
                rounds.make_due(broker, pending)
                return halves / one_round(broker, pending)

            found = in_turns(
                scale.turns,
                {
                    "scan alone": lambda: ours(rounds.scan_seconds),
                    "with Python's decide": lambda: ours(rounds.round_seconds),
                    THEIRS: lambda: halves / theirs.check(halves, _PENDING_EVERY, 1, _HALF_BYTES)["seconds"],
                },
            )
    what = f"check round, {halves:,} halves, 90 % ended, without its sleep"
    for name in ("scan alone", "with Python's decide"):
        yield from against("engine", what, found, name, [THEIRS], unit="/s")
    written = in_turns(
        1, {OURS: lambda: bytes_of_checks(1024), THEIRS: lambda: theirs.check(1, 1, _CHECKS, 1024)["bytes"]}
    )
    what = f"written by {_CHECKS} checks of one pending half of 1024 B"
    yield from against("engine", what, written, OURS, [THEIRS], unit="bytes", less_is_better=True)


def recovery(home: rocketmq.Home, theirs: Theirs, scale: Scale) -> Iterator[Row]:
    """Opens a store that a killed process left."""
    total = 2 * _GIB if scale.part == 1 else _GIB // 2
    count = total // 1200 // 100 * 100
    with scratch() as folder:
        states.filled(folder / "ours", messages=count, crash=True)
        _killed(home, folder / "theirs", count)

        def ours() -> float:
            with scratch() as copies:
                states.copied(folder / "ours", copies / "store")
                opening = states.opened(copies / "store")
            assert not opening.clean, opening
            return opening.seconds

        def others() -> float:
            opening = theirs.open(folder / "theirs")
            assert opening["killed"], opening
            assert opening["messages"] >= count - 1000, opening
            return float(opening["seconds"])

        yield from _compared(
            f"open {total // (_GIB >> 10) / 1024:g} GiB after kill -9",
            scale,
            {OURS: ours, THEIRS: others},
            unit="s",
            less_is_better=True,
        )


def _killed(home: rocketmq.Home, store: Path, count: int) -> None:
    """A store of RocketMQ whose process ended by SIGKILL."""
    with home.start(rocketmq.FAST_MACHINE) as peer:
        broker = peer.broker(store, config=_CONFIG, settings=_SETTINGS)
        for part in (count // 2, count - count // 2):
            peer.call("engine.append", handle=broker.facts["handle"], topic=TOPIC, count=part, body_bytes=1024)
        peer.kill()


def _compared(what: str, scale: Scale, works: dict[str, Any], **facts: Any) -> Iterator[Row]:
    found: dict[str, Measured] = in_turns(scale.turns, works)
    yield from against("engine", what, found, OURS, [THEIRS], **facts)


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows."""
    with scratch() as folder:
        home = rocketmq.Home.build(folder)
        with home.start(rocketmq.FAST_MACHINE) as peer:
            theirs = Theirs(peer)
            for _ in range(scale.turns):  # The compiler sees all of it before the measurement.
                theirs.run("transact", 100_000, body_bytes=1024)
            for part in (appends, transactions, reads, checks):
                yield from part(theirs, scale)
            yield from recovery(home, theirs, scale)


if __name__ == "__main__":
    alone("engine", __doc__, rows)
