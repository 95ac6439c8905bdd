"""Measures messages in the transaction on PostgreSQL while another transaction is held open, so that no dead row can be
vacuumed.

In:     `python -m benches.python.held_transaction [--seconds 600] [--slice 10] [--threads 4] [--groups 0]`.
Out:    a table of mean rates, for each fifth of the time.
Always: the same load runs on a second database of the same server, in turns of a few seconds, and there nothing is held
        open. So other work on the machine slows both down, and the ratio says what the open transaction costs.
"""

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

import txstore
from benches.python.loads import BODY, GROUP, NOT_SYNCED, TOPIC, in_threads
from benches.python.measure import scratch
from tests.database.server import Postgres, running_postgres
from txstore import EmbeddedBroker, Message
from txstore.database import Database
from txstore.database.outbox import OutboxProducer

_PARTS = 5
_WARM_UP_SLICES = 2


@dataclass
class Side:
    """A database with its service."""

    url: str
    broker: EmbeddedBroker
    producer: OutboxProducer
    sessions: list[psycopg.Connection]
    groups: int
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rate(self, seconds: float) -> float:
        """Commits rows with their messages for some time, then waits until all messages are in the log. Returns how
        many a second."""
        start = time.perf_counter()
        sessions = iter(self.sessions)
        before = self.sent

        def work() -> None:
            with self._lock:
                session = next(sessions)
            for number in itertools.count():
                if time.perf_counter() - start >= seconds:
                    break
                group = f"group-{number % self.groups}" if self.groups else None
                session.execute("INSERT INTO orders (body) VALUES (%s)", (BODY,))
                self.producer.send(Message(TOPIC, BODY, message_group=group), session=session)
                session.commit()
            with self._lock:
                self.sent += number

        in_threads(len(self.sessions), work)
        while sum(end for _, _, _, end in self.broker.queues(TOPIC)) < self.sent:
            time.sleep(0.002)
        return (self.sent - before) / (time.perf_counter() - start)

    def dead_rows(self) -> int:
        """How many rows were deleted that could not be vacuumed, as PostgreSQL estimates."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            found = connection.execute("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'txstore_outbox'")
            row = found.fetchone()
        return int(row[0]) if row else 0


@contextmanager
def _side(server: Postgres, folder: Path, threads: int, groups: int) -> Iterator[Side]:
    url = server.url(server.new())
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE orders")
        connection.execute("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, body BYTEA)")
    database = Database(url)
    database.create_table()
    with txstore.open(folder, **NOT_SYNCED) as broker:
        broker.create_topic(TOPIC)
        producer = broker.producer(GROUP, database=database)
        sessions = [psycopg.connect(url) for _ in range(threads)]
        yield Side(url, broker, producer, sessions, groups)
        for session in sessions:
            session.close()


def _measured(
    held: Side, other: Side, seconds: float, each: float, say: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Runs both in turns until each has run for so long; returns the two rates of each turn."""
    rates: list[tuple[float, float]] = []
    while len(rates) < seconds / each:
        one, two = held.rate(each), other.rate(each)
        rates.append((one, two))
        say(f"{len(rates) * each:5.0f} s: {one:,.0f}/s, without {two:,.0f}/s, ratio {one / two:.2f}")
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.held_transaction", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of load while the transaction is open")
    parser.add_argument("--slice", type=float, default=10, help="seconds of one turn")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--groups", type=int, default=0, help="message groups; 0: none")
    parser.add_argument("--verbose", action="store_true", help="prints each turn")
    given = parser.parse_args()
    say: Callable[[str], None] = (lambda text: print(text, flush=True)) if given.verbose else lambda _: None
    with running_postgres(durable=True) as server, scratch() as folder:
        if server is None:
            sys.exit("PostgreSQL is not installed here\nhint: apt-get install postgresql")
        with (
            _side(server, folder / "held", given.threads, given.groups) as held,
            _side(server, folder / "other", given.threads, given.groups) as other,
        ):
            _measured(held, other, _WARM_UP_SLICES * given.slice, given.slice, say)
            before = _measured(held, other, _PARTS * given.slice, given.slice, say)
            with psycopg.connect(held.url) as open_one:
                open_one.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                open_one.execute("SELECT txid_current()")
                during = _measured(held, other, given.seconds, given.slice, say)
                dead = held.dead_rows(), other.dead_rows()
    part = -(-len(during) // _PARTS)
    print(f"1 KiB bodies, {given.threads} threads, {given.groups} message groups, {given.seconds:.0f} s held open")
    print(f"dead rows at the end: {dead[0]:,}; without the open transaction: {dead[1]:,}\n")
    print("| When | held open | without | ratio |\n|---|---|---|---|")
    rows = [("before", before)]
    for number, first in enumerate(range(0, len(during), part), 1):
        rows.append((f"part {number}", during[first : first + part]))
    for name, rates in rows:
        one, two = (statistics.mean(side) for side in zip(*rates, strict=True))
        print(f"| {name} | {one:,.0f}/s | {two:,.0f}/s | {one / two:.2f} |")


if __name__ == "__main__":
    main()
