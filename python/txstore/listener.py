"""Listeners: adapts the user's code that runs a local transaction or answers a check.

In:     a `TransactionListener`, an object with one of RocketMQ's two older callbacks, or a plain function.
Out:    one kind of callable to run a local transaction, and one to answer a check.
Always: what a checker returns is passed on unchanged. `parse_answer` tells what it means.
Not here: threads and time limits (`transactions`), the effect of an answer (`producer`).
"""

import abc
import inspect
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, Protocol, TypeAlias, TypeVar

from txstore.errors import InvalidOptionError
from txstore.message import LocalTransactionState, TransactionMessage
from txstore.selector import parse_tags

__all__ = [
    "AnyChecker",
    "AnyExecuter",
    "AnyListener",
    "Checker",
    "Checkers",
    "Executer",
    "LocalTransactionExecuter",
    "MaybeAsyncState",
    "TransactionCheckListener",
    "TransactionListener",
    "as_checker",
    "as_executer",
    "parse_answer",
]

State_co = TypeVar("State_co", covariant=True)
"""What a callback returns: a LocalTransactionState; with asyncio also a coroutine of one."""


class ExecutesTransaction(Protocol[State_co]):
    """Runs a local transaction. `TransactionListener` has this method, too."""

    def execute_local_transaction(self, message: TransactionMessage, arg: Any, /) -> State_co: ...


class ExecutesBranch(Protocol[State_co]):
    """Runs a local transaction, in the shape of RocketMQ's older callback."""

    def execute_local_transaction_branch(self, message: TransactionMessage, arg: Any, /) -> State_co: ...


class ChecksTransaction(Protocol[State_co]):
    """Answers a check. `TransactionListener` has this method, too."""

    def check_local_transaction(self, message: TransactionMessage, /) -> State_co: ...


class ChecksState(Protocol[State_co]):
    """Answers a check, in the shape of RocketMQ's older callback."""

    def check_local_transaction_state(self, message: TransactionMessage, /) -> State_co: ...


AnyListener: TypeAlias = (
    ExecutesTransaction[State_co] | ExecutesBranch[State_co] | ChecksTransaction[State_co] | ChecksState[State_co]
)
"""An object that runs local transactions, answers checks, or both."""
AnyExecuter: TypeAlias = (
    ExecutesTransaction[State_co] | ExecutesBranch[State_co] | Callable[[TransactionMessage, Any], State_co]
)
"""An object or a callable that runs a local transaction."""
AnyChecker: TypeAlias = ChecksTransaction[State_co] | ChecksState[State_co] | Callable[[TransactionMessage], State_co]
"""An object or a callable that answers checks."""
MaybeAsyncState: TypeAlias = LocalTransactionState | Awaitable[LocalTransactionState]
"""What a callback returns where the producer is asyncio's."""

Executer: TypeAlias = Callable[[TransactionMessage, Any], object]
"""Runs the local transaction of a message; what it returns should be a LocalTransactionState."""
Checker: TypeAlias = Callable[[TransactionMessage], object]
"""Returns the outcome of a message's local transaction, which should be a LocalTransactionState."""


class TransactionListener(abc.ABC):
    """Runs a local transaction and answers its check, in the shape of RocketMQ's clients since 4.3."""

    @abc.abstractmethod
    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        """Runs the local transaction; `arg` is what `send_in_transaction` was given. An exception counts as UNKNOWN."""

    @abc.abstractmethod
    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        """Returns the outcome of the local transaction, from what it stored under `message.transaction_id`.

        Another process than the one that ran the local transaction may be asked, and more than once.
        """


class LocalTransactionExecuter(abc.ABC):
    """Runs a local transaction, in the shape of RocketMQ's older callback."""

    @abc.abstractmethod
    def execute_local_transaction_branch(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        """Runs the local transaction."""


class TransactionCheckListener(abc.ABC):
    """Answers a check, in the shape of RocketMQ's older callback."""

    @abc.abstractmethod
    def check_local_transaction_state(self, message: TransactionMessage) -> LocalTransactionState:
        """Returns the outcome of the local transaction."""


_EXECUTE = (
    "execute_local_transaction",
    "execute_local_transaction_branch",
    "executeLocalTransaction",
    "executeLocalTransactionBranch",
)
_CHECK = (
    "check_local_transaction",
    "check_local_transaction_state",
    "checkLocalTransaction",
    "checkLocalTransactionState",
)


def as_executer(listener: object) -> Executer | None:
    """Returns the method that runs a local transaction, under any of RocketMQ's names; None if there is none.

    Raises InvalidOptionError for a class where an instance is expected.
    """
    return _method(listener, _EXECUTE)


def as_checker(listener: object) -> Checker | None:
    """Returns the method that answers a check, under any of RocketMQ's names; None if there is none.

    Raises InvalidOptionError for a class where an instance is expected.
    """
    return _method(listener, _CHECK)


def _method(listener: object, names: tuple[str, ...]) -> Callable[..., object] | None:
    for name in names:
        method = getattr(listener, name, None)
        if isinstance(listener, type) and isinstance(inspect.getattr_static(listener, name, None), FunctionType):
            raise InvalidOptionError(
                f"expected a listener, got the class {listener.__name__}\n"
                f"hint: pass an instance: {listener.__name__}()",
                option="listener",
            )
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None


def parse_answer(answer: object, question: str) -> tuple[LocalTransactionState, str | None]:
    """Returns the state of `answer`, and the reason if it counts as UNKNOWN because it is not a state.

    As in RocketMQ, where null is UNKNOW. `question` names the call in the reason.
    """
    if isinstance(answer, LocalTransactionState):
        return answer, None
    return LocalTransactionState.UNKNOWN, f"{question} returned {type(answer).__name__}, not a LocalTransactionState"


class Checkers:
    """Finds who answers a check: a checker bound to the topic and tag, the topic, the tag, or to all messages.

    The most specific checker answers, and a topic is more specific than a tag. A second binding of the same topic and
    tag replaces the first.
    """

    def __init__(self, default: Checker | None = None) -> None:
        self._bound: dict[tuple[str | None, str | None], Checker] = {}
        if default is not None:
            self._bound[None, None] = default

    def add(self, checker: object, *, topic: str | None = None, tags: str | None = None) -> None:
        """Binds a callable, or an object with one of RocketMQ's check methods, to `topic` and to each of `tags`.

        Raises InvalidOptionError if it cannot answer checks.
        """
        call = as_checker(checker)
        if call is None:
            if not callable(checker):
                raise InvalidOptionError(
                    f"expected a checker, got {type(checker).__name__}\n"
                    "hint: pass a callable or an object with check_local_transaction",
                    option="checker",
                )
            call = checker
        bound = dict(self._bound)
        for tag in parse_tags(tags) or (None,):
            bound[topic, tag] = call
        self._bound = bound  # Replaced as a whole, so that a check in another thread never sees half of it.

    def find(self, topic: str, tag: str | None) -> Checker | None:
        """Returns the checker for a message of `topic` with `tag`; None if there is none."""
        bound = self._bound
        for key in ((topic, tag), (topic, None), (None, tag), (None, None)):
            checker = bound.get(key)
            if checker is not None:
                return checker
        return None
