"""Inbox: handles each message once for a consumer group, in the user's own database transaction.

::

    inbox = database.inbox("shipping")
    for message in consumer:
        with inbox.handle(message, session) as first:      # async with, for an async session
            if first:
                session.add(…)                             # leaving commits the session, with the inbox's row

In:     messages that may be delivered more than once, and a session.
Out:    whether this is the first time.
Always: the row that says "handled" commits together with the user's changes.
Not here: acknowledging, which comes afterwards (`consumer`).
"""

import time
from types import TracebackType

from txstore._native import validate_group
from txstore.coroutines import run_now
from txstore.database.rows import table_is_missing
from txstore.database.session import Handle, handle_of, refused
from txstore.database.statements import INSERT_HANDLED, SELECT_HANDLED
from txstore.errors import InvalidOptionError
from txstore.message import ReceivedMessage

__all__ = ["Handling", "Inbox"]


class Inbox:
    """The inbox of a consumer group. Raises InvalidNameError for an invalid group name."""

    def __init__(self, consumer_group: str) -> None:
        validate_group(consumer_group)
        self._group = consumer_group

    def __repr__(self) -> str:
        return f"Inbox({self._group!r})"

    def handle(self, message: ReceivedMessage, session: object) -> "Handling":
        """Returns a block for handling `message`; `as first` tells whether it was not handled before.

        Leaving commits the session. An exception rolls it back and is raised on, so the message is delivered again. A
        message is identified by its unique id. Two blocks for the same message wait for each other. Raises
        InvalidOptionError for a session that cannot be used or has no inbox table; what the driver raises.
        """
        return Handling(self._group, message.message_id, handle_of(session))


class Handling:
    """The block for one message. Created by `inbox.handle`; `with` or `async with`, depending on the session."""

    def __init__(self, group: str, message_id: str, handle: Handle) -> None:
        self._key = {"consumer_group": group, "message_id": message_id}
        self._handle = handle

    def __enter__(self) -> bool:
        if self._handle.asynchronous:
            raise refused("the session is async", "`async with inbox.handle(message, session)`")
        return run_now(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self._leave(error))

    async def __aenter__(self) -> bool:
        if not self._handle.asynchronous:
            raise refused("the session is not async", "`with inbox.handle(message, session)`")
        return await self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _enter(self) -> bool:
        self._handle.must_be_usable()
        try:
            await self._handle.begin()
            written, _ = await self._handle.run(INSERT_HANDLED, **self._key, now_ms=time.time_ns() // 1_000_000)
            self._handle.mark()
        except BaseException as error:
            await self._handle.rollback()
            if table_is_missing(error):
                raise InvalidOptionError(
                    "there is no table txstore_inbox in the session's database\n"
                    "hint: call database.create_table() once, or execute txstore.database.DDL in a migration",
                    option="session",
                ) from error
            raise
        return written == 1

    async def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            await self._handle.rollback()
            return
        try:
            if not self._handle.kept():
                await self._must_hold_row()
            await self._handle.commit()
        except BaseException:
            await self._handle.rollback()
            raise

    async def _must_hold_row(self) -> None:
        if (await self._handle.run(SELECT_HANDLED, **self._key))[1] is None:
            raise InvalidOptionError(
                f"the session was rolled back inside the block, and with it the row that says that message "
                f"{self._key['message_id']} was handled\nhint: leave by an exception, and the message is delivered "
                "again; to continue after a failed statement, use a savepoint",
                option="session",
            )
