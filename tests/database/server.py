"""Real database servers: started on a socket in a temporary folder, by a user without rights. Here PostgreSQL, of
Debian's package.

Out:    a running server and databases on it; what another kind of server has in common with it.
Always: no port is opened; the server is stopped, and its folder removed, at the end of the block.
Not here: MariaDB (`mariadb_server`).
"""

import abc
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

__all__ = [
    "ORDERS",
    "Postgres",
    "Server",
    "folder_of_server",
    "postgres_or_skip",
    "running",
    "running_postgres",
    "wait_for",
]

T = TypeVar("T")

ORDERS = "CREATE TABLE orders (number BIGINT PRIMARY KEY, transaction_id VARCHAR(255))"
"""The user's own table, in every database of the tests."""

_SCHEMAS = r"SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'"
"""All tables, views, types and functions that are not PostgreSQL's own are in these schemas."""


@dataclass
class Server(abc.ABC):
    """A running server; each test gets a database of its own, new or cleaned after another test."""

    folder: Path
    made: int = 0
    free: list[str] = field(default_factory=list)

    @abc.abstractmethod
    def url(self, database: str) -> str:
        """The URL of a database."""

    @abc.abstractmethod
    def create(self, name: str) -> None:
        """Creates a database with the user's table alone."""

    @abc.abstractmethod
    def give_back(self, url: str) -> None:
        """Cleans a database, for another test: what `create` does not make is removed."""

    def new(self) -> str:
        """The name of a database with the user's table alone."""
        if self.free:
            return self.free.pop()
        self.made += 1
        name = f"test_{os.getpid()}_{self.made}"
        self.create(name)
        return name


@contextmanager
def folder_of_server(prefix: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A temporary folder, and the arguments of `subprocess` for the user who owns it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # The servers refuse to run with root's rights.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        yield folder, user
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    command: Sequence[Any], folder: Path, user: dict[str, Any], stop: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server, whose output is in the file `log`, until the end of the block."""
    with (folder / "log").open("wb") as log:
        process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **user)
    try:
        yield process
    finally:
        process.send_signal(stop)
        process.wait(30)


def wait_for(
    connect: Callable[[], T], refused: type[Exception], process: subprocess.Popen[bytes], folder: Path, seconds: float
) -> T:
    """Connects to a server as soon as it does not refuse that."""
    until = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except refused:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.02)


class Postgres(Server):
    """A running PostgreSQL."""

    def url(self, database: str) -> str:
        return f"postgresql://txstore@/{database}?host={self.folder}"

    def create(self, name: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(self.url(name)) as connection:
            connection.execute(ORDERS)

    def give_back(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SET lock_timeout = '20s'")
            for (schema,) in connection.execute(_SCHEMAS).fetchall():
                connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
            connection.execute("CREATE SCHEMA public")
            connection.execute(ORDERS)
        self.free.append(url.split("/")[3].split("?")[0])


@contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[Postgres | None]:
    """Runs a server until the end of the block; None: it is not installed. `durable`: commits are synced to disk."""
    server, initdb = _program("postgres"), _program("initdb")
    if server is None or initdb is None:
        yield None
        return
    with folder_of_server("txstore-postgres-") as (folder, user):
        data = folder / "data"
        init: list[Any] = [initdb, "-D", data, "-U", "txstore", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, timeout=120, **user)
        settings = ["listen_addresses=", f"fsync={'on' if durable else 'off'}", "max_connections=100"]
        command: list[Any] = [server, "-D", data, "-k", folder, *(part for one in settings for part in ("-c", one))]
        with running(command, folder, user, signal.SIGINT) as process:
            found = Postgres(folder)
            wait_for(
                lambda: psycopg.connect(found.url("postgres")), psycopg.OperationalError, process, folder, 30
            ).close()
            yield found


@contextmanager
def postgres_or_skip() -> Iterator[Postgres]:
    """The same for a fixture: skips its tests if the server is not installed."""
    with running_postgres() as server:
        if server is None:
            pytest.skip("PostgreSQL is not installed here: apt-get install postgresql")
        yield server


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)
