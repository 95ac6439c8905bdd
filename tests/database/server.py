"""A real PostgreSQL: Debian's package, started on a socket in a temporary folder, by a user without rights.

Out:    a running server and databases on it.
Always: no port is opened; the server is stopped, and its folder removed, at the end of the block.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["ORDERS", "Postgres", "running_postgres"]

ORDERS = "CREATE TABLE orders (number BIGINT PRIMARY KEY, transaction_id VARCHAR(255))"
"""The user's own table, in every database of the tests."""


@dataclass
class Postgres:
    """A running server; each test gets a database of its own, new or cleaned after another test."""

    folder: Path
    made: int = 0
    free: list[str] = field(default_factory=list)

    def url(self, database: str) -> str:
        return f"postgresql://txstore@/{database}?host={self.folder}"

    def new(self) -> str:
        """The name of a database with the user's table alone."""
        if self.free:
            return self.free.pop()
        self.made += 1
        name = f"test_{os.getpid()}_{self.made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(self.url(name)) as connection:
            connection.execute(ORDERS)
        return name

    def give_back(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM orders")
            connection.execute("DROP TABLE IF EXISTS txstore_transactions, txstore_inbox, txstore_outbox")
        self.free.append(url.split("/")[3].split("?")[0])


@contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[Postgres | None]:
    """Runs a server until the end of the block; None: it is not installed. `durable`: commits are synced to disk."""
    server, initdb = _program("postgres"), _program("initdb")
    if server is None or initdb is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="txstore-postgres-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # The server refuses to run with root's rights.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    try:
        init: list[Any] = [initdb, "-D", data, "-U", "txstore", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, timeout=120, **user)
        settings = ["listen_addresses=", f"fsync={'on' if durable else 'off'}", "max_connections=100"]
        command: list[Any] = [server, "-D", data, "-k", folder, *(part for one in settings for part in ("-c", one))]
        with (folder / "log").open("wb") as log:
            running: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **user)
        try:
            found = Postgres(folder)
            _wait_for(found, running)
            yield found
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def _wait_for(server: Postgres, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(server.url("postgres")).close()
            return
        except psycopg.OperationalError:
            assert running.poll() is None, (server.folder / "log").read_text()
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.02)
