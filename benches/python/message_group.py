"""Measures a message group to which two processes send in turns, within their own transactions.

In:     `python -m benches.python.message_group [--count 1000]`.
Out:    a table of rates, on SQLite and PostgreSQL, from the first commit until all messages are in the log.
Always: the log is that of `txstore serve`. A process commits only after the other one has, and the messages are in the
        order of the commits, asserted. One process alone that commits as often is the limit.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

import txstore
from benches.python.loads import GROUP, TOPIC
from benches.python.measure import in_turns, scratch
from tests.database.server import running_postgres
from tests.ports import free_port
from txstore import Message
from txstore.database import Database

_ROOT = Path(__file__).resolve().parents[2]
_TXSTORE = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]


@contextmanager
def _served(store: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [*_TXSTORE, "serve", str(store), "--listen", address, "--name-server", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert address in server.stdout.readline()
            yield address
        finally:
            server.kill()


def _rate(database: str, processes: int, count: int) -> float:
    """Returns how many messages a second reach the log in all."""
    with scratch() as folder, _served(folder / "store") as to, txstore.connect(to) as broker:
        broker.create_topic(TOPIC, 1)
        # A ring of pipes, along which the permission to commit is passed on.
        pipes = [os.pipe() for _ in range(processes)]
        command = [sys.executable, "-m", "benches.python.message_group", "--worker", database, to, str(count)]
        workers = [
            subprocess.Popen(
                [*command, str(index), str(processes)],
                cwd=_ROOT,
                stdin=pipes[index][0],
                stdout=pipes[(index + 1) % processes][1],
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(processes)
        ]
        for worker in workers:
            assert worker.stderr is not None
            while (line := worker.stderr.readline()) != "ready\n":
                assert line, "a worker has ended"
        start = time.perf_counter()
        os.write(pipes[0][1], b"x")
        while sum(end for _, _, _, end in broker.queues(TOPIC)) < count:
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        for worker in workers:
            worker.kill()
            worker.communicate()
        for end in (end for ends in pipes for end in ends):
            os.close(end)
        found, offset = list[int](), 0
        while offset < count:
            messages, offset = broker.read(TOPIC, 0, offset, 256)
            found.extend(int(message.body) for message in messages)
        assert found == list(range(count))
    return count / seconds


def _work(database: str, to: str, count: int, index: int, processes: int) -> None:
    session = (
        psycopg.connect(database)
        if database.startswith("postgresql")
        else sqlite3.connect(database, timeout=120, isolation_level="IMMEDIATE")
    )
    with txstore.connect(to) as broker:
        producer = broker.producer(GROUP, database=Database(database))
        print("ready", file=sys.stderr, flush=True)
        for number in range(index, count, processes):
            os.read(0, 1)
            session.execute(f"INSERT INTO orders VALUES ({number})")
            producer.send(Message(TOPIC, b"%d" % number, message_group="order-17"), session=session)
            session.commit()
            os.write(1, b"x")
        signal.pause()  # The measuring process kills this one when all messages are there.


def _on_sqlite(processes: int, count: int) -> float:
    with scratch() as folder:
        path = folder / "orders.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.close()
        Database(path).create_table()
        return _rate(str(path), processes, count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.message_group", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="messages")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with running_postgres(durable=True) as server:

        def on_postgres(processes: int, count: int) -> float:
            assert server is not None
            url = server.url(server.new())
            with psycopg.connect(url) as connection:
                connection.execute("DROP TABLE orders")
                connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
            Database(url).create_table()
            return _rate(url, processes, count)

        works = {"SQLite": _on_sqlite} | ({} if server is None else {"PostgreSQL": on_postgres})
        loads = {
            f"{name}, {processes}": partial(work, processes, given.count)
            for name, work in works.items()
            for processes in (1, 2)
        }
        found = in_turns(given.turns, loads)
    print("| Database, processes | messages a second (least..most) |\n|---|---|")
    for name, rates in found.items():
        print(f"| {name} | {rates.median:,.0f} ({min(rates.values):,.0f}..{max(rates.values):,.0f}) |")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        _work(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
    else:
        main()
