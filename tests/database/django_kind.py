"""Django's connections to the databases of the tests, within the process of the tests.

In:     the path of a SQLite file, or the URL of a running server.
Out:    an alias of Django for it, and connections.
Always: Django is configured by the first alias. Its check for event loops is off, because tests of blocking sessions
        run on one.
Not here: a project with settings and tests of its own (`django_shop`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy.engine import make_url

__all__ = ["alias_of", "atomic_session", "connection_of", "disconnect", "execute"]


def settings_of(address: str) -> dict[str, Any]:
    """Django's settings of a database."""
    if "://" not in address:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address, "OPTIONS": {"timeout": 60}}
    url = make_url(address)
    if address.startswith("postgresql"):
        host = str(url.query["host"])
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username or "txstore",
            "HOST": host,
        }
    socket = str(url.query["unix_socket"])
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": url.database,
        "USER": url.username,
        "HOST": socket,
        "OPTIONS": {"ssl_disabled": True},  # PyMySQL reads all authorities for each connection, which takes 40 ms.
    }


def alias_of(address: str) -> str:
    """Returns the alias of a database, and makes Django know it."""
    import django
    from django.conf import settings

    if not settings.configured:
        import pymysql

        pymysql.install_as_MySQLdb()
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
        settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    from django.db import connections

    alias = "shop-" + hashlib.sha256(address.encode()).hexdigest()[:16]
    connections.settings.update(connections.configure_settings({"default": {}, alias: settings_of(address)}))
    return alias


@contextmanager
def connection_of(alias: str) -> Iterator[Any]:
    """This thread's connection, in autocommit mode as Django has it; what it did not commit is lost."""
    from django.db import connections

    try:
        yield connections[alias]
    finally:
        disconnect(alias)


def disconnect(alias: str) -> None:
    """Closes this thread's connection. The next use connects again."""
    from django.db import connections

    with suppress(Exception):  # A test may have closed the driver's connection.
        connections[alias].close()
    with suppress(AttributeError):
        del connections[alias]


def execute(connection: Any, sql: str, values: Any = None) -> None:
    """Executes a statement on a connection of Django."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def atomic_session(alias: str) -> Any:
    """A session as those of other drivers: always inside `transaction.atomic()`, which `commit` and `rollback` end."""
    from django.db import connections, transaction
    from django.utils.connection import ConnectionProxy

    class AtomicSession(ConnectionProxy):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(connections, alias)
            self._begin()

        def _begin(self) -> None:
            self.__dict__["atomic"] = transaction.atomic(using=alias)
            self.__dict__["atomic"].__enter__()

        def execute(self, sql: str) -> None:
            execute(connections[alias], sql)

        def commit(self) -> None:
            self.__dict__["atomic"].__exit__(None, None, None)
            self._begin()

        def rollback(self) -> None:
            transaction.set_rollback(True, using=alias)
            self.commit()

        def close(self) -> None:
            disconnect(alias)

    return AtomicSession()
