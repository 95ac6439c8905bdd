"""The loads that are measured, from a new store to its end; each returns its rate per second.

In:     counts and settings.
Out:    rates.
Always: a load creates its own store and leaves nothing; creating and closing it are not counted.
"""

import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import txstore
from benches.python.measure import per_second, scratch
from txstore import LocalTransactionState, Message, TransactionListener
from txstore.config import FlushDisk

TOPIC = "bench"
GROUP = "bench-group"
BODY = bytes(range(256)) * 4  # 1 KiB
BATCH = 100
NOT_SYNCED: dict[str, Any] = {"flush_disk_type": "ASYNC_FLUSH", "transaction_flush_disk_type": "ASYNC_FLUSH"}
"""Options with which no message and no half message waits for the disk."""
_BUSINESS = "INSERT INTO orders (body) VALUES (?)"


class Commits(TransactionListener):
    """A local transaction that costs nothing."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


class Pays(Commits):
    """A local transaction as users have it: one insert, committed."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        insert_business(self._database)
        return LocalTransactionState.COMMIT


def business_table(path: Path, synchronous: str) -> sqlite3.Connection:
    """A user's database with one table, in WAL mode; every statement is a transaction unless one was begun."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, body BLOB)")
    return database


def insert_business(database: sqlite3.Connection) -> None:
    database.execute(_BUSINESS, (BODY,))


# Appending ------------------------------------------------------------------------------------------------------------


def send(count: int, flush_disk_type: FlushDisk = "ASYNC_FLUSH") -> float:
    """`producer.send(Message(...))`, one by one."""
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count):
                producer.send(Message(TOPIC, BODY))

        return per_second(count, work)


def append(count: int, *, threads: int = 1, flush_disk_type: FlushDisk = "ASYNC_FLUSH") -> float:
    """`store.append(Message(...))`, below the producer."""
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        broker.create_topic(TOPIC)
        one = broker.append
        one(Message(TOPIC, BODY), 0)

        def work() -> None:
            for _ in range(count // threads):
                one(Message(TOPIC, BODY), 0)

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def send_batch(count: int, flush_disk_type: FlushDisk = "ASYNC_FLUSH") -> float:
    """`producer.send_batch` of 100 messages."""
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count // BATCH):
                producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)])

        return per_second(count // BATCH * BATCH, work)


def in_threads(threads: int, work: Callable[[], None]) -> None:
    """Runs `work` in that many threads, this one among them."""
    others = [threading.Thread(target=work) for _ in range(threads - 1)]
    for other in others:
        other.start()
    work()
    for other in others:
        other.join()


def _bytes_after(work: Callable[[txstore.EmbeddedBroker], object]) -> int:
    with scratch() as folder, txstore.open(folder / "store") as broker:
        broker.create_topic(TOPIC)
        work(broker)
        return broker.stat().max_physical_offset


def record_bytes(body: bytes = BODY) -> int:
    """Bytes of the log that one message takes."""
    return _bytes_after(lambda broker: broker.producer(GROUP).send(Message(TOPIC, body)))


def transaction_bytes() -> int:
    """Bytes of the log that one committed transaction takes."""
    return _bytes_after(
        lambda broker: broker.transaction_producer(GROUP, Commits()).send_in_transaction(Message(TOPIC, BODY))
    )


# Transactions ---------------------------------------------------------------------------------------------------------


def send_in_transaction(count: int) -> float:
    """`producer.send_in_transaction(Message(...))` with a listener that commits at once."""
    with scratch() as folder, txstore.open(folder / "store", **NOT_SYNCED) as broker:
        producer = broker.transaction_producer(GROUP, Commits())

        def work() -> None:
            for _ in range(count):
                producer.send_in_transaction(Message(TOPIC, BODY))

        return per_second(count, work)


def prepare_and_end(count: int) -> float:
    """The broker's own calls: half message, commit."""
    with scratch() as folder, txstore.open(folder / "store", **NOT_SYNCED) as broker:
        broker.create_topic(TOPIC)
        commit = LocalTransactionState.COMMIT

        def work() -> None:
            for _ in range(count):
                sent = broker.prepare(Message(TOPIC, BODY), 0, GROUP)
                broker.end_transaction(sent, commit, producer_group=GROUP)

        return per_second(count, work)


def send_with_business(count: int) -> float:
    """`send_in_transaction` around an insert into the user's SQLite database (WAL, NORMAL); neither is synced."""
    with scratch() as folder, txstore.open(folder / "store", **NOT_SYNCED) as broker:
        database = business_table(folder / "business.db", "NORMAL")
        producer = broker.transaction_producer(GROUP, Pays(database))

        def work() -> None:
            for _ in range(count):
                producer.send_in_transaction(Message(TOPIC, BODY))

        rate = per_second(count, work)
        database.close()
        return rate


# Reading --------------------------------------------------------------------------------------------------------------


def fill(broker: txstore.EmbeddedBroker, count: int) -> None:
    """Messages of 1 KiB in queue 0."""
    broker.create_topic(TOPIC)
    batch = [Message(TOPIC, BODY)] * BATCH
    for _ in range(count // BATCH):
        broker.append_many(batch, [0] * BATCH)


def poll_by_32(broker: txstore.EmbeddedBroker, count: int) -> float:
    """All messages of a topic by `poll` of 32, the body of each; each poll acknowledges the one before."""
    consumer = broker.consumer(f"poll-{time.monotonic_ns()}", TOPIC)

    def work() -> None:
        size = 0
        while messages := consumer.poll(32):
            for message in messages:
                size += len(message.body)
        assert size == count * len(BODY)

    speed = per_second(count, work)
    consumer.close()
    return speed


def forward_all(broker: txstore.EmbeddedBroker) -> None:
    """Returns when all committed messages are durable, and their rows deleted. Closing a broker begins with this."""
    broker._parts.outboxes.close(60)


def must_read(store: Path, topic: str, count: int) -> None:
    """Reads all messages of a topic of a closed store with a consumer. Fails if they are not so many different ones."""
    with txstore.open(store) as broker, broker.consumer("readers", topic) as consumer:
        ids = list[str]()
        while messages := consumer.poll(256):
            ids.extend(message.message_id for message in messages)
    assert len(ids) == len(set(ids)) == count, f"{len(ids)} messages, {len(set(ids))} different ones, expected {count}"


def fill_with_keys(broker: txstore.EmbeddedBroker, count: int) -> None:
    """Messages of a few bytes, the n-th with the key `kn`."""
    broker.create_topic(TOPIC)
    for first in range(0, count, BATCH):
        messages = [Message(TOPIC, b"%d" % n, keys=[f"k{n}"]) for n in range(first, first + BATCH)]
        broker.append_many(messages, [0] * BATCH)


def query_ms(broker: txstore.EmbeddedBroker, keys: Sequence[int]) -> float:
    """Median time in milliseconds of a look-up of one of these keys, asked twice: the first time warms the pages."""
    times = []
    for warm in (False, True):
        for number in keys:
            start = time.perf_counter()
            (found,) = broker.query(TOPIC, f"k{number}")
            times += [1000 * (time.perf_counter() - start)] * warm
            assert found.body == b"%d" % number
    return statistics.median(times)


def read_by_32(broker: txstore.EmbeddedBroker, count: int) -> float:
    """All messages of a queue, 32 a call, the body of each."""

    def work() -> None:
        at = size = 0
        while at < count:
            messages, at = broker.read(TOPIC, 0, at, 32)
            for message in messages:
                size += len(message.body)
        assert size == count * len(BODY)

    return per_second(count, work)
