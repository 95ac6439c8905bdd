"""The state of a transaction, as errors, results of ends and histories have it.

In:     the engine's name of a state.
Out:    `TransactionState`.
Always: imports nothing of txstore, so the errors and the engine can use it.
Not here: what a listener returns (`message.LocalTransactionState`).
"""

import enum

__all__ = ["TransactionState"]


class TransactionState(enum.StrEnum):
    """The state of a transaction, from the log. All but PENDING are final. Each is equal to its name as a string."""

    PENDING = "pending"
    """It has not ended."""
    COMMITTED = "committed"
    """Its message is in its topic."""
    ROLLED_BACK = "rolled_back"
    """No consumer sees its message."""
    DISCARDED = "discarded"
    """It was moved to TRANS_CHECK_MAX_TIME_TOPIC. `broker.resume` makes it pending again."""
    FINISHED_UNKNOWN = "finished_unknown"
    """A broker ended it and left no trace of how."""
