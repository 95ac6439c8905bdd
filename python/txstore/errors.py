"""The exceptions of txstore: what went wrong, and which class says what to do next.

::

    TxStoreError
    ├── InvalidMessageError         also ValueError    fix the call: the message cannot be stored as it is
    ├── InvalidNameError            also ValueError    fix the call: a topic, group or queue that is not allowed
    ├── InvalidOptionError          also ValueError    fix the call: an option that is unknown or out of its range
    ├── MessageNotFoundError        also LookupError   look elsewhere
    ├── TransactionNotFoundError    also LookupError   look elsewhere
    ├── OffsetTooOldError           also LookupError   go on at `.minimum`: retention removed what was asked for
    ├── RouteNotFoundError          also LookupError   look elsewhere: no broker that can be reached has the topic
    ├── EmbeddedOnlyError           also AttributeError   ask where the store is: a remote broker cannot
    ├── AlreadyEndedError                              look again: it ended otherwise, `.outcome` tells how
    ├── StillPendingError                              look again: it has not ended, so it cannot be resumed
    ├── InUseError                                     look again: who uses it must let go of it first
    ├── WrongGroupError                                look again: another producer group began it
    ├── LateEndError                                   wait: a check will ask (only with `reject_late_end=True`)
    ├── StoreForkedError                               open the store in this process, after forking
    ├── ReadOnlyError                                  open the store as its writer
    ├── StoreLockedError            also OSError       retry later: `.pid` has it open for writing
    ├── DiskFullError               also OSError       retry later: sends work again when there is space
    ├── BrokerUnreachableError      also ConnectionError   retry later: `.address` does not answer, or hung up
    ├── BrokerTimeoutError          also TimeoutError  look again: no answer in time, but it may have been done
    ├── BrokerBusyError                                retry later: the broker has no room, `.code` says which
    ├── BrokerRefusedError                             look at `.code` and the text: the broker says no
    ├── TooManyPendingError                            retry later: end some transactions, or raise the limit
    ├── TooManyFilesError           also OSError       retry later: raise `ulimit -n`
    ├── StoreCorruptError                              stop and verify: `.file` is damaged at byte `.offset`
    ├── MissingFileError                               stop and verify: a file of the log is not there
    ├── ForeignStoreError                              stop and verify: no store that this engine can use
    ├── ProtocolError                                  stop and verify: the other side does not speak RocketMQ's way
    ├── StorePoisonedError          also OSError       reopen: a sync failed, reading goes on
    ├── StoreClosedError                               reopen: the handle was closed
    └── StoreIOError                also OSError       what else the system refused: `.errno`, `.filename`

In: a text and, by keyword, facts. Out: an exception whose `str()` is the text. Always: picklable, facts as attributes,
nobody parses a text. Not here: when each is raised (the engine's `python/error.rs` makes most of them).
"""

from typing import Any

__all__ = [
    "AlreadyEndedError",
    "BrokerBusyError",
    "BrokerRefusedError",
    "BrokerTimeoutError",
    "BrokerUnreachableError",
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
    """Whatever txstore raises on purpose. `str(error)` is its text: what, where, and a `hint:` if there is one."""

    def __init__(self, text: str = "", **facts: object) -> None:
        super().__init__(text)
        self._text = text
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own way would lose the facts, and Exception's cannot pass keywords.
        return _again, (type(self), self._text, self._facts)


def _again(cls: type[TxStoreError], text: str, facts: dict[str, object]) -> TxStoreError:
    """The exception that a pickle describes."""
    return cls(text, **facts)


class InvalidMessageError(TxStoreError, ValueError):
    """The message cannot be stored as it is: its body, a name or value of a property, or its size."""


class InvalidNameError(TxStoreError, ValueError):
    """A topic, group or queue number that is not allowed here."""


class InvalidOptionError(TxStoreError, ValueError):
    """An option that does not exist, is out of its range, or contradicts the store."""

    option: str | None = None


class MessageNotFoundError(TxStoreError, LookupError):
    """There is no such message."""


class TransactionNotFoundError(TxStoreError, LookupError):
    """There is no such transaction."""


class OffsetTooOldError(TxStoreError, LookupError):
    """The offset was removed by retention; `minimum` is the first one left (same unit as asked for)."""

    minimum: int = 0


class RouteNotFoundError(TxStoreError, LookupError):
    """No broker that is known has the topic."""


class EmbeddedOnlyError(TxStoreError, AttributeError):
    """A remote broker cannot do it; the process that has the store open can."""


class BrokerUnreachableError(TxStoreError, ConnectionError):
    """Nobody answers at `address`, or the connection was lost; nothing was done, unless a request was under way."""

    address: str = ""


class BrokerTimeoutError(TxStoreError, TimeoutError):
    """No answer of `address` came in time. What was asked may have been done."""

    address: str = ""


class BrokerBusyError(TxStoreError):
    """The broker holds requests back for now; `code` is RocketMQ's response code."""

    code: int = 0


class BrokerRefusedError(TxStoreError):
    """The broker refuses; `code` is RocketMQ's response code."""

    code: int = 0


class ProtocolError(TxStoreError):
    """The other side of a connection sent what RocketMQ's protocol does not allow."""


class AlreadyEndedError(TxStoreError):
    """The transaction has ended, otherwise than asked.

    `outcome`: "committed", "rolled_back", "discarded" or "finished_unknown".
    """

    outcome: str = "finished_unknown"


class StillPendingError(TxStoreError):
    """The transaction has not ended."""


class InUseError(TxStoreError):
    """A topic or group cannot be deleted: something here uses it, or waits for it."""


class WrongGroupError(TxStoreError):
    """The end comes from a producer group that did not begin the transaction."""


class LateEndError(TxStoreError):
    """The end came after its time, in a store opened with `reject_late_end`; a check will ask."""


class StoreForkedError(TxStoreError):
    """The handle was opened before a fork, by another process."""


class ReadOnlyError(TxStoreError):
    """The store is open read-only, and this needs the writer."""


class StoreLockedError(TxStoreError, OSError):
    """Another process has the store open for writing; `pid` is its number, if known."""

    pid: int | None = None


class DiskFullError(TxStoreError, OSError):
    """No space is left; transactions can still be ended."""


class TooManyPendingError(TxStoreError):
    """As many transactions are pending as the option allows."""


class TooManyFilesError(TxStoreError, OSError):
    """The process has no file handles or maps left."""


class StoreCorruptError(TxStoreError):
    """A file says something that cannot be: `file` is damaged at byte `offset`."""

    file: str = ""
    offset: int = 0


class MissingFileError(TxStoreError):
    """A file of the log is not there."""


class ForeignStoreError(TxStoreError):
    """The directory is no store, or one that this engine must not write."""


class StorePoisonedError(TxStoreError, OSError):
    """A write or sync failed, so what is on disk is not known any more; opening again recovers."""


class StoreClosedError(TxStoreError):
    """The store, producer or consumer was closed."""


class StoreIOError(TxStoreError, OSError):
    """Anything else that the operating system refused; `errno` and `filename` say what and where."""
