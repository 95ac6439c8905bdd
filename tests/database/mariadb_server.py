"""A real MariaDB: Debian's package, started on a socket in a temporary folder, by a user without rights.

Out:    a running server and databases on it.
Always: no port is opened; the server is stopped, and its folder removed, at the end of the block.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from sqlalchemy.engine import make_url

from tests.database.server import ORDERS, Server, folder_of_server, running, wait_for

__all__ = ["MariaDB", "connected", "running_mariadb"]


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


class MariaDB(Server):
    """A running MariaDB."""

    def url(self, database: str) -> str:
        return f"mysql+pymysql://txstore@localhost/{database}?unix_socket={self.folder}/socket"

    def create(self, name: str) -> None:
        with closing(connected(self.url("mysql"))) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute(f"USE {name}")
            connection.execute(ORDERS)

    def give_back(self, url: str) -> None:
        name = str(make_url(url).database)
        with closing(connected(url)) as connection:
            connection.execute("SET lock_wait_timeout = 20")
            connection.execute(f"DROP DATABASE {name}")
        self.create(name)
        self.free.append(name)


@contextmanager
def running_mariadb(*, durable: bool = False) -> Iterator[MariaDB | None]:
    """Runs a server until the end of the block; None: it is not installed. `durable`: commits are synced to disk."""
    server, install = shutil.which("mariadbd", path=_PATH), shutil.which("mariadb-install-db", path=_PATH)
    if server is None or install is None:
        yield None
        return
    with folder_of_server("txstore-mariadb-") as (folder, user):
        data = folder / "data"
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
        with running([server, "--no-defaults", *settings], folder, user, signal.SIGTERM) as process:
            found = MariaDB(folder)
            with closing(wait_for(lambda: _as_root(found), OSError, process, folder, 60)) as root:
                root.execute("CREATE USER txstore@localhost")
                root.execute("GRANT ALL ON *.* TO txstore@localhost WITH GRANT OPTION")
            yield found


_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


def _as_root(server: MariaDB) -> Any:
    with socket.socket(socket.AF_UNIX) as probe:  # PyMySQL leaves its socket open if it cannot connect.
        probe.connect(f"{server.folder}/socket")
    return connected(server.url("mysql").replace("txstore@", "root@", 1))
