"""Blocks: a local transaction and its message, tied together by a row in the database.

::

    enter   begin or join the database transaction │ half message stored │ row (id, committed) inserted
    leave   the session commits                     the message commits
    raised  the session rolls back                  the row is read as by a check, which inserts (id, rolled_back) if
                                                    there is none; the message ends by its outcome, or a check does it

In:     a handle, a message.
Out:    both are committed, or neither.
Always: the message commits only after the session did, and rolls back only when a row of the commit can never appear.
Not here: the meaning of a row (`rows`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from txstore.coroutines import run_now
from txstore.database.rows import already, answer, insert, outcome_of
from txstore.database.session import Handle, RowGoneError
from txstore.database.statements import MUST_BE_COMMITTED
from txstore.errors import AlreadyEndedError, InvalidOptionError, TxStoreError
from txstore.message import LocalTransactionState, Message, TransactionState
from txstore.producer import QueueSelector, Transaction, TransactionProducer
from txstore.producer.local_transaction import error_text

__all__ = ["AsyncDatabaseTransaction", "DatabaseTransaction"]

_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_log = logging.getLogger("txstore.database")


class _Block(Transaction):
    """The common part of the blocking and the asyncio block."""

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message | Sequence[Message],
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
        handle: Handle,
        identity: Callable[[], str],
        forget_identity: Callable[[], str],
    ) -> None:
        super().__init__(producer, message, queue_id, selector, arg)
        self._handle = handle
        self._find_identity = identity
        self._forget_identity = forget_identity
        self._identity = ""
        self._born_ms = 0
        # A message that has an id was sent before, so another block may have committed a row for this id.
        self._resent = self._message.transaction_id is not None

    def commit(self) -> None:
        """Undoes a `rollback()`. Leaving the block commits the session, then the message."""
        self._want(_COMMIT)

    def rollback(self) -> None:
        """Makes leaving the block roll back the session, then the message."""
        self._want(_ROLLBACK)

    def _want(self, state: LocalTransactionState) -> None:
        transaction_id = self.transaction_id
        if self._left:
            raise InvalidOptionError(
                f"the block of transaction {transaction_id} was already left\n"
                "hint: call it inside the block; broker.end_transaction(id, state) ends one by hand, whatever the "
                "database says"
            )
        self._begun.wanted = state

    async def _enter(self) -> None:
        self._handle.must_be_usable()
        self._born_ms = time.time_ns() // 1_000_000
        try:
            await self._handle.begin()
            if self._resent:
                await self._must_be_new()
            await self._ask(Transaction.__enter__, self)
            await insert(self._handle, self.transaction_id, self._identity, self._forget_identity)
            self._handle.mark(MUST_BE_COMMITTED, transaction_id=self.transaction_id)
        except BaseException as error:
            await self._not_begun(error)
            raise

    async def _must_be_new(self) -> None:
        """Raises AlreadyEndedError for a message that was sent before and whose local transaction has ended."""
        transaction_id = self._message.transaction_id
        assert transaction_id is not None
        outcome = await outcome_of(self._handle, transaction_id)
        if outcome is not None:
            raise already(transaction_id, outcome)

    async def _ask(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls the broker."""
        call(*arguments)

    async def _not_begun(self, error: BaseException) -> None:
        """Cleans up after entering failed. No commit was sent, and the user's code has not run."""
        await self._roll_back_quietly()
        if self._local is None:
            return
        if isinstance(error, Exception) and not self._resent and not isinstance(error, AlreadyEndedError):
            # Only this block could have committed a row for this id, and it has not.
            try:
                await self._end(_ROLLBACK)
            except TxStoreError as failed:
                _log.warning("the message could not be rolled back: %s", failed, extra={"reason": str(failed)})
        else:
            self._leave_to_check(error)

    async def _leave(self, error: BaseException | None) -> None:
        self._left = True
        try:
            if error is None and self._begun.wanted is not _ROLLBACK:
                await self._commit_both()
            elif error is None:
                await self._settle()
                if self.state is _COMMIT:
                    raise AlreadyEndedError(
                        f"transaction {self.transaction_id} cannot be rolled back: the session was committed inside",
                        outcome=TransactionState.COMMITTED,
                    )
            elif isinstance(error, Exception):
                await self._settle()
                self._begun.error = error_text(error)
            else:
                await self._roll_back_quietly()
                self._leave_to_check(error)
        except BaseException as failed:
            if self.state is LocalTransactionState.UNKNOWN:
                self._leave_to_check(failed)
            raise

    async def _commit_both(self) -> None:
        try:
            if not self._handle.kept():
                await self._must_hold_row()
            await self._commit_session()
        except Exception as failed:
            # The row tells whether the commit took effect.
            await self._settle()
            self._begun.error = error_text(failed)
            raise
        await self._end(_COMMIT)

    async def _must_hold_row(self) -> None:
        """Raises AlreadyEndedError unless the row is committed: a rollback inside the block may have removed it."""
        if await outcome_of(self._handle, self.transaction_id) is not TransactionState.COMMITTED:
            raise self._rolled_back_inside()

    async def _commit_session(self) -> None:
        try:
            await self._handle.commit()
        except RowGoneError as gone:
            raise self._rolled_back_inside() from gone

    def _rolled_back_inside(self) -> AlreadyEndedError:
        return AlreadyEndedError(
            f"the session was rolled back inside the block, and with it the row of transaction {self.transaction_id}: "
            "nothing is committed, and the message is rolled back\n"
            "hint: tx.rollback() drops both; to continue after a failed statement, use a savepoint",
            outcome=TransactionState.ROLLED_BACK,
        )

    async def _settle(self) -> None:
        """Rolls the session back and ends the message by the row, as a check would."""
        try:
            await self._handle.rollback()
            outcome = await answer(self._handle, self.transaction_id, self._identity, self._born_ms)
        except Exception as failed:
            await self._roll_back_quietly()
            self._leave_to_check(failed)
            return
        await self._end(_COMMIT if outcome is TransactionState.COMMITTED else _ROLLBACK)

    async def _roll_back_quietly(self) -> None:
        try:
            await self._handle.rollback()
        except Exception as error:
            _log.warning("the session could not be rolled back: %s", error, extra={"reason": str(error)})

    async def _end(self, state: LocalTransactionState) -> None:
        """Ends the message. A temporary failure is logged, and a check settles it."""
        self._begun.wanted = state
        await self._ask(Transaction.__exit__, self, None, None, None)

    def _leave_to_check(self, error: BaseException) -> None:
        Transaction.__exit__(self, type(error), error, error.__traceback__)


class DatabaseTransaction(_Block):
    """A transaction around a blocking session: `with producer.transaction(message, session=session) as tx`."""

    def __enter__(self) -> Self:
        self._identity = self._find_identity()
        run_now(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self._leave(error))


class AsyncDatabaseTransaction(_Block):
    """A transaction around an async session: `async with producer.transaction(message, session=session) as tx`."""

    async def __aenter__(self) -> Self:
        self._identity = await asyncio.to_thread(self._find_identity)
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _ask(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls the broker in a thread, because a remote broker answers later, perhaps over this very loop. A call that
        has begun is awaited even if it is cancelled: whether the half message was stored must be known."""
        work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    def __enter__(self) -> NoReturn:
        raise InvalidOptionError(
            "the session is async\nhint: `async with producer.transaction(message, session=session)`", option="session"
        )
