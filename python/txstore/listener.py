"""Listeners: the user's code that runs a local transaction, and that answers a check.

In: whatever shape the user has: today's `TransactionListener`, RocketMQ's two older callbacks, plain functions. Out:
one shape for each of the two questions. Always: what a checker returns is judged by the caller, nothing is guessed.
Not here: threads and time limits (`check`), what an answer leads to (`producer`).
"""

import abc
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

from txstore.errors import InvalidOptionError
from txstore.message import LocalTransactionState, TransactionMessage

__all__ = [
    "Checker",
    "Checkers",
    "Executer",
    "LocalTransactionExecuter",
    "TransactionCheckListener",
    "TransactionListener",
    "as_checker",
    "as_executer",
    "judged",
    "parse_tags",
]

Executer: TypeAlias = Callable[[TransactionMessage, Any], object]
"""Runs the local transaction of a message; what it returns should be a LocalTransactionState."""
Checker: TypeAlias = Callable[[TransactionMessage], object]
"""Tells what became of a message's local transaction; what it returns should be a LocalTransactionState."""


class TransactionListener(abc.ABC):
    """A local transaction and its check, as RocketMQ's clients have them since 4.3."""

    @abc.abstractmethod
    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        """Runs the local transaction; `arg` is what `send_in_transaction` was given. An exception counts as UNKNOWN."""

    @abc.abstractmethod
    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        """Tells what became of it, from what the local transaction left: look `message.transaction_id` up.

        May be asked in another process than the one that ran it, and more than once.
        """


class LocalTransactionExecuter(abc.ABC):
    """RocketMQ's older callback for the local transaction."""

    @abc.abstractmethod
    def execute_local_transaction_branch(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        """Runs the local transaction."""


class TransactionCheckListener(abc.ABC):
    """RocketMQ's older callback for the check."""

    @abc.abstractmethod
    def check_local_transaction_state(self, message: TransactionMessage) -> LocalTransactionState:
        """Tells what became of the local transaction."""


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
    """The call that runs a local transaction: a method by one of RocketMQ's names; None if there is none.

    Raises InvalidOptionError for a class that was not called.
    """
    return _method(listener, _EXECUTE)


def as_checker(listener: object) -> Checker | None:
    """The call that answers a check: a method by one of RocketMQ's names; None if there is none.

    Raises InvalidOptionError for a class that was not called.
    """
    return _method(listener, _CHECK)


def _method(listener: object, names: tuple[str, ...]) -> Callable[..., object] | None:
    for name in names:
        method = getattr(listener, name, None)
        if isinstance(listener, type) and isinstance(inspect.getattr_static(listener, name, None), FunctionType):
            raise InvalidOptionError(
                f"{listener.__name__} is a class, no listener yet\nhint: make one of it: {listener.__name__}()",
                option="listener",
            )
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None


def judged(answer: object, question: str) -> tuple[LocalTransactionState, str | None]:
    """The state that `answer` stands for, and why it is UNKNOWN if it is no state at all.

    RocketMQ's rule: null is UNKNOW. `question` names the call in the reason.
    """
    if isinstance(answer, LocalTransactionState):
        return answer, None
    return LocalTransactionState.UNKNOWN, f"{question} returned {type(answer).__name__}, not a LocalTransactionState"


def parse_tags(tags: str | None) -> tuple[str, ...] | None:
    """The tags of a RocketMQ expression: `"a || b"` → `("a", "b")`; None, "" and "*" → None, which is every message.

    Raises InvalidOptionError for an expression without a tag.
    """
    if tags is not None and not isinstance(tags, str):
        raise InvalidOptionError(f'tags {tags!r} is no str\nhint: "a || b", or "*" for all', option="tags")
    if tags is None or tags.strip() in ("", "*"):
        return None
    found = tuple(dict.fromkeys(word.strip() for word in tags.split("||") if word.strip()))
    if not found:
        raise InvalidOptionError(f'tags {tags!r} names no tag\nhint: "a || b", or "*" for all', option="tags")
    return None if "*" in found else found


class Checkers:
    """Who answers a check: checkers bound to a topic, a tag, both or neither; the most specific one wins.

    A topic is more specific than a tag. Binding the same topic and tag again replaces the checker.
    """

    def __init__(self, default: Checker | None = None) -> None:
        self._bound: dict[tuple[str | None, str | None], Checker] = {}
        if default is not None:
            self._bound[None, None] = default

    def add(self, checker: object, *, topic: str | None = None, tags: str | None = None) -> None:
        """Binds a callable, or an object with one of RocketMQ's check methods, to `topic` and to each of `tags`.

        Raises InvalidOptionError if it can answer no check.
        """
        call = as_checker(checker)
        if call is None:
            if not callable(checker):
                raise InvalidOptionError(
                    f"{type(checker).__name__} can answer no check\n"
                    "hint: give a callable or an object with check_local_transaction",
                    option="checker",
                )
            call = checker
        bound = dict(self._bound)
        for tag in parse_tags(tags) or (None,):
            bound[topic, tag] = call
        self._bound = bound  # Replaced whole: a check in another thread sees the old or the new, never half of it.

    def find(self, topic: str, tag: str | None) -> Checker | None:
        """The checker for a message of `topic` with `tag`; None if nobody answers for it."""
        bound = self._bound
        for key in ((topic, tag), (topic, None), (None, tag), (None, None)):
            checker = bound.get(key)
            if checker is not None:
                return checker
        return None
