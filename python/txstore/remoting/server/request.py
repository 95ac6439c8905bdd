"""Requests: what a client asks, and what it is answered.

In: the engine's `RemotingRequest`. Out: its fields, read as what they must be; replies. Always: a field that is missing
or cannot be is a `Refused`, which becomes a response that names it. Not here: what a code means to whom.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
from txstore.remoting.codes import ResponseCode

__all__ = ["OK", "Refused", "Reply", "Request", "json_body", "json_of", "number", "text", "text_or"]

# The first class that fits decides.
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
    """An answer: RocketMQ's response code, words for people, fields, a body."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


OK = Reply()


class Refused(Exception):  # noqa: N818  # It is an answer, and no error of ours.
    """A request that is not done: a response code and why."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code

    @classmethod
    def because(cls, error: TxStoreError) -> "Refused":
        """What the engine or the broker refused."""
        return cls(
            next((code for kind, code in _CODES if isinstance(error, kind)), ResponseCode.SYSTEM_ERROR), str(error)
        )


def text(fields: Mapping[str, str], name: str) -> str:
    """A field that must be there. Raises Refused."""
    value = fields.get(name)
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
    return value


def text_or(fields: Mapping[str, str], name: str, otherwise: str) -> str:
    return fields.get(name) or otherwise


def number(fields: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    """A whole number, within 64 bits. Raises Refused; a missing field does not where there is `otherwise`."""
    value = fields.get(name)
    if not value and otherwise is not None:
        return otherwise
    digits = text(fields, name)
    if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 20:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} cannot be {digits[:40]!r}")
    found = int(digits)
    if not -(2**63) <= found < 2**63:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} cannot be {digits[:40]!r}")
    return found


def json_body(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    try:
        value = json.loads(request.body)
        if b"\\u" in request.body:
            # Escapes may make halves of characters, which no text of ours can hold.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body is no JSON object")
    return value


def json_of(value: object) -> bytes:
    """JSON as RocketMQ's clients read it: without blanks, which Go's reading of routes would stumble over."""
    return json.dumps(value, separators=(",", ":")).encode()
