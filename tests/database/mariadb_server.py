"""A real MariaDB: Debian's package, started on a socket in a temporary folder, by a user without rights.

Out:    a running server and databases on it.
Always: no port is opened; the server is stopped, and its folder removed, at the end of the block.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from tests.database.server import ORDERS

__all__ = ["MariaDB", "connected", "running_mariadb"]

_ALL = "SELECT table_name FROM information_schema.tables WHERE table_schema = database()"


def connected(url: str) -> Any:
    """A connection of PyMySQL to a `mysql+…://` URL of a running server, with `execute`."""
    parts = make_url(url)
    return _connection_class()(
        unix_socket=str(parts.query["unix_socket"]), user=parts.username, database=parts.database
    )


@cache
def _connection_class() -> Any:
    from pymysql.connections import Connection

    class Executing(Connection):  # type: ignore[misc]
        def execute(self, sql: str) -> Any:
            cursor = self.cursor()
            cursor.execute(sql)
            return cursor

    return Executing


@dataclass
class MariaDB:
    """A running server; each test gets a database of its own, new or cleaned after another test."""

    folder: Path
    made: int = 0
    free: list[str] = field(default_factory=list)

    def url(self, database: str) -> str:
        return f"mysql+pymysql://txstore@localhost/{database}?unix_socket={self.folder}/socket"

    def new(self) -> str:
        """The name of a database with the user's table alone."""
        if self.free:
            return self.free.pop()
        self.made += 1
        name = f"test_{os.getpid()}_{self.made}"
        with closing(connected(self.url("mysql"))) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute(f"USE {name}")
            connection.execute(ORDERS)
        return name

    def give_back(self, url: str) -> None:
        with closing(connected(url)) as connection:
            connection.execute("SET lock_wait_timeout = 20")
            for (table,) in connection.execute(_ALL).fetchall():
                connection.execute(f"DROP TABLE {table}")
            connection.execute(ORDERS)
        self.free.append(str(make_url(url).database))


@contextmanager
def running_mariadb(*, durable: bool = False) -> Iterator[MariaDB | None]:
    """Runs a server until the end of the block; None: it is not installed. `durable`: commits are synced to disk."""
    server, install = shutil.which("mariadbd", path=_PATH), shutil.which("mariadb-install-db", path=_PATH)
    if server is None or install is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="txstore-mariadb-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # The server refuses to run with root's rights.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    try:
        init = [
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, timeout=120, **user)
        settings = [
            "--skip-networking",
            f"--datadir={data}",
            f"--socket={folder}/socket",
            f"--pid-file={folder}/pid",
            # 2 writes at each commit, and syncs each second. The first `send` of a producer warns of it.
            f"--innodb-flush-log-at-trx-commit={1 if durable else 2}",
            "--innodb-buffer-pool-size=256M" if durable else "--innodb-buffer-pool-size=32M",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_general_ci",  # The usual one: it does not tell A from a.
        ]
        with (folder / "log").open("wb") as log:
            running: subprocess.Popen[bytes] = subprocess.Popen(
                [server, "--no-defaults", *settings], stdout=log, stderr=log, cwd=folder, **user
            )
        try:
            found = MariaDB(folder)
            _wait_for(found, running)
            yield found
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


def _wait_for(server: MariaDB, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:  # PyMySQL leaves its socket open if it cannot connect.
                probe.connect(f"{server.folder}/socket")
            root = connected(server.url("mysql").replace("txstore@", "root@", 1))
        except OSError:
            assert running.poll() is None, (server.folder / "log").read_text()
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.02)
        else:
            with closing(root):
                root.execute("CREATE USER txstore@localhost")
                root.execute("GRANT ALL ON *.* TO txstore@localhost WITH GRANT OPTION")
            return
