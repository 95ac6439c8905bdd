"""Django 5: handles for its connections, on SQLite, PostgreSQL and MariaDB.

In:     `django.db.connections[alias]`, and an alias from which new connections are opened.
Out:    handles.
Always: a message is sent inside `transaction.atomic()`, which commits. A block or an inbox begins `atomic()` itself, so
        it is refused inside one, except that of a `TestCase`.
Not here: settings, the app and its command (`txstore.django`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from txstore.database.session import Handle, refused
from txstore.database.statements import Statement, is_duplicate
from txstore.errors import InvalidOptionError

__all__ = ["Alias", "DjangoHandle", "dialect_of", "handle", "is_source"]

_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mariadb"}
_MARIADB_MIN = (10, 6)
_BEGIN = {
    "sqlite": ("BEGIN IMMEDIATE",),
    "postgresql": ("BEGIN ISOLATION LEVEL READ COMMITTED",),
    "mariadb": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"),
}


class Alias:
    """A source of connections: those of an alias in Django's setting DATABASES, each a new one."""

    def __init__(self, using: str) -> None:
        connections[using]  # Raises ConnectionDoesNotExist.
        self.using = using

    def __call__(self) -> Any:
        connection = connections.create_connection(self.using)
        connection.txstore_owns = True
        connection.ensure_connection()  # Otherwise asking for MariaDB's version makes one, and closes it.
        return connection

    @property
    def described(self) -> str:
        """The database in words."""
        return f"Django's database {self.using!r}"


class _Base:
    """The common part: statements on a connection of Django."""

    asynchronous = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._dialect: str | None = None

    async def dialect(self) -> str:
        if self._dialect is None:
            self._dialect = dialect_of(self._connection)
        return self._dialect

    def orm_session(self) -> None:
        return None

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Does nothing: `kept` makes the block look before it commits."""

    def kept(self) -> bool:
        return False

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(await self._sql(statement), values)
            except IntegrityError as error:
                if statement.skips and is_duplicate(error):
                    return 0, None
                raise
            if cursor.description is None:
                return cursor.rowcount, None
            row = cursor.fetchone()
            return cursor.rowcount, None if row is None else row[0]

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(await self._sql(statement), values or None)
            return list(cursor.fetchall())

    async def execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    async def _sql(self, statement: Statement) -> str:
        return statement.mariadb if await self.dialect() == "mariadb" else statement.pyformat


class DjangoHandle(_Base):
    """The handle of the user's connection."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._atomic: Any = None

    def must_be_usable(self) -> None:
        blocks = self._connection.atomic_blocks
        if blocks and not blocks[-1]._from_testcase:
            raise refused(
                "the connection is inside transaction.atomic(), whose end would come after the message's",
                "leave atomic() out: the block begins and commits",
            )
        self._must_commit_itself()

    def _must_commit_itself(self) -> None:
        if not self._connection.in_atomic_block and not self._connection.get_autocommit():
            raise refused(
                "the connection's autocommit is off", "leave Django's default, AUTOCOMMIT, and use transaction.atomic()"
            )

    async def join(self) -> None:
        connection = self._connection
        if not connection.in_atomic_block:
            self._must_commit_itself()
            raise refused(
                "the connection commits each statement at once, and no transaction has begun",
                f"`with transaction.atomic(using={connection.alias!r}):` around send()",
            )
        if connection.needs_rollback:
            raise refused("the connection's transaction has failed", "leave the atomic() block before send()")
        await self.dialect()

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        connection = self._connection
        transaction.on_commit(lambda: call(connection.connection), using=connection.alias, robust=True)
        return True

    async def begin(self) -> None:
        if self._atomic is None and (
            not self._connection.atomic_blocks or self._connection.atomic_blocks[-1]._from_testcase
        ):
            await self.dialect()
            self._atomic = transaction.atomic(using=self._connection.alias)
            self._atomic.__enter__()

    async def commit(self) -> None:
        begun, self._atomic = self._atomic, None
        if begun is not None:
            begun.__exit__(None, None, None)

    async def rollback(self) -> None:
        begun, self._atomic = self._atomic, None
        if begun is not None:
            self._connection.set_rollback(True)
            begun.__exit__(None, None, None)

    async def close(self) -> None:
        self._connection.close()


class _OwnHandle(_Base):
    """The handle of a connection of our own, in autocommit mode between its transactions."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._is_begun = False

    def must_be_usable(self) -> None:
        """Does nothing."""

    async def join(self) -> None:
        await self.begin()

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False

    async def begin(self) -> None:
        if not self._is_begun:
            for sql in _BEGIN[await self.dialect()]:
                await self.execute(sql)
            self._is_begun = True

    async def commit(self) -> None:
        await self._end("COMMIT")

    async def rollback(self) -> None:
        await self._end("ROLLBACK")

    async def _end(self, sql: str) -> None:
        if self._is_begun:
            self._is_begun = False
            await self.execute(sql)

    async def close(self) -> None:
        self._connection.close()


def dialect_of(connection: Any) -> str:
    """Returns the kind of the server. Raises InvalidOptionError for one that is not supported."""
    dialect, name = _DIALECTS.get(connection.vendor), connection.display_name
    if dialect == "mariadb":
        version = connection.mysql_version
        if not connection.mysql_is_mariadb or version < _MARIADB_MIN:
            dialect, name = None, f"{name} {'.'.join(map(str, version))}"
    if dialect is None:
        raise InvalidOptionError(
            f"unsupported database {name}\nhint: SQLite, PostgreSQL and MariaDB 10.6 or newer are supported",
            option="database",
        )
    return dialect


def handle(session: Any) -> Handle | None:
    if isinstance(session, BaseDatabaseWrapper):
        return _OwnHandle(session) if getattr(session, "txstore_owns", False) else DjangoHandle(session)
    # `django.db.connection` is a proxy of the default alias.
    below = getattr(session, "_connections", None)
    return None if below is None else DjangoHandle(below[session._alias])


def is_source(source: object) -> bool:
    """Returns False: an `Alias` is a function that connects."""
    return False
