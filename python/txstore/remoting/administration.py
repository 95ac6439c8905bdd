"""Encodes the arguments, results and errors of the calls by which a client operates a store that a server has open.

In:     plain values, times, enums, and the classes in `_CLASSES`.
Out:    JSON, and equal values read from it.
Always: a value of any other class is an error, so a peer can make nothing but these. A field that this release does
        not know is ignored, so that a newer peer may add some.
Not here: the calls (`server/administration`, `client/administration`).
"""

import base64
import binascii
import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from txstore import errors
from txstore._native import (
    EndResult,
    SendResult,
    StoredMessage,
    StoreStat,
    TransactionRow,
    decode_records,
)
from txstore.broker.lists import DelayedLevel, DelayedRow, DiscardedRow, LetterPage, PendingPage
from txstore.broker.operations import (
    GroupLag,
    GroupRow,
    MemberRow,
    OutboxFacts,
    Overview,
    PendingGroup,
    ReplicaRow,
    TopicRow,
)
from txstore.broker.queries import QueueExtent, QueueRange, TopicDescription
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.errors import ProtocolError, TxStoreError
from txstore.message import ConsumeFromWhere, LocalTransactionState
from txstore.remoting.replication import ReplicaStatus, ReplicationStatus
from txstore.transaction_state import TransactionState
from txstore.transactions.escaped import EscapedTransaction, EscapeState
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.trace import EventKind, TraceEvent, TransactionTrace

__all__ = ["Factory", "decode", "decode_error", "encode", "encode_error"]

Factory = Callable[..., object]
"""Makes a value of a class from its fields."""

_CLASS, _VALUE = "class", "value"
_ENUMS: dict[str, type[enum.Enum]] = {
    one.__name__: one for one in (ConsumeFromWhere, EscapeState, EventKind, LocalTransactionState, TransactionState)
}
_DATACLASSES: tuple[type[Any], ...] = (
    DeadLetter,
    DelayedLevel,
    DelayedRow,
    DiscardedRow,
    EscapedTransaction,
    GroupDescription,
    GroupLag,
    GroupRow,
    LetterPage,
    MemberRow,
    OutboxFacts,
    Overview,
    PendingGroup,
    PendingPage,
    PendingTransaction,
    QueueLag,
    QueueRange,
    ReplicaRow,
    ReplicaStatus,
    ReplicationStatus,
    TopicDescription,
    TopicRow,
    TraceEvent,
    TransactionTrace,
)
_STATISTICS = tuple(name for name, value in vars(StoreStat).items() if not name.startswith("_"))
_ROW = ("transaction_id", "producer_group", "topic", "state", "halves", "finals", "discards", "ops", "checks")
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    **{one: tuple(field.name for field in dataclasses.fields(one)) for one in _DATACLASSES},
    QueueExtent: QueueExtent._fields,
    StoreStat: _STATISTICS,
    EndResult: ("outcome", "already", "physical_offset", "queue_offset"),
    SendResult: (
        "message_id",
        "offset_message_id",
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "transaction_id",
    ),
}
_CLASSES: dict[str, tuple[Factory, tuple[str, ...]]] = {one.__name__: (one, names) for one, names in _FIELDS.items()}
_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_ERRORS: dict[str, type[TxStoreError]] = {name: getattr(errors, name) for name in errors.__all__}


def encode(value: object) -> bytes:
    """Returns a value as JSON. Raises TypeError for a value of a class that is not listed, which is a bug."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decode(data: bytes, factories: Mapping[str, Factory] | None = None) -> Any:
    """Returns the value that `encode` was given. `factories` replace the classes of the same names.

    Raises ProtocolError if the data is invalid.
    """
    try:
        return _Decoder(factories or {}).value(json.loads(data))
    except ProtocolError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, TxStoreError) as error:
        raise ProtocolError(f"invalid data in an administrative call: {error!r}") from error


def encode_error(error: TxStoreError) -> dict[str, str]:
    """Returns an error as fields of a response: its class and its facts. The remark has its text."""
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int) and name[0] != "_"}
    name = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _ERRORS)
    return {"error": name, "facts": encode(facts).decode()}


def decode_error(fields: Mapping[str, str], text: str) -> TxStoreError | None:
    """Returns the error that a response tells; None if it tells none that this release knows."""
    kind = _ERRORS.get(fields.get("error", ""))
    if kind is None:
        return None
    facts = decode(fields.get("facts", "{}").encode())
    return kind(text, **facts) if isinstance(facts, dict) else kind(text)


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):  # First, because a StrEnum is a str, too.
        return {_CLASS: type(value).__name__, _VALUE: value.value}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {_CLASS: "dict", _VALUE: [[_plain(key), _plain(one)] for key, one in value.items()]}
    name = type(value).__name__
    names = _FIELDS.get(type(value))
    if names is not None:
        return {_CLASS: name, _VALUE: {field: _plain(getattr(value, field)) for field in names}}
    return {_CLASS: name, _VALUE: _leaf(value)}


def _leaf(value: object) -> object:
    match value:
        case tuple():
            return [_plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return (value - _EPOCH) // _MICROSECOND
        case timedelta():
            return value // _MICROSECOND
        case StoredMessage():
            return base64.b64encode(value.record).decode()
        case TransactionRow():
            times = {
                "prepared_timestamp_ms": _milliseconds(value.prepared_timestamp),
                "ended_timestamp_ms": None if value.ended_timestamp is None else _milliseconds(value.ended_timestamp),
            }
            return {name: _plain(getattr(value, name)) for name in _ROW} | times
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


class _Decoder:
    """Makes values from parsed JSON."""

    def __init__(self, factories: Mapping[str, Factory]) -> None:
        self._factories = factories

    def value(self, said: Any) -> Any:
        if isinstance(said, list):
            return [self.value(one) for one in said]
        if isinstance(said, dict):
            return self._object(said[_CLASS], said[_VALUE])
        if said is None or isinstance(said, bool | int | str):
            return said
        raise ProtocolError(f"invalid data in an administrative call: {said!r}")

    def _object(self, name: str, value: Any) -> Any:
        if name in _CLASSES:
            factory, names = _CLASSES[name]
            given = self._fields(value, names)
            return self._factories.get(name, factory)(**given)
        if name in _ENUMS:
            return _ENUMS[name](value)
        match name:
            case "dict":
                return {self.value(key): self.value(one) for key, one in value}
            case "tuple":
                return tuple(self._list(value))
            case "bytes":
                return _bytes(value)
            case "datetime":
                return _EPOCH + value * _MICROSECOND
            case "timedelta":
                return value * _MICROSECOND
            case "StoredMessage":
                (message,) = decode_records(_bytes(value))
                return message
            case "TransactionRow":
                return TransactionRow(**self._fields(value, (*_ROW, "prepared_timestamp_ms", "ended_timestamp_ms")))
        raise ProtocolError(
            f"an administrative call has a {name!r}, which this release does not know\nhint: update txstore"
        )

    def _list(self, said: Any) -> list[Any]:
        found = self.value(said)
        if not isinstance(found, list):
            raise ProtocolError(f"expected a list in an administrative call, got {found!r}")
        return found

    def _fields(self, said: Any, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.value(said[name]) for name in names}


def _bytes(said: str) -> bytes:
    try:
        return base64.b64decode(said, validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"invalid data in an administrative call: {error}") from error
