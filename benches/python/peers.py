"""What the loads are compared with: the machine's limits, SQLite, an outbox with its relay.

In:     counts.
Out:    rates.
Always: a peer stores the same bodies and gets every advantage: one connection, prepared statements, a relay that sends
        to no broker.
"""

import functools
import json
import os
import sqlite3
import subprocess
from pathlib import Path

from benches.python.loads import BODY, TOPIC, business_table, insert_business
from benches.python.measure import per_second, scratch

__all__ = ["limit", "outbox", "sqlite_insert", "sqlite_read", "sqlite_table"]

_ROOT = Path(__file__).resolve().parents[2]
_RELAY = 100
_INSERT = "INSERT INTO messages (topic, body) VALUES (?, ?)"


@functools.cache
def _limits() -> Path:
    """The program that measures limits, built if need be."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--example", "limits"]
    subprocess.run(command, cwd=_ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    return _ROOT / target / "release" / "examples" / "limits"


def limit(name: str, count: int, size: int, *, sync_every_ms: int | None = None) -> float:
    """How many a second the machine does: `pwrite` or `memcpy` to fresh pages, `fdatasync` after each, `pread`."""
    with scratch() as folder:
        command = [str(_limits()), name, "--count", str(count), "--size", str(size), "--dir", str(folder)]
        if sync_every_ms is not None:
            command += ["--sync-every-ms", str(sync_every_ms)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(run.stdout)["per_second"])


def sqlite_table(path: Path, synchronous: str) -> sqlite3.Connection:
    """A table of messages, in WAL mode."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, topic TEXT, body BLOB)")
    return database


def sqlite_insert(count: int, synchronous: str = "OFF") -> float:
    """Inserts of the same bodies, each a transaction."""
    with scratch() as folder:
        database = sqlite_table(folder / "messages.db", synchronous)

        def work() -> None:
            for _ in range(count):
                database.execute(_INSERT, (TOPIC, BODY))

        rate = per_second(count, work)
        database.close()
        return rate


def sqlite_fill(database: sqlite3.Connection, count: int) -> None:
    """So many messages, in one transaction."""
    database.execute("BEGIN")
    database.executemany(_INSERT, ((TOPIC, BODY) for _ in range(count)))
    database.execute("COMMIT")


def sqlite_read(database: sqlite3.Connection, count: int) -> float:
    """All messages by their number, 32 a query, the body of each."""

    def work() -> None:
        at = size = 0
        while at < count:
            query = "SELECT id, topic, body FROM messages WHERE id > ? ORDER BY id LIMIT 32"
            for number, _, body in database.execute(query, (at,)):
                size += len(body)
                at = number
        assert size == count * len(BODY)

    return per_second(count, work)


def outbox(count: int, *, relay: bool = True) -> float:
    """Business row and outbox row in one transaction (WAL, NORMAL); a relay takes 100 at a time and deletes them."""
    with scratch() as folder:
        database = business_table(folder / "outbox.db", "NORMAL")
        database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, topic TEXT, body BLOB)")

        def work() -> None:
            for number in range(1, count + 1):
                database.execute("BEGIN")
                insert_business(database)
                database.execute("INSERT INTO outbox (topic, body) VALUES (?, ?)", (TOPIC, BODY))
                database.execute("COMMIT")
                if relay and number % _RELAY == 0:
                    _relay(database)

        rate = per_second(count, work)
        database.close()
        return rate


def _relay(database: sqlite3.Connection) -> None:
    rows = database.execute("SELECT id, topic, body FROM outbox ORDER BY id LIMIT ?", (_RELAY,)).fetchall()
    database.execute("DELETE FROM outbox WHERE id <= ?", (rows[-1][0],))


def business_only(count: int) -> float:
    """The user's own insert alone: what both sides pay anyway."""
    with scratch() as folder:
        database = business_table(folder / "business.db", "NORMAL")

        def work() -> None:
            for _ in range(count):
                insert_business(database)

        rate = per_second(count, work)
        database.close()
        return rate
