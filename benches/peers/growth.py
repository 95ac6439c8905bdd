"""Measures what one operation costs when a store, its pending transactions, its topics or its threads have grown.

In:     `python -m benches.peers.growth [--quick] [--large] [--only messages,pending,…]`.
Out:    points: the value of each measure at each size, and how many times as much one operation costs at the last size
        as at the first.
Always: a store grows, it is not created again for each size, where only its size matters; each value is the median of
        three. Rates and rounds are by processor time of the working thread, kernel included: what one operation costs,
        whatever else uses the machine, without waits for the disk; openings, and sends of many threads, are by the
        clock. Openings and kills are processes of their own.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import txstore
from benches.peers.engine import send
from benches.python import rounds, states
from benches.python.loads import BATCH, GROUP, NOT_SYNCED, TOPIC, record_bytes
from benches.python.measure import disk_bytes, scratch
from txstore import LocalTransactionState, Message

__all__ = ["SWEEPS", "Point", "Sizes", "markdown", "points", "sizes_of"]

SWEEPS = ("messages", "pending", "topics", "threads", "recovery")
_BODY = bytes(128)
_TIMES = 3
_DUE = 1_000
_AFTER = 20_000
_MADE = 20  # Topics at the end of each size that are created one by one.
_MIB = 1 << 20
_HOUR_MS = 3_600_000
_PAGE = 50_000
# Nothing is due by itself, nothing is written that was not asked for.
_ALONE: dict[str, Any] = {"transaction_timeout": timedelta(0), "pending_transactions_max": 20_000_000, **NOT_SYNCED}


@dataclass(frozen=True, slots=True)
class Point:
    """One measure at one size. `unit`: `/s` is a rate, all others are costs."""

    sweep: str
    measure: str
    size: int
    value: float
    unit: str

    @property
    def cost(self) -> float:
        """The cost of one operation, in any unit."""
        return 1 / self.value if self.unit.startswith("/") else self.value

    def text(self) -> str:
        value = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.3g}"
        return f"{value}{self.unit}" if self.unit.startswith("/") else f"{value} {self.unit}"

    def line(self) -> str:
        return f"{self.sweep} {self.size:,}: {self.measure}: {self.text()}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How far each sweep goes. Recovery's are MiB of the log."""

    messages: Sequence[int] = (1_000_000, 3_000_000, 10_000_000, 30_000_000)
    pending: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000)
    topics: Sequence[int] = (1, 10, 100, 1_000, 10_000)
    threads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    recovery: Sequence[int] = (128, 512, 2_048)


QUICK = Sizes((100_000, 300_000, 1_000_000), (1_000, 10_000, 100_000), (1, 10, 100, 1_000), (1, 8, 64), (32, 128, 512))
DEFAULT = Sizes()
LARGE = Sizes(
    messages=(*DEFAULT.messages, 100_000_000), pending=(*DEFAULT.pending, 10_000_000), recovery=(128, 512, 2_048, 8_192)
)


def sizes_of(quick: bool, large: bool) -> Sizes:
    return QUICK if quick else LARGE if large else DEFAULT


def median(work: Callable[[], float]) -> float:
    return statistics.median(work() for _ in range(_TIMES))


def _per_second(count: int, work: Callable[[], object]) -> float:
    """How many operations for each second of processor time."""
    start = time.thread_time()
    work()
    return count / max(1e-9, time.thread_time() - start)


# The store ------------------------------------------------------------------------------------------------------------


def messages(sizes: Sequence[int]) -> Iterator[Point]:
    """A log that grows, with 1,000 transactions pending from its beginning on."""

    def point(measure: str, size: int, value: float, unit: str) -> Point:
        return Point("messages", measure, size, value, unit)

    with scratch() as folder:
        store = folder / "store"
        states.filled(store, halves=_DUE, pending=_DUE)
        for size in sizes:
            with txstore.open(store, **_ALONE) as broker:
                rounds.stop_own(broker)
                _grow(broker, size)
                for measure, value, unit in _in_use(broker):
                    yield point(measure, size, value, unit)
            yield from (point(measure, size, value, "ms") for measure, value in _openings(store))


def _grow(broker: txstore.EmbeddedBroker, size: int) -> None:
    """Messages of 128 bytes until queue 0 holds so many."""
    batch = [Message(TOPIC, _BODY)] * BATCH
    for _ in range((size - broker.queue_range(TOPIC, 0)[1]) // BATCH):
        broker.append_many(batch, [0] * BATCH)


def _in_use(broker: txstore.EmbeddedBroker) -> Iterator[tuple[str, float, str]]:
    count = 20_000
    one, message = broker.append, Message(TOPIC, _BODY)

    def appends() -> None:
        for _ in range(count):
            one(message, 0)

    yield "append, 128 B", median(lambda: _per_second(count, appends)), "/s"
    end = broker.queue_range(TOPIC, 0)[1]
    chance = random.Random(1)
    offsets = [chance.randrange(end - 32) for _ in range(500)]

    def reads(first: Sequence[int]) -> None:
        for offset in first:
            found, _ = broker.read(TOPIC, 0, offset, 32)
            assert len(found) == 32
            assert len(found[0].body) >= len(_BODY)

    rows = range(end - count, end - 31, 32)
    yield "read by 32, the newest", median(lambda: _per_second(32 * len(rows), lambda: reads(rows))), "/s"
    yield "read by 32, anywhere", median(lambda: _per_second(32 * len(offsets), lambda: reads(offsets))), "/s"
    names = [broker.read(TOPIC, 0, offset, 1)[0][0].message_id for offset in offsets]

    def queries() -> None:
        for name in names:
            assert broker.message(name).message_id == name

    yield "look up by unique id", median(lambda: _per_second(len(names), queries)), "/s"
    yield f"check scan, {_DUE:,} due", median(lambda: _round(broker, rounds.scan_seconds)), "ms"
    yield f"check round, {_DUE:,} due", median(lambda: _round(broker, rounds.round_seconds)), "ms"


def _round(broker: txstore.EmbeddedBroker, work: Callable[[txstore.EmbeddedBroker, int], float]) -> float:
    """Milliseconds of a round in which the first 1,000 of all pending transactions are due."""
    due = broker.store.halves_waiting(-1, _DUE)
    for waiting in due:
        broker.store.look_again(waiting.half_queue_offset, -1)
    start = time.thread_time()
    work(broker, len(due))
    milliseconds = 1e3 * (time.thread_time() - start)
    for waiting in due:
        broker.store.look_again(waiting.half_queue_offset, _HOUR_MS)
    return milliseconds


def _openings(store: Path) -> Iterator[tuple[str, float]]:
    """Milliseconds: after a clean close, and after a kill with the same number of messages after the snapshot at
    every size.
    """
    clean = [states.opened(store) for _ in range(_TIMES)]
    yield "open, closed cleanly", 1e3 * statistics.median(opening.seconds for opening in clean)
    yield "of it processor time", 1e3 * statistics.median(opening.processor_seconds for opening in clean)
    states.filled(store, messages=_AFTER, crash=True)
    killed = states.opened(store)
    assert not killed.clean
    yield f"open after kill -9, {_AFTER:,} messages after its snapshot", 1e3 * killed.seconds
    yield "processor time of that", 1e3 * killed.processor_seconds


# Pending transactions -------------------------------------------------------------------------------------------------


def pending(sizes: Sequence[int]) -> Iterator[Point]:
    """More and more transactions without an end."""

    def point(measure: str, size: int, value: float, unit: str) -> Point:
        return Point("pending", measure, size, value, unit)

    with scratch() as folder:
        store = folder / "store"
        states.filled(store)
        for size in sizes:
            with txstore.open(store, **_ALONE) as broker:
                rounds.stop_own(broker)
                last = _prepare_until(broker, size)
                _postpone(broker)
                yield point("prepare, 128 B", size, last, "/s")
                for measure, value, unit in _costs(broker):
                    yield point(measure, size, value, unit)
                yield point("table's own count", size, broker.stat().pending_table_bytes / size, "bytes each")
            yield from (point(measure, size, value, "ms") for measure, value in _openings(store))


def _prepare_until(broker: txstore.EmbeddedBroker, size: int) -> float:
    """Prepares until so many are pending; returns how many a second the last of them were."""
    half, left = Message(TOPIC, _BODY), size - broker.stat().pending_transactions
    last = min(left, 20_000)

    def prepare(count: int) -> None:
        for _ in range(count):
            broker.prepare(half, 0, GROUP)

    prepare(left - last)
    return _per_second(last, lambda: prepare(last))


def _postpone(broker: txstore.EmbeddedBroker) -> None:
    """Times with none of them due."""
    after = -1
    while page := broker.store.halves_waiting(after, _PAGE):
        for waiting in page:
            broker.store.look_again(waiting.half_queue_offset, _HOUR_MS)
        after = page[-1].half_queue_offset


def _costs(broker: txstore.EmbeddedBroker) -> Iterator[tuple[str, float, str]]:
    count = 20_000
    message = Message(TOPIC, _BODY)

    def appends() -> None:
        for _ in range(count):
            broker.append(message, 0)

    def transactions() -> None:
        for _ in range(count):
            sent = broker.prepare(message, 0, GROUP)
            broker.end_transaction(sent, LocalTransactionState.COMMIT, producer_group=GROUP)

    yield "append, 128 B", median(lambda: _per_second(count, appends)), "/s"
    yield "half and commit, 128 B", median(lambda: _per_second(count, transactions)), "/s"
    yield f"check scan, {_DUE:,} due", median(lambda: _round(broker, rounds.scan_seconds)), "ms"
    yield f"check round, {_DUE:,} due", median(lambda: _round(broker, rounds.round_seconds)), "ms"


# Topics, threads, recovery --------------------------------------------------------------------------------------------


def topics(sizes: Sequence[int]) -> Iterator[Point]:
    """More and more topics of one queue; every message goes to the next of them."""

    def point(measure: str, size: int, value: float, unit: str) -> Point:
        return Point("topics", measure, size, value, unit)

    with scratch() as folder:
        store = folder / "store"
        names: list[str] = []
        states.filled(store)
        for size in sizes:
            new = [f"topic-{number}" for number in range(len(names), size)]
            names += new
            with txstore.open(store) as broker:
                # Below the broker, which would write topics.json for each; the next opening finds them.
                for name in new[:-_MADE]:
                    broker.store.append(Message(name, _BODY), 0)
            with txstore.open(store) as broker:
                yield point("create a topic", size, _make(broker, new[-_MADE:]), "/s")
                for measure, value in _each_in_turn(broker, names):
                    yield point(measure, size, value, "/s")
            yield point("disk of the queues", size, disk_bytes(store / "consumequeue") / size, "bytes each")
            yield from (point(measure, size, value, "ms") for measure, value in _openings(store))


def _make(broker: txstore.EmbeddedBroker, names: Sequence[str]) -> float:
    def work() -> None:
        for name in names:
            broker.create_topic(name, 1)
            broker.append(Message(name, _BODY), 0)

    return _per_second(len(names), work)


def _each_in_turn(broker: txstore.EmbeddedBroker, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    yield "append to each in turn, 128 B", median(lambda: _append_to_each(broker, names))
    yield "read from each in turn", median(lambda: _read_of_each(broker, names))


def _append_to_each(broker: txstore.EmbeddedBroker, names: Sequence[str]) -> float:
    turns = max(1, 20_000 // len(names))
    every = [Message(name, _BODY) for name in names]

    def work() -> None:
        for _ in range(turns):
            for message in every:
                broker.append(message, 0)

    return _per_second(turns * len(names), work)


def _read_of_each(broker: txstore.EmbeddedBroker, names: Sequence[str]) -> float:
    turns = max(1, 20_000 // len(names))

    def work() -> None:
        for _ in range(turns):
            for name in names:
                assert broker.read(name, 0, 0, 1)[0][0].body == _BODY

    return _per_second(turns * len(names), work)


def threads(sizes: Sequence[int]) -> Iterator[Point]:
    """More and more threads that send."""
    for size in sizes:
        for mode, count in (("ASYNC_FLUSH", 100_000), ("SYNC_FLUSH", 2_000 * min(size, 16))):
            value = median(lambda mode=mode, count=count, size=size: send(count, 128, size, mode))  # type: ignore[misc]
            yield Point("threads", f"send, 128 B, {mode}", size, value, "/s")


def recovery(sizes: Sequence[int]) -> Iterator[Point]:
    """The whole log is after the snapshot."""
    for size in sizes:
        with scratch() as folder:
            store = folder / "store"
            states.filled(store, messages=size * _MIB // record_bytes(), crash=True)
            crashed = states.opened(store)
        assert crashed.scanned_bytes > 0.9 * size * _MIB, crashed
        yield Point("recovery", "open after kill -9, MiB after its snapshot", size, crashed.seconds, "s")
        yield Point("recovery", "anonymous memory of it", size, crashed.anonymous_bytes / _MIB, "MiB")


def points(sizes: Sizes, only: Sequence[str] = SWEEPS) -> Iterator[Point]:
    """Measures all sweeps, in the order of SWEEPS."""
    works = {"messages": messages, "pending": pending, "topics": topics, "threads": threads, "recovery": recovery}
    for name in SWEEPS:
        if name in only:
            yield from works[name](getattr(sizes, name))


def markdown(found: Sequence[Point]) -> str:
    """A table for each sweep: a line for each measure, a column for each size."""
    lines: list[str] = []
    for sweep in dict.fromkeys(point.sweep for point in found):
        here = [point for point in found if point.sweep == sweep]
        sizes = list(dict.fromkeys(point.size for point in here))
        heads = [f"{size:,}" for size in sizes]
        lines += [f"| {sweep} | {' | '.join(heads)} | last to first, of cost |", "|---" * (len(sizes) + 2) + "|"]
        for measure in dict.fromkeys(point.measure for point in here):
            row = {point.size: point for point in here if point.measure == measure}
            cells = " | ".join(row[size].text() if size in row else "" for size in sizes)
            first, last = row[min(row)], row[max(row)]
            lines.append(f"| {measure} | {cells} | {last.cost / first.cost:.2f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few minutes")
    parser.add_argument("--large", action="store_true", help="100,000,000 messages, 10,000,000 pending; needs 40 GiB")
    parser.add_argument("--only", default=",".join(SWEEPS), help="some of them: %(default)s")
    arguments = parser.parse_args()
    found = []
    for point in points(sizes_of(arguments.quick, arguments.large), arguments.only.split(",")):
        print(point.line(), flush=True)
        found.append(point)
    print("\n" + markdown(found))


if __name__ == "__main__":
    main()
