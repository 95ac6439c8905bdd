"""Messages in the transactions of 64 connections, next to a hand-written outbox with its relay, on a real server.

Out:    transactions per second, from the first one until every message is durable and its row is deleted.
Always: both sides have the same sessions (SQLAlchemy), the same business row, a durable database, and end by the same
        rule. The relay takes up to 500 rows at a time and sends them nowhere.

Run `python -m benches.python.database_threads mariadb|postgres [--threads 64] [--count 200]`.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import txstore
from benches.python.measure import scratch
from tests.database.mariadb_server import running_mariadb
from tests.database.server import running_postgres
from txstore import Message
from txstore.database import Database

_BODY = b"x" * 1024
_TABLES = {
    "mariadb": "(id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(255), body LONGBLOB) ENGINE=InnoDB",
    "postgres": "(id BIGSERIAL PRIMARY KEY, topic TEXT, body BYTEA)",
}
_ORDER = text("INSERT INTO shop_orders (topic, body) VALUES ('x', :body)")
_OUTBOX = text("INSERT INTO shop_outbox (topic, body) VALUES ('orders', :body)")
_TAKE = text("SELECT id, topic, body FROM shop_outbox ORDER BY id LIMIT 500")


def in_threads(threads: int, count: int, engine: Engine, work: Callable[[Session], None]) -> None:
    """Runs `count` transactions in each thread, each thread with a session of its own."""

    def run() -> None:
        with Session(engine) as session:
            for _ in range(count):
                session.execute(_ORDER, {"body": _BODY})
                work(session)
                session.commit()

    started = [threading.Thread(target=run) for _ in range(threads)]
    for one in started:
        one.start()
    for one in started:
        one.join()


def sent(engine: Engine, threads: int, count: int, folder: Path) -> float:
    """Transactions per second with `send`."""
    database = Database(engine)
    database.create_table()
    with txstore.open(folder / "store") as broker:
        producer = broker.producer("g", database=database)

        def send(session: Session) -> None:
            producer.send(Message("orders", _BODY), session=session)

        start = time.perf_counter()
        in_threads(threads, count, engine, send)
        broker.close()
        return threads * count / (time.perf_counter() - start)


def outbox(engine: Engine, threads: int, count: int, folder: Path) -> float:
    """Transactions per second with a hand-written outbox."""
    ended = threading.Event()

    def relay() -> None:
        with Session(engine.execution_options(isolation_level="READ COMMITTED")) as session:
            while True:
                is_last = ended.is_set()
                rows = session.execute(_TAKE).all()
                if rows:
                    ids = ", ".join(str(row.id) for row in rows)
                    session.execute(text(f"DELETE FROM shop_outbox WHERE id IN ({ids})"))
                session.commit()
                if not rows:
                    if is_last:
                        return
                    time.sleep(0.01)

    def insert(session: Session) -> None:
        session.execute(_OUTBOX, {"body": _BODY})

    start = time.perf_counter()
    relaying = threading.Thread(target=relay)
    relaying.start()
    in_threads(threads, count, engine, insert)
    ended.set()
    relaying.join()
    return threads * count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.database_threads", description=__doc__)
    parser.add_argument("server", choices=sorted(_TABLES))
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    with ExitStack() as opened:
        running: Any = running_mariadb if asked.server == "mariadb" else running_postgres
        server = opened.enter_context(running(durable=True))
        url = server.url(server.new()).replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, pool_size=asked.threads + 2)
        opened.callback(engine.dispose)
        found: dict[str, list[float]] = {"sent": [], "outbox": []}
        for _ in range(asked.turns):
            for name, load in (("sent", sent), ("outbox", outbox)):
                with engine.begin() as connection:
                    for table in ("shop_orders", "shop_outbox"):
                        connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
                        connection.execute(text(f"CREATE TABLE {table} {_TABLES[asked.server]}"))
                with scratch() as folder:
                    found[name].append(load(engine, asked.threads, asked.count, folder))
                print(f"{name}: {found[name][-1]:.0f} transactions/s", flush=True)
    ours, theirs = (statistics.median(found[name]) for name in ("sent", "outbox"))
    print(f"{asked.server}, {asked.threads} connections: {ours:.0f} : {theirs:.0f} = {ours / theirs:.2f} x")


if __name__ == "__main__":
    main()
