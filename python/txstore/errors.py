"""The exceptions of txstore: what went wrong, and which class says what to do next.

::

    TxStoreError
    ├── InvalidMessageError         also ValueError    fix the call: the message cannot be stored as it is
    ├── DecodeError                 also ValueError    fix the type or the sender: the body is not such a value
    ├── InvalidNameError            also ValueError    fix the call: a topic, group or queue that is not allowed
    ├── InvalidOptionError          also ValueError    fix the call: an option that is unknown or out of its range
    ├── MessageNotFoundError        also LookupError   check the id: there is no such message
    ├── TransactionNotFoundError    also LookupError   check the id: there is no such transaction
    ├── OffsetTooOldError           also LookupError   continue at `.minimum`: retention removed the data before it
    ├── RouteNotFoundError          also LookupError   check the topic: no broker that can be reached has it
    ├── EmbeddedOnlyError           also AttributeError   call it where the store is open: a remote broker cannot
    ├── AlreadyEndedError                              look again: it ended differently, `.outcome` tells how
    ├── StillPendingError                              look again: it has not ended, so it cannot be resumed
    ├── InUseError                                     look again: its users must release it first
    ├── WrongGroupError                                look again: another producer group began it
    ├── LateEndError                                   wait: a check will ask (only with `reject_late_end=True`)
    ├── StoreForkedError                               open the store in this process, after forking
    ├── ReadOnlyError                                  open the store as its writer
    ├── StoreLockedError            also OSError       retry later: `.pid` has it open for writing
    ├── DiskFullError               also OSError       retry later: sends work again when there is space
    ├── BrokerUnreachableError      also ConnectionError   retry later: `.address` does not answer, or hung up
    ├── BrokerTimeoutError          also TimeoutError  look again: no answer in time, but it may have been done
    ├── BrokerBusyError                                retry later: the broker is overloaded, `.code` says how
    ├── BrokerRefusedError                             read `.code` and the text: the broker refused the request
    ├── TooManyPendingError                            retry later: end some transactions, or raise the limit
    ├── TooManyFilesError           also OSError       retry later: raise `ulimit -n`
    ├── StoreCorruptError                              stop and verify: `.file` is damaged at byte `.offset`
    ├── MissingFileError                               stop and verify: a commit log file is missing
    ├── ForeignStoreError                              stop and verify: not a store that this engine can use
    ├── ProtocolError                                  stop and verify: the peer does not speak RocketMQ's protocol
    ├── StorePoisonedError          also OSError       reopen: a sync failed, only reading still works
    ├── StoreClosedError                               reopen: the handle was closed
    └── StoreIOError                also OSError       read `.errno`, `.filename`: another error of the system

In:     a text and, by keyword, facts.
Out:    an exception whose `str()` is the text.
Always: exceptions can be pickled. Facts are attributes, so nobody has to parse a text.
Not here: when each is raised (the engine's `python/error.rs` raises most of them).
"""

from typing import Any

from txstore.transaction_state import TransactionState

__all__ = [
    "AlreadyEndedError",
    "BrokerBusyError",
    "BrokerRefusedError",
    "BrokerTimeoutError",
    "BrokerUnreachableError",
    "DecodeError",
    "DiskFullError",
    "EmbeddedOnlyError",
    "ForeignStoreError",
    "InUseError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidOptionError",
    "LateEndError",
    "MessageNotFoundError",
    "MissingFileError",
    "OffsetTooOldError",
    "ProtocolError",
    "ReadOnlyError",
    "RouteNotFoundError",
    "StillPendingError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreForkedError",
    "StoreIOError",
    "StoreLockedError",
    "StorePoisonedError",
    "TooManyFilesError",
    "TooManyPendingError",
    "TransactionNotFoundError",
    "TxStoreError",
    "WrongGroupError",
]


class TxStoreError(Exception):
    """The base of all errors that txstore raises. `str(error)` is its text: what is wrong, where, and a `hint:`."""

    def __init__(self, text: str = "", **facts: object) -> None:
        super().__init__(text)
        self._text = text
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own method would lose the facts, and Exception's cannot pass keywords.
        return _again, (type(self), self._text, self._facts)


def _again(cls: type[TxStoreError], text: str, facts: dict[str, object]) -> TxStoreError:
    """Rebuilds a pickled exception."""
    return cls(text, **facts)


class InvalidMessageError(TxStoreError, ValueError):
    """The message cannot be stored as it is: its body, its size, or a property's name or value."""


class DecodeError(TxStoreError, ValueError):
    """A message's body is not a value of the type that `message.value` was asked for."""

    topic: str | None = None
    message_id: str | None = None
    """None for a message that was not stored yet."""


class InvalidNameError(TxStoreError, ValueError):
    """A topic, group or queue id is not allowed here."""


class InvalidOptionError(TxStoreError, ValueError):
    """An option is unknown, out of its range, or contradicts the store."""

    option: str | None = None


class MessageNotFoundError(TxStoreError, LookupError):
    """There is no such message."""


class TransactionNotFoundError(TxStoreError, LookupError):
    """There is no such transaction."""


class OffsetTooOldError(TxStoreError, LookupError):
    """Retention removed the data at this offset; `minimum` is the first offset left, in the unit asked for."""

    minimum: int = 0


class RouteNotFoundError(TxStoreError, LookupError):
    """No known broker has the topic."""


class EmbeddedOnlyError(TxStoreError, AttributeError):
    """A remote broker does not offer this call; only the process that has the store open can do it."""


class BrokerUnreachableError(TxStoreError, ConnectionError):
    """The broker at `address` does not answer, or hung up. `in_doubt`: the request may have been executed."""

    address: str = ""
    in_doubt: bool = False


class BrokerTimeoutError(TxStoreError, TimeoutError):
    """The broker at `address` did not answer in time. The request may have been executed: `in_doubt`."""

    address: str = ""
    in_doubt: bool = True


class BrokerBusyError(TxStoreError):
    """The broker is overloaded and refuses requests for now; `code` is RocketMQ's response code."""

    code: int = 0


class BrokerRefusedError(TxStoreError):
    """The broker refused the request; `code` is RocketMQ's response code."""

    code: int = 0


class ProtocolError(TxStoreError):
    """The peer sent something that RocketMQ's protocol does not allow."""


class AlreadyEndedError(TxStoreError):
    """The transaction has already ended in another way. `outcome` tells how; it is never PENDING."""

    outcome: TransactionState = TransactionState.FINISHED_UNKNOWN


class StillPendingError(TxStoreError):
    """The transaction has not ended yet."""


class InUseError(TxStoreError):
    """A topic or group cannot be deleted because it is in use."""


class WrongGroupError(TxStoreError):
    """A commit or rollback came from a different producer group than the one that began the transaction."""


class LateEndError(TxStoreError):
    """The end came too late for a store opened with `reject_late_end`. A check will ask."""


class StoreForkedError(TxStoreError):
    """The handle was opened by another process, before a fork."""


class ReadOnlyError(TxStoreError):
    """The store is open read-only, and this call needs the writer."""


class StoreLockedError(TxStoreError, OSError):
    """Another process has the store open for writing; `pid` is its process id, if known."""

    pid: int | None = None


class DiskFullError(TxStoreError, OSError):
    """The disk is full. Transactions can still be ended."""


class TooManyPendingError(TxStoreError):
    """The limit of pending transactions (`pending_transactions_max`) is reached."""


class TooManyFilesError(TxStoreError, OSError):
    """The process has no file descriptors or memory maps left."""


class StoreCorruptError(TxStoreError):
    """A file is damaged: `file` is invalid at byte `offset`."""

    file: str = ""
    offset: int = 0


class MissingFileError(TxStoreError):
    """A commit log file is missing."""


class ForeignStoreError(TxStoreError):
    """The directory is not a store, or a store that this engine must not write."""


class StorePoisonedError(TxStoreError, OSError):
    """A write or sync failed, so the state on disk is unknown. Opening the store again recovers it."""


class StoreClosedError(TxStoreError):
    """The store, producer or consumer was closed."""


class StoreIOError(TxStoreError, OSError):
    """The operating system refused a call for another reason; `errno` and `filename` tell which."""
