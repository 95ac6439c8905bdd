"""Messages in the transactions of 64 connections, next to a hand-written outbox with its relay, on a real server.

In:     `python -m benches.python.database_threads mariadb|postgres [--threads 64] [--count 200] [--turns 5]`.
Out:    a table of transactions per second and their ratios, measured in the same turns.
Always: all sides have the same sessions (SQLAlchemy), the same business row and a durable database. The clock stops, on
        both sides, when the last row is deleted, and its message is durable. Afterwards a consumer reads all messages.
        The relay takes up to 500 rows at a time and sends them nowhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import txstore
from benches.python.loads import BODY, forward_all, must_read
from benches.python.measure import in_turns, per_second, scratch
from benches.python.ratios import against
from tests.database.mariadb_server import running_mariadb
from tests.database.server import running_postgres
from txstore import Message
from txstore.database import Database

_TABLES = {
    "mariadb": "(id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(255), body LONGBLOB) ENGINE=InnoDB",
    "postgres": "(id BIGSERIAL PRIMARY KEY, topic TEXT, body BYTEA)",
}
_TOPIC = "orders"
_ORDER = text("INSERT INTO shop_orders (topic, body) VALUES ('x', :body)")
_OUTBOX = text("INSERT INTO shop_outbox (topic, body) VALUES ('orders', :body)")
_TAKE = text("SELECT id, topic, body FROM shop_outbox ORDER BY id LIMIT 500")


def in_threads(threads: int, count: int, engine: Engine, work: Callable[[Session], object]) -> None:
    """Runs `count` transactions in each thread, each thread with a session of its own."""

    def run() -> None:
        with Session(engine) as session:
            for _ in range(count):
                session.execute(_ORDER, {"body": BODY})
                work(session)
                session.commit()

    started = [threading.Thread(target=run) for _ in range(threads)]
    for one in started:
        one.start()
    for one in started:
        one.join()


def sent(engine: Engine, threads: int, count: int) -> float:
    """Transactions per second with `send`."""
    database = Database(engine)
    database.create_table()
    with scratch() as folder:
        with txstore.open(folder / "store") as broker:
            producer = broker.producer("g", database=database)

            def work() -> None:
                in_threads(
                    threads, count, engine, lambda session: producer.send(Message(_TOPIC, BODY), session=session)
                )
                forward_all(broker)

            rate = per_second(threads * count, work)
        must_read(folder / "store", _TOPIC, threads * count)
        return rate


def _insert(session: Session) -> None:
    session.execute(_OUTBOX, {"body": BODY})


def outbox(engine: Engine, threads: int, count: int) -> float:
    """Transactions per second with a hand-written outbox."""
    ended = threading.Event()
    relayed = 0

    def relay() -> None:
        nonlocal relayed
        with Session(engine.execution_options(isolation_level="READ COMMITTED")) as session:
            while True:
                is_last = ended.is_set()
                rows = session.execute(_TAKE).all()
                if rows:
                    ids = ", ".join(str(row.id) for row in rows)
                    session.execute(text(f"DELETE FROM shop_outbox WHERE id IN ({ids})"))
                session.commit()
                relayed += len(rows)
                if not rows:
                    if is_last:
                        return
                    time.sleep(0.01)

    def work() -> None:
        relaying = threading.Thread(target=relay)
        relaying.start()
        in_threads(threads, count, engine, _insert)
        ended.set()
        relaying.join()

    rate = per_second(threads * count, work)
    assert relayed == threads * count
    return rate


def bare(engine: Engine, threads: int, count: int) -> float:
    """Transactions per second with a second row that nobody deletes: what a message in the transaction pays at
    least."""
    return per_second(threads * count, lambda: in_threads(threads, count, engine, _insert))


def alone(engine: Engine, threads: int, count: int) -> float:
    """Transactions per second with the business row alone."""
    return per_second(threads * count, lambda: in_threads(threads, count, engine, lambda _: None))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.database_threads", description=__doc__)
    parser.add_argument("server", choices=sorted(_TABLES))
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--count", type=int, default=200, help="transactions of each thread")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    start, load_before = time.perf_counter(), os.getloadavg()[0]
    with ExitStack() as opened:
        running: Any = running_mariadb if given.server == "mariadb" else running_postgres
        server = opened.enter_context(running(durable=True))
        if server is None:
            sys.exit(f"{given.server} is not installed here\nhint: apt-get install postgresql mariadb-server")
        url = server.url(server.new()).replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, pool_size=given.threads + 2)
        opened.callback(engine.dispose)

        def measured(load: Callable[[Engine, int, int], float]) -> float:
            with engine.begin() as connection:
                for table in ("shop_orders", "shop_outbox"):
                    connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
                    connection.execute(text(f"CREATE TABLE {table} {_TABLES[given.server]}"))
            return load(engine, given.threads, given.count)

        loads = {"sent": sent, "outbox": outbox, "bare": bare, "alone": alone}
        found = in_turns(given.turns, {name: partial(measured, load) for name, load in loads.items()})
    print(f"1 KiB bodies, {given.threads} threads, medians of {given.turns} turns; load before: {load_before:.1f}\n")
    print("| What | Ours | Compared with | Theirs | Ratio | Goal |\n|---|---|---|---|---|---|")
    what = f"message in the transaction, {given.server}, {given.threads} connections"
    print(against(what, found["sent"], "row and outbox row, with relay", found["outbox"], 1.0).line())
    print(against(what, found["sent"], "two bare rows", found["bare"], 0.9).line())
    print(against(what, found["sent"], "the row alone", found["alone"]).line())
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
