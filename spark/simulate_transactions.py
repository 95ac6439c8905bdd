"""Writes a store with many transactions of every kind, and the list of their outcomes, to try the report on.

    python spark/simulate_transactions.py trial.store --transactions 200000 --list trial.parquet

In:     a number of transactions, a seed.
Out:    a store that the engine itself wrote, and a Parquet list with one row per transaction, in order. Most commit,
        early or late; some roll back; some are discarded, and a few of those resumed and then committed or rolled
        back; some stay pending.
Always: the list knows nothing of the log except the offsets that the engine returned.
Not here: the report.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import txstore
from txstore import Message, _native
from txstore.errors import TxStoreError

# How often each topic and group occurs, and how many of a hundred transactions end in which way.
TOPICS = {"orders": 50, "payments": 30, "shipments": 15, "refunds": 5}
GROUPS = {
    "orders": "order-service",
    "payments": "payment-service",
    "shipments": "shipping",
    "refunds": "payment-service",
}
FATES = {"committed": 84, "rolled_back": 10, "pending": 3, "discarded": 2, "resumed": 1}
QUEUES = 4
# How many transactions later a half is ended: at once for most, very late for a few.
LATE = (0, 0, 0, 0, 1, 2, 5, 20, 100, 1_000, 10_000)
PROGRESS_EVERY = 50_000


@dataclass
class Simulated:
    """One transaction in the list."""

    transaction_id: str
    producer_group: str
    real_topic: str
    real_queue_id: int
    half_queue_offset: int
    half_physical_offset: int
    state: str = "pending"
    final_physical_offset: int | None = None


def simulate(path: Path, transactions: int, seed: int) -> Iterator[tuple[int, list[Simulated]]]:
    """Fills a new store; yields the number so far and the list, after each 50,000 transactions and at the end.

    A resumed transaction counts as two: the discarded one, and the one that its new half began.
    """
    chance = random.Random(seed)
    listed: list[Simulated] = []
    with txstore.open(path) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, QUEUES)
        # (when, number in the list, what to do): ends that come later wait here.
        waiting: list[tuple[int, int, str]] = []
        for number in range(transactions):
            listed.append(_prepare(broker.store, chance, number))
            fate = chance.choices(list(FATES), list(FATES.values()))[0]
            due = number + chance.choice(LATE) * chance.randint(1, 3)
            heapq.heappush(waiting, (due, len(listed) - 1, fate))
            while waiting and waiting[0][0] <= number:
                _, index, ended = heapq.heappop(waiting)
                _end(broker.store, chance, listed, index, ended)
            if (number + 1) % PROGRESS_EVERY == 0 and number + 1 < transactions:
                yield number + 1, listed
        while waiting:
            _, index, ended = heapq.heappop(waiting)
            _end(broker.store, chance, listed, index, ended)
    yield transactions, listed


def _prepare(store: _native.Store, chance: random.Random, number: int) -> Simulated:
    topic = chance.choices(list(TOPICS), list(TOPICS.values()))[0]
    message = Message(topic, b"%09d" % number + bytes(chance.randrange(200)), tags="new", keys=[f"k-{number}"])
    queue, group = chance.randrange(QUEUES), GROUPS[topic]
    sent = store.prepare(message, queue, group)
    assert sent.transaction_id is not None
    return Simulated(sent.transaction_id, group, topic, queue, sent.queue_offset, sent.physical_offset)


def _end(store: _native.Store, chance: random.Random, listed: list[Simulated], index: int, fate: str) -> None:
    one = listed[index]
    half = one.half_queue_offset, one.half_physical_offset
    if fate in ("committed", "rolled_back"):
        one.final_physical_offset = store.end_transaction(*half, commit=fate == "committed").physical_offset
        one.state = fate
    elif fate in ("discarded", "resumed"):
        store.discard(*half)
        one.state = "discarded"
    if fate == "resumed":
        again = store.resume(one.transaction_id)
        half = again.queue_offset, again.physical_offset
        listed.append(Simulated(one.transaction_id, one.producer_group, one.real_topic, one.real_queue_id, *half))
        _end(store, chance, listed, len(listed) - 1, chance.choice(("committed", "rolled_back", "pending")))


def write_list(listed: Sequence[Simulated], file: Path) -> None:
    """Writes the list as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet

    names = list(Simulated.__dataclass_fields__)
    numbers = {"real_queue_id": pa.int32(), **dict.fromkeys([n for n in names if n.endswith("_offset")], pa.int64())}
    columns = {name: pa.array([getattr(one, name) for one in listed], numbers.get(name, pa.string())) for name in names}
    pyarrow.parquet.write_table(pa.table(columns), file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns 0 on success, 2 for a wrong argument."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path, help="the directory of the new store")
    parser.add_argument("--transactions", type=int, default=200_000, metavar="N", help="how many (200,000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (1)")
    parser.add_argument("--list", type=Path, metavar="FILE", help="write the outcome of each there, as Parquet")
    options = parser.parse_args(arguments)
    if options.store.exists():
        print(f"simulate_transactions: {options.store} already exists\nhint: name a new directory", file=sys.stderr)
        return 2
    begin = time.monotonic()
    listed: list[Simulated] = []
    try:
        for done, listed in simulate(options.store, options.transactions, options.seed):  # noqa: B007 - used after
            print(f"{time.monotonic() - begin:6.1f} s  {done:,} transactions of {options.transactions:,}", flush=True)
    except TxStoreError as error:
        print(f"simulate_transactions: {error}", file=sys.stderr)
        return 2
    if options.list is not None:
        write_list(listed, options.list)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
