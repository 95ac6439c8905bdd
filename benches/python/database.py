"""Compares a business row and its message by `txstore.database` with an outbox and its relay.

In:     `python -m benches.python.database [--quick] [--turns 5] [--only sqlite3]`.
Out:    a table of rates and ratios, measured in the same turns.
Always: both sides insert the same row through the same driver, one database transaction each; the outbox's relay sends
        to no broker, so its messages cost nothing. The clock stops, on both sides, when the last row is deleted, and
        its message is durable. Afterwards a consumer reads all messages. SQLite in WAL mode, with NORMAL and with FULL,
        which syncs each commit; PostgreSQL synced, if it is installed.
"""

import argparse
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

import txstore
from benches.python.loads import BODY, GROUP, NOT_SYNCED, TOPIC, forward_all, must_read
from benches.python.measure import Scale, in_turns, per_second, scratch
from benches.python.ratios import DEFAULT, QUICK, Row, against
from tests.database.server import Postgres, running_postgres
from txstore import Message
from txstore.database import Database

Load = Callable[[int], float]
_RELAY = 100
_ORDERS = "INSERT INTO orders (body) VALUES ({})"
_OUTBOX = "INSERT INTO outbox (topic, body) VALUES ({}, {})"
_TAKE = f"SELECT id, topic, body FROM outbox ORDER BY id LIMIT {_RELAY}"
_GIVE = "DELETE FROM outbox WHERE id <= {}"
_OF_BARE_ROWS = 0.9


class Target:
    """A new database with the user's table and an outbox, and one session on it; removed afterwards."""

    def __init__(self, session: Any, source: Any, folder: Path, style: str) -> None:
        self.session, self.source, self.folder, self.style = session, source, folder, style

    def execute(self, sql: str, *values: object) -> Any:
        """One statement in the driver's own style of parameters."""
        if self.style == "sqlalchemy":
            names = {f"v{number}": value for number, value in enumerate(values)}
            return self.session.execute(_clause(sql.format(*(f":{name}" for name in names))), names)
        return self.session.execute(sql.format(*(self.style for _ in values)), values)


@cache
def _clause(sql: str) -> Any:
    return text(sql)


@contextmanager
def on_sqlite(sqlalchemy: bool, synchronous: str = "NORMAL") -> Iterator[Target]:
    with scratch() as folder:
        path = folder / "orders.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, body BLOB)")
            connection.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, topic TEXT, body BLOB)")
        connection.close()
        if not sqlalchemy:
            connection = sqlite3.connect(path)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            yield Target(connection, path, folder, "?")
            connection.close()
            return
        engine = create_engine(f"sqlite:///{path}")

        @event.listens_for(engine, "connect")
        def set_synchronous(driver: Any, record: object) -> None:
            driver.execute(f"PRAGMA synchronous = {synchronous}")

        yield from _with_session(engine, folder)


@contextmanager
def on_postgres(server: Postgres, sqlalchemy: bool) -> Iterator[Target]:
    with scratch() as folder:
        url = server.url(server.new())
        with psycopg.connect(url) as connection:
            connection.execute(
                "DROP TABLE IF EXISTS orders, outbox, txstore_transactions, txstore_inbox, txstore_outbox, txstore_sent"
            )
            for table, more in (("orders", ""), ("outbox", "topic TEXT, ")):
                connection.execute(f"CREATE TABLE {table} (id BIGSERIAL PRIMARY KEY, {more}body BYTEA)")
        if sqlalchemy:
            yield from _with_session(create_engine(url.replace("postgresql:", "postgresql+psycopg:")), folder)
        else:
            with psycopg.connect(url) as connection:
                yield Target(connection, url, folder, "%s")
        server.give_back(url)


def _with_session(engine: Engine, folder: Path) -> Iterator[Target]:
    with Session(engine) as session:
        yield Target(session, engine, folder, "sqlalchemy")
    engine.dispose()


def block(target: Target, count: int) -> float:
    """A row and its message, by txstore; synced as little as the row."""
    database = Database(target.source)
    database.create_table()
    with txstore.open(target.folder / "store", **NOT_SYNCED) as broker:
        producer = broker.transaction_producer(GROUP, database=database)

        def work() -> None:
            for _ in range(count):
                with producer.transaction(Message(TOPIC, BODY), session=target.session):
                    target.execute(_ORDERS, BODY)

        rate = per_second(count, work)
    must_read(target.folder / "store", TOPIC, count)
    return rate


def sent(target: Target, count: int) -> float:
    """A row and a message sent within its transaction, until the message is durable and its row is deleted."""
    database = Database(target.source)
    database.create_table()
    broker = txstore.open(target.folder / "store", **NOT_SYNCED)
    producer = broker.producer(GROUP, database=database)

    def work() -> None:
        for _ in range(count):
            target.execute(_ORDERS, BODY)
            producer.send(Message(TOPIC, BODY), session=target.session)
            target.session.commit()
        forward_all(broker)

    rate = per_second(count, work)
    broker.close()
    must_read(target.folder / "store", TOPIC, count)
    return rate


def bare(target: Target, count: int) -> float:
    """The row and a second row, which nobody deletes: what a message in the transaction pays at least."""

    def work() -> None:
        for _ in range(count):
            target.execute(_ORDERS, BODY)
            target.execute(_OUTBOX, TOPIC, BODY)
            target.session.commit()

    return per_second(count, work)


def outbox(target: Target, count: int) -> float:
    """A row and an outbox row; each hundred of them are taken out."""
    relayed = 0

    def work() -> None:
        nonlocal relayed
        for number in range(1, count + 1):
            target.execute(_ORDERS, BODY)
            target.execute(_OUTBOX, TOPIC, BODY)
            target.session.commit()
            if number % _RELAY == 0 or number == count:
                rows = target.execute(_TAKE).fetchall()
                target.execute(_GIVE, rows[-1][0])
                target.session.commit()
                relayed += len(rows)

    rate = per_second(count, work)
    assert relayed == count
    return rate


def alone(target: Target, count: int) -> float:
    """The row alone: what both sides pay anyway."""

    def work() -> None:
        for _ in range(count):
            target.execute(_ORDERS, BODY)
            target.session.commit()

    return per_second(count, work)


def compared(name: str, scale: Scale, count: int, target: Callable[[], Any], goal: float | None = None) -> list[Row]:
    """One database and driver. `goal`: of a message in the transaction, over the outbox."""

    def load(work: Callable[[Target, int], float]) -> Callable[[], float]:
        def run() -> float:
            with target() as opened:
                return work(opened, scale.count(count, 300))

        return run

    loads = {"sent": sent, "bare": bare, "block": block, "outbox": outbox, "alone": alone}
    found = in_turns(scale.turns, {what: load(work) for what, work in loads.items()})
    ours, what = f"message in the transaction, {name}", f"row and message, {name}"
    return [
        against(ours, found["sent"], "row and outbox row, with relay", found["outbox"], goal),
        against(ours, found["sent"], "two bare rows", found["bare"], _OF_BARE_ROWS),
        against(ours, found["sent"], "the row alone", found["alone"]),
        against(what, found["block"], "row and outbox row, with relay", found["outbox"]),
        against(what, found["block"], "the row alone", found["alone"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.database", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; values are rough")
    parser.add_argument("--turns", type=int, help="5; with --quick 1")
    parser.add_argument("--only", default="", help="only the databases whose name contains this word")
    given = parser.parse_args()
    scale = replace(QUICK if given.quick else DEFAULT, turns=given.turns or (QUICK.turns if given.quick else 5))
    start, load = time.perf_counter(), os.getloadavg()[0]
    print(f"1 KiB bodies, one process, {scale.name} sizes, medians of {scale.turns} turns; load before: {load:.1f}\n")
    print("| What | Ours | Compared with | Theirs | Ratio | Goal |\n|---|---|---|---|---|---|", flush=True)

    def measure(name: str, count: int, target: Callable[[], Any], goal: float | None = None) -> None:
        if given.only in name:
            print("\n".join(row.line() for row in compared(name, scale, count, target, goal)), flush=True)

    measure("sqlite3, NORMAL", 20_000, partial(on_sqlite, False), 1.15)
    measure("sqlite3, FULL", 4_000, partial(on_sqlite, False, "FULL"), 1.0)
    measure("SQLAlchemy on SQLite, NORMAL", 10_000, partial(on_sqlite, True), 1.15)
    measure("SQLAlchemy on SQLite, FULL", 4_000, partial(on_sqlite, True, "FULL"), 1.0)
    with running_postgres(durable=True) as server:
        if server is None:
            sys.exit("PostgreSQL is not installed here, so its rows are missing\nhint: apt-get install postgresql")
        measure("psycopg", 3_000, partial(on_postgres, server, False))
        measure("SQLAlchemy on PostgreSQL", 3_000, partial(on_postgres, server, True))
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
