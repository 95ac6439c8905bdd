"""Compares a business row and its message by `txstore.database` with the same row, an outbox row and a relay.

In:     `python -m benches.peers.outbox [--quick]`.
Out:    rows.
Always: both sides insert the same row by the same driver, one database transaction each; the relay takes 100 at a time,
        appends them to a list and deletes them, and a rate counts to the last one relayed. SQLite: WAL, NORMAL, one
        thread. PostgreSQL: synced, 64 connections, our store in SYNC_FLUSH; no rows of it if it is not installed.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

import txstore
from benches.peers.table import Row, against, alone
from benches.python import database as bench
from benches.python.loads import BODY, GROUP, TOPIC
from benches.python.measure import Scale, in_turns, per_second, scratch
from tests.database.server import Postgres, running_postgres
from txstore import Message
from txstore.database import Database

_CONNECTIONS = 64
_RELAY = 100
_PAUSE_S = 0.005
_OURS, _THEIRS, _LIMIT = "row and message", "row and outbox row, with relay", "limit: the row alone"
_ORDERS = "INSERT INTO orders (body) VALUES (%s)"
_OUTBOX = "INSERT INTO outbox (topic, body) VALUES (%s, %s)"
_TAKE = f"SELECT id, topic, body FROM outbox ORDER BY id LIMIT {_RELAY}"
# By id, not up to the greatest: of two that write at the same time the later number may commit first.
_GIVE = "DELETE FROM outbox WHERE id = ANY(%s)"


# SQLite, by SQLAlchemy Core -------------------------------------------------------------------------------------------


@contextmanager
def _core() -> Iterator[bench.Target]:
    with bench.on_sqlite(True) as target, target.source.connect() as connection:
        yield bench.Target(connection, target.source, target.folder, "sqlalchemy")


def _on_sqlite(scale: Scale) -> Iterator[Row]:
    count = scale.count(20_000, 2_000)

    def load(work: Callable[[bench.Target, int], float]) -> Callable[[], float]:
        def run() -> float:
            with _core() as target:
                return work(target, count)

        return run

    found = in_turns(scale.turns, {_OURS: load(bench.block), _THEIRS: load(bench.outbox), _LIMIT: load(bench.alone)})
    what = "SQLAlchemy Core on SQLite, WAL, NORMAL, 1 thread"
    yield from against("outbox", what, found, _OURS, [_THEIRS, _LIMIT])


# PostgreSQL, 64 connections -------------------------------------------------------------------------------------------

Connection = psycopg.Connection[tuple[object, ...]]


class Sessions:
    """Connections to a new database with the user's table and an outbox."""

    def __init__(self, url: str, connections: Sequence[Connection]) -> None:
        self.url, self._connections = url, connections

    def each(self, work: Callable[[Connection], None]) -> None:
        """Runs `work` with each connection in a thread of its own. Raises the first error of them."""
        problems: list[BaseException] = []

        def run(connection: Connection) -> None:
            try:
                work(connection)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=run, args=(connection,)) for connection in self._connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]


@contextmanager
def _sessions(server: Postgres) -> Iterator[Sessions]:
    url = server.url(server.new())
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS orders, outbox, txstore_transactions, txstore_inbox")
        for table, more in (("orders", ""), ("outbox", "topic TEXT, ")):
            connection.execute(f"CREATE TABLE {table} (id BIGSERIAL PRIMARY KEY, {more}body BYTEA)")
    with ExitStack() as stack:
        yield Sessions(url, [stack.enter_context(psycopg.connect(url)) for _ in range(_CONNECTIONS)])
    server.give_back(url)


def _block(sessions: Sessions, each: int) -> float:
    database = Database(sessions.url)
    database.create_table()
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type="SYNC_FLUSH") as broker:
        producer = broker.transaction_producer(GROUP, database=database)

        def work(connection: Connection) -> None:
            for _ in range(each):
                with producer.transaction(Message(TOPIC, BODY), session=connection):
                    connection.execute(_ORDERS, (BODY,))

        rate = per_second(each * _CONNECTIONS, lambda: sessions.each(work))
        stored = sum(end - first for topic, _, first, end in broker.store.queues() if topic == TOPIC)
        assert stored == each * _CONNECTIONS, stored
        return rate


def _outbox(sessions: Sessions, each: int) -> float:
    handed: list[object] = []

    def work(connection: Connection) -> None:
        for _ in range(each):
            connection.execute(_ORDERS, (BODY,))
            connection.execute(_OUTBOX, (TOPIC, BODY))
            connection.commit()

    def relay() -> None:
        with psycopg.connect(sessions.url) as connection:
            while len(handed) < each * _CONNECTIONS:
                rows = connection.execute(_TAKE).fetchall()
                if rows:
                    handed.extend(rows)
                    connection.execute(_GIVE, ([row[0] for row in rows],))
                connection.commit()
                if len(rows) < _RELAY:
                    time.sleep(_PAUSE_S)

    def both() -> None:
        relaying = threading.Thread(target=relay)
        relaying.start()
        sessions.each(work)
        relaying.join()

    return per_second(each * _CONNECTIONS, both)


def _alone(sessions: Sessions, each: int) -> float:
    def work(connection: Connection) -> None:
        for _ in range(each):
            connection.execute(_ORDERS, (BODY,))
            connection.commit()

    return per_second(each * _CONNECTIONS, lambda: sessions.each(work))


def _on_postgres(server: Postgres, scale: Scale) -> Iterator[Row]:
    each = scale.count(300, 30)

    def load(work: Callable[[Sessions, int], float]) -> Callable[[], float]:
        def run() -> float:
            with _sessions(server) as sessions:
                return work(sessions, each)

        return run

    found = in_turns(scale.turns, {_OURS: load(_block), _THEIRS: load(_outbox), _LIMIT: load(_alone)})
    what = f"psycopg on PostgreSQL, synced, {_CONNECTIONS} connections, SYNC_FLUSH"
    yield from against("outbox", what, found, _OURS, [_THEIRS, _LIMIT])


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows."""
    yield from _on_sqlite(scale)
    with running_postgres(durable=True) as server:
        if server is None:
            print("PostgreSQL is not installed here: no rows of it (apt-get install postgresql)", file=sys.stderr)
            return
        yield from _on_postgres(server, scale)


if __name__ == "__main__":
    alone("outbox", __doc__, rows)
