"""The answer of a check: a transaction's state, as a producer told it.

In:     what a checker returned or raised.
Out:    an `Answer`.
Always: an answer that is not a state counts as UNKNOWN, and its reason is kept.
"""

from dataclasses import dataclass

from txstore.listener import parse_answer
from txstore.message import LocalTransactionState
from txstore.transactions.pool import Result, TimeLimitError

__all__ = ["Answer", "answer_of"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check: a state, and the reason if it counts as UNKNOWN without saying so."""

    state: LocalTransactionState
    reason: str | None = None
    sent: bool = False
    """Whether the check was sent to a remote client, whose answer arrives later as a separate end."""


def answer_of(result: Result) -> Answer:
    """Returns the answer of a check from what its call in the pool returned or raised."""
    error = result.error
    if error is None:
        said = result.value
        return said if isinstance(said, Answer) else Answer(*parse_answer(said, "the check"))
    if isinstance(error, TimeLimitError):
        return Answer(LocalTransactionState.UNKNOWN, str(error))
    text = f": {error}" if isinstance(error, Exception) else ""
    return Answer(LocalTransactionState.UNKNOWN, f"the check raised {type(error).__name__}{text}")
