"""Requests of clients, their fields, and replies.

In:     the engine's `RemotingRequest`.
Out:    parsed fields; replies.
Always: a missing or invalid field raises `Refused`, which becomes a response that names the field.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txstore._native import DISCARD_TOPIC, ResponseCode, Store, StoredMessage, is_system_topic
from txstore._native import RemotingRequest as Request
from txstore.errors import (
    DiskFullError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    LateEndError,
    MessageNotFoundError,
    OffsetTooOldError,
    StoreClosedError,
    StorePoisonedError,
    TooManyPendingError,
    TransactionNotFoundError,
    TxStoreError,
)

__all__ = [
    "OK",
    "Refused",
    "Reply",
    "Request",
    "client_message",
    "json_body",
    "json_of",
    "must_be_short",
    "number",
    "offset_of",
    "text",
]

_CLIENT_ID_MAX = 1_024

# The first class that matches the error determines the response code.
_CODES: tuple[tuple[type[TxStoreError], int], ...] = (
    (InvalidMessageError, ResponseCode.MESSAGE_ILLEGAL),
    (InvalidNameError, ResponseCode.INVALID_PARAMETER),
    (InvalidOptionError, ResponseCode.INVALID_PARAMETER),
    (MessageNotFoundError, ResponseCode.QUERY_NOT_FOUND),
    (TransactionNotFoundError, ResponseCode.QUERY_NOT_FOUND),
    (OffsetTooOldError, ResponseCode.QUERY_NOT_FOUND),
    (TooManyPendingError, ResponseCode.FLOW_CONTROL),
    (LateEndError, ResponseCode.ILLEGAL_OPERATION),
    (DiskFullError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StorePoisonedError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StoreClosedError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: RocketMQ's response code, a remark for people, fields, a body."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


OK = Reply()


class Refused(Exception):  # noqa: N818  # It is an answer to a client, not an error of the server.
    """Refuses a request with a response code and a remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code

    @classmethod
    def because(cls, error: TxStoreError) -> "Refused":
        """Returns the refusal for an error of the engine or the broker."""
        return cls(
            next((code for kind, code in _CODES if isinstance(error, kind)), ResponseCode.SYSTEM_ERROR), str(error)
        )


def text(fields: Mapping[str, str], name: str) -> str:
    """Returns a required field. Raises Refused if it is missing."""
    value = fields.get(name)
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
    return value


def number(fields: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    """Returns an integer field of 64 bits; `otherwise`, if given, for a missing one. Raises Refused."""
    value = fields.get(name)
    if not value and otherwise is not None:
        return otherwise
    digits = text(fields, name)
    if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 20:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the field {name} must be an integer of 64 bits, got {digits[:40]!r}"
        )
    found = int(digits)
    if not -(2**63) <= found < 2**63:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the field {name} must be an integer of 64 bits, got {digits[:40]!r}"
        )
    return found


def offset_of(message_id: str) -> int:
    """Returns the physical offset that an offset id ends with. Raises Refused for an invalid id."""
    try:
        return int(message_id[-16:], 16)
    except ValueError:
        remark = f"msgId must end with 16 hex digits, got {message_id[:60]!r}"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark) from None


def client_message(store: Store, physical_offset: int, *, discarded: bool = False) -> StoredMessage:
    """Returns the message at a physical offset. Raises Refused for one of a system topic.

    `discarded`: allows discarded transactions.
    """
    found = store.read_at(physical_offset)
    if is_system_topic(found.topic) and not (discarded and found.topic == DISCARD_TOPIC):
        raise Refused(ResponseCode.QUERY_NOT_FOUND, "there is no message of a client at this offset")
    return found


def must_be_short(client_id: str, name: str) -> None:
    """Raises Refused for a client id that is too long. `name`: what the request calls it."""
    if len(client_id) > _CLIENT_ID_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{name} has more than {_CLIENT_ID_MAX} characters")


def json_body(request: Request) -> dict[str, Any]:
    """Returns the body as a JSON object. Raises Refused if it is not one."""
    try:
        value = json.loads(request.body)
        if b"\\u" in request.body:
            # Escapes may produce lone surrogates, which cannot be encoded as UTF-8.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body must be a JSON object")
    return value


def json_of(value: object) -> bytes:
    """Returns JSON without spaces, since the Go client cannot parse routes with spaces."""
    return json.dumps(value, separators=(",", ":")).encode()
