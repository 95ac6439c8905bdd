"""Sessions: one interface to the users' connections and sessions of all drivers, blocking and asyncio.

In:     a connection or session of sqlite3, SQLAlchemy or psycopg, or what to open one from.
Out:    a `Handle`.
Always: no driver is imported before one of its objects is used. A session that cannot be used is refused before
        anything is done, with a hint.
Not here: the statements.

A handle's methods are coroutines, so that the code that uses them exists once. Those of a blocking handle never wait,
and `txstore.coroutines.run_now` runs them to the end in the caller's thread.
"""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from txstore.database.statements import Statement
from txstore.errors import InvalidOptionError

__all__ = [
    "Handle",
    "RowGoneError",
    "Source",
    "handle_of",
    "named",
    "open_handle",
    "refused",
    "with_engine",
]

_ADAPTERS = {"sqlite3": "sqlite", "_sqlite3": "sqlite"} | {
    name: name for name in ("aiosqlite", "asyncpg", "django", "psycopg", "sqlalchemy")
}
_MARIADB = ("mariadb", "mysql")
_POSTGRESQL = ("postgresql", "postgres")
_FOUND: dict[type, Any] = {}  # Looking up an adapter takes as long as a small statement.
_HINT = "a connection of sqlite3, aiosqlite, psycopg, asyncpg, Django or SQLAlchemy, or a SQLAlchemy session"
Source = Any
"""The source of a database: a path, a URL, an Engine, an AsyncEngine, or a function that connects."""


class RowGoneError(Exception):
    """The transaction to be committed does not have the marked row. A block turns this into an error for users."""


class Handle(Protocol):
    """A connection or session, and the database transaction on it."""

    asynchronous: bool

    def must_be_usable(self) -> None:
        """Raises InvalidOptionError if it is closed, or if something around it would commit after the block."""

    async def begin(self) -> None:
        """Begins a database transaction, or joins the current one."""

    async def join(self) -> None:
        """Checks that a statement becomes part of a transaction that the user ends, and begins it where drivers do.

        Raises InvalidOptionError for a session that is closed, failed, or commits each statement at once.
        """

    def orm_session(self) -> tuple[Any, Any] | None:
        """Returns SQLAlchemy's blocking session, which tells of its commits, and the driver's connection of the begun
        transaction; None without a session of SQLAlchemy."""

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        """Makes `call` run with the driver's connection after the outermost commit; False if nothing tells of it."""

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        """Executes a statement; returns how many rows it changed, and the first value that it found."""

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        """Executes a statement; returns the rows that it found."""

    async def execute(self, sql: str) -> None:
        """Executes a statement without parameters."""

    async def dialect(self) -> str:
        """Returns `sqlite`, `postgresql` or `mariadb`. Raises InvalidOptionError for another server."""

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Remembers the current transaction, and a statement that fails if its row is missing."""

    def kept(self) -> bool:
        """Tells whether it is still in the marked transaction, or `commit` will check. If not, check before."""

    async def commit(self) -> None:
        """Commits. Raises RowGoneError, and commits nothing, if it checked for the marked row and there is none."""

    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


def refused(what: str, hint: str) -> InvalidOptionError:
    """Returns the error for a session that cannot be used."""
    return InvalidOptionError(f"{what}\nhint: {hint}", option="session")


def _adapter_of(kind: type) -> Any:
    """Returns the adapter module for a driver's class; None if there is none."""
    if kind not in _FOUND:
        roots = (cls.__module__.split(".")[0] for cls in kind.__mro__)
        name = next((_ADAPTERS[root] for root in roots if root in _ADAPTERS), None)
        _FOUND[kind] = None if name is None else importlib.import_module(f"txstore.database.{name}")
    return _FOUND[kind]


def handle_of(session: object) -> Handle:
    """Returns the handle of a user's connection or session. Raises InvalidOptionError for any other object."""
    adapter = _adapter_of(type(session))
    handle: Handle | None = None if adapter is None else adapter.handle(session)
    if handle is None:
        what = session.__name__ if isinstance(session, type) else type(session).__name__
        raise refused(f"session= must be a connection or a session, got {what}", f"pass {_HINT}")
    return handle


def must_be_source(source: Source) -> None:
    """Raises InvalidOptionError if no database can be opened from `source`."""
    if isinstance(source, (str, os.PathLike)):
        if isinstance(source, str) and (source in ("", ":memory:") or "mode=memory" in source):
            raise InvalidOptionError(
                "a SQLite database in memory exists for one connection only, so a check would not see it\n"
                "hint: a file; in tests, one in a temporary folder",
                option="database",
            )
        if isinstance(source, str) and "://" in source:
            _must_be_known(source.split("://")[0])
        return
    adapter = _adapter_of(type(source))
    if adapter is not None and adapter.is_source(source):
        return
    if callable(source) and (adapter is None or adapter.handle(source) is None):  # A sqlite3 connection is callable.
        return
    raise InvalidOptionError(
        f"a database cannot be opened from {type(source).__name__}\n"
        "hint: the path of a SQLite file, a postgresql:// or mysql+pymysql:// URL, a SQLAlchemy engine, or a function "
        "that connects",
        option="database",
    )


def _must_be_known(scheme: str) -> None:
    """Raises InvalidOptionError for a URL from which no database can be opened."""
    if scheme not in ("file", *_POSTGRESQL) and scheme.partition("+")[0] not in _MARIADB:
        raise InvalidOptionError(
            f"a database cannot be opened from a URL with {scheme}://\n"
            "hint: postgresql://… (psycopg), mysql+pymysql://… or the path of a SQLite file; for other drivers, pass a "
            "SQLAlchemy engine to Database",
            option="database",
        )


def with_engine(source: Source) -> Source:
    """Returns SQLAlchemy's engine for a URL of MariaDB, without a pool; other sources unchanged."""
    if isinstance(source, str) and "://" in source and re.split(r"[+:]", source, maxsplit=1)[0] in _MARIADB:
        try:
            module: Any = importlib.import_module("txstore.database.sqlalchemy")
            return module.engine_of(source)
        except ModuleNotFoundError as error:
            raise InvalidOptionError(
                f"{source.split('://')[0]}:// needs {error.name}, which is not installed\n"
                "hint: pip install sqlalchemy pymysql, and use mysql+pymysql://…",
                option="database",
            ) from error
    return source


async def open_handle(source: Source, *, make: bool = False, keep: bool = False) -> Handle:
    """Opens a new connection; with `make`, creates a missing SQLite file. One to `keep` is not of the user's
    pool."""
    if isinstance(source, str) and source.split("://")[0] in _POSTGRESQL:
        return await _opened("psycopg", source)
    if isinstance(source, (str, os.PathLike)):
        return await _opened("sqlite", os.fspath(source), make)
    if callable(source):
        return handle_of(source())
    return await _opened("sqlalchemy", source, keep)


async def _opened(adapter: str, *arguments: object) -> Handle:
    module: Any = importlib.import_module(f"txstore.database.{adapter}")
    handle: Handle = await module.opened(*arguments)
    return handle


def is_asynchronous(source: Source) -> bool:
    """Tells whether the source can only be opened in an event loop."""
    return hasattr(source, "sync_engine")


def named(source: Source) -> str:
    """Describes a source in words, without its password."""
    url = getattr(source, "url", None)
    if url is not None:
        return str(url.render_as_string(hide_password=True))
    if isinstance(source, str) and "://" in source:
        return source.split("://")[0] + "://…@" + source.rsplit("@")[-1] if "@" in source else source
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "described", "what its function connects to"))
