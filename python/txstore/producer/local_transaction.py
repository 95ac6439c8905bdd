"""Local transactions: tracks one transaction in the process that runs it, without I/O.

In:     what happens: the half message was stored, the local transaction answered, raised or was left, an end failed.
Out:    what the broker must still be told, and the state and error that users see.
Always: an answer that is not a state is UNKNOWN. A rollback that failed never becomes a commit.
Not here: storing and ending (`producer`, `aio`), which differ only by `await`.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import Generic, TypeVar

from txstore.errors import (
    AlreadyEndedError,
    InvalidMessageError,
    InvalidOptionError,
    TransactionNotFoundError,
    TxStoreError,
    WrongGroupError,
)
from txstore.listener import parse_answer
from txstore.message import (
    Half,
    LocalTransactionState,
    Message,
    TransactionSendResult,
)

__all__ = ["LocalTransaction", "TransactionBlock", "error_text", "messages_of", "not_a_message", "without_delay"]

H = TypeVar("H", bound=Half)
_UNKNOWN = LocalTransactionState.UNKNOWN
_log = logging.getLogger("txstore.producer")


class LocalTransaction(Generic[H]):
    """One transaction: its half message and its intended outcome."""

    __slots__ = ("error", "exception", "group", "half", "message", "state", "transaction_id", "wanted")

    def __init__(self, group: str, half: H, message: Message) -> None:
        """`message` is the message as it was given; `self.message` has its transaction id."""
        self.group: str = group
        self.half: H = half
        self.transaction_id: str = half.message_id
        self.message: Message = message.with_transaction_id(self.transaction_id)
        self.wanted: LocalTransactionState = _UNKNOWN
        """The outcome to tell the broker."""
        self.state: LocalTransactionState = _UNKNOWN
        """The outcome that the broker was told."""
        self.error: str | None = None
        """In one line, why a check must settle the transaction; None if it need not."""
        self.exception: BaseException | None = None
        """The exception that `error` describes."""

    def answered(self, answer: object) -> None:
        """Takes the local transaction's return value. Anything but a state counts as UNKNOWN."""
        if isinstance(answer, LocalTransactionState):
            self.wanted = answer
        else:
            self.wanted, self.error = parse_answer(answer, "the local transaction")
            self.exception = InvalidOptionError(
                f"{self.error}\nhint: return LocalTransactionState.COMMIT, ROLLBACK or UNKNOWN", option="executer"
            )
            self._warn("local transaction returned no state", str(self.error))

    def raised(self, error: Exception) -> None:
        """Notes that the local transaction raised, which counts as UNKNOWN."""
        self.error, self.exception = error_text(error), error
        fields = self._fields(reason=self.error)
        _log.warning("transaction %s: local transaction raised", self.transaction_id, exc_info=True, extra=fields)

    def left_by(self, error: BaseException) -> None:
        """Notes that an exception left the block, which leaves the transaction UNKNOWN."""
        self.wanted = _UNKNOWN
        self.error, self.exception = error_text(error), error
        fields = self._fields(reason=type(error).__name__)
        _log.info("transaction left unknown by an exception", extra=fields)

    def end_failed(self, error: TxStoreError) -> None:
        """Notes that telling the broker `wanted` failed. A check settles the transaction."""
        self.error, self.exception = error_text(error), error
        self._warn("transaction could not be ended", self.error, state=self.wanted.name)

    def result(self) -> TransactionSendResult:
        """Returns the result of `send_in_transaction`."""
        return TransactionSendResult(self.half, self.wanted, self.message, self.error, self.exception)

    def _fields(self, **more: object) -> dict[str, object]:
        return {
            "transaction_id": self.transaction_id,
            "group": self.group,
            "half_queue_offset": self.half.queue_offset,
        } | more

    def _warn(self, what: str, reason: str, **more: object) -> None:
        fields = self._fields(reason=reason, **more)
        _log.warning("transaction %s of group %s: %s: %s", self.transaction_id, self.group, what, reason, extra=fields)


class TransactionBlock(Generic[H]):
    """The common part of the blocking and the asyncio block `with producer.transaction(message) as tx`.

    CONTRADICTIONS are the errors of an end that contradicts how the transaction ended. Leaving the block raises them.
    It logs all others and keeps them in `error`, and a check settles the transaction.
    """

    CONTRADICTIONS = (AlreadyEndedError, WrongGroupError, TransactionNotFoundError)

    def __init__(self, message: Message | Sequence[Message]) -> None:
        self._messages = messages_of(message)
        self._message = self._messages[0]
        self._local: LocalTransaction[H] | None = None
        self._left = False

    @property
    def transaction_id(self) -> str:
        """The id that the local transaction should store, so that a check finds it there."""
        return self._begun.transaction_id

    @property
    def message(self) -> Message:
        """The message, or the first of several. It has its transaction id once the block was entered."""
        return self._message if self._local is None else self._local.message

    @property
    def send_result(self) -> H:
        """Where its half message was stored. Raises InvalidOptionError before the block was entered."""
        return self._begun.half

    @property
    def state(self) -> LocalTransactionState:
        """The outcome that the broker was told; UNKNOWN before that."""
        return _UNKNOWN if self._local is None else self._local.state

    @property
    def error(self) -> str | None:
        """In one line, why a check must settle the transaction; None if nothing went wrong."""
        return None if self._local is None else self._local.error

    @property
    def _begun(self) -> LocalTransaction[H]:
        if self._local is None:
            raise InvalidOptionError(
                "the transaction has not begun\nhint: use it as `with producer.transaction(message) as tx`, "
                "or `async with` where the producer is asyncio's"
            )
        return self._local

    def _must_not_have_begun(self) -> None:
        if self._local is not None:
            raise InvalidOptionError("the transaction has begun already\nhint: one block is one transaction")

    def _still_to_tell(self, error: BaseException | None) -> LocalTransactionState:
        """Notes that the block is left and returns what to tell the broker, UNKNOWN if nothing."""
        self._left = True
        local = self._begun
        if local.state is not _UNKNOWN:
            return _UNKNOWN
        if error is not None:
            local.left_by(error)
            return _UNKNOWN
        return LocalTransactionState.COMMIT if local.wanted is _UNKNOWN else local.wanted


def messages_of(given: object) -> tuple[Message, ...]:
    """Returns the messages of a transaction: one message, or a list of them.

    Raises InvalidMessageError for something else, an empty list, and a list with a message that was sent before.
    """
    if isinstance(given, Message):
        return (given,)
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise not_a_message(given)
    for message in given:
        if not isinstance(message, Message):
            raise not_a_message(message)
        if message.transaction_id is not None and len(given) > 1:
            raise InvalidMessageError(
                f"message {message.transaction_id} was sent before, so it cannot be one of {len(given)} messages of a "
                "transaction\nhint: create the message again, or send it in a transaction of its own"
            )
    if not given:
        raise InvalidMessageError("a transaction has at least one message, got none")
    return tuple(given)


def not_a_message(given: object) -> InvalidMessageError:
    """Returns the error for something else that was sent instead of a message."""
    return InvalidMessageError(
        f"expected a Message, got {type(given).__name__}\nhint: send txstore.Message(topic, body)"
    )


def without_delay(message: Message, group: str, *, stacklevel: int) -> Message:
    """Returns the message without its delay level, and warns, because a transactional message cannot be delayed.

    RocketMQ's producer clears it, too. docs/internals/transactions.md says why.
    """
    if not message.delay_level:
        return message
    warnings.warn(
        "a transactional message cannot be delayed: its delay level is cleared\n"
        "hint: broker.producer(group, database=database).send(message, session=session) delays it from the commit on",
        stacklevel=stacklevel + 1,
    )
    _log.warning(
        "delay level cleared", extra={"topic": message.topic, "group": group, "delay_level": message.delay_level}
    )
    return message.replace(delay_level=0)


def error_text(error: BaseException) -> str:
    """Returns an exception as one line: its class and its text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
