"""Serializer: what converts values to bodies and back, and the two calls that messages make.

In:     `Message.of(topic, value)` and `message.value(kind)`, with a serializer or the default one.
Out:    bytes; a value of the type that was asked for.
Always: a body that does not decode is a DecodeError that names the message, the type and what was found.
Not here: JSON.
"""

from typing import Protocol, TypeVar

from txstore.errors import DecodeError, InvalidMessageError, InvalidOptionError
from txstore.serialization.json import JsonSerializer

__all__ = ["Serializer", "decode", "encode"]

T = TypeVar("T")
_JSON = JsonSerializer()


class Serializer(Protocol):
    """Converts values to the bodies of messages, and back. Pass one to `Message.of` and `message.value`."""

    def encode(self, value: object, /) -> bytes:
        """Returns the body for a value. Any exception becomes InvalidMessageError."""

    def decode(self, body: bytes, kind: type[T], /) -> T:
        """Returns the value of a body, as a `kind`. Any exception becomes DecodeError."""


class _Decodable(Protocol):
    """The part of a message that is decoded."""

    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...


def encode(value: object, serializer: Serializer | None = None) -> bytes:
    """Returns the body for a value, as JSON by default. Raises InvalidMessageError, InvalidOptionError."""
    used = _JSON if serializer is None else _checked(serializer)
    try:
        body = used.encode(value)
    except InvalidOptionError:
        raise
    except Exception as error:
        raise InvalidMessageError(f"the value, {_a(type(value))}, cannot be encoded: {_why(error)}") from error
    if not isinstance(body, bytes):
        raise InvalidMessageError(
            f"{type(used).__name__}.encode must return bytes, and returned {_a(type(body))} for {_a(type(value))}"
        )
    return body


def decode(message: _Decodable, kind: type[T], serializer: Serializer | None = None) -> T:
    """Returns the value of a message's body as a `kind`. Raises DecodeError, InvalidOptionError."""
    used = _JSON if serializer is None else _checked(serializer)
    try:
        return used.decode(message.body, kind)
    except InvalidOptionError:
        raise
    except Exception as error:
        message_id = getattr(message, "message_id", None)
        name = "the message" if message_id is None else f"message {message_id}"
        text = (
            f"{name} of topic {message.topic}: its body is not {_a(kind)}: {_why(error)}\n"
            "hint: message.nack(-1) moves a consumer's message to the dead letters"
        )
        # The text says it all. Tracebacks of what failed inside may show parts of the body in logs.
        cause = None if used is _JSON else error
        raise DecodeError(text, topic=message.topic, message_id=message_id) from cause


def _checked(serializer: Serializer) -> Serializer:
    if isinstance(serializer, type) or not (hasattr(serializer, "encode") and hasattr(serializer, "decode")):
        raise InvalidOptionError(
            f"serializer must have the methods encode and decode, got {serializer!r}\n"
            "hint: an object that implements txstore.Serializer, such as txstore.JsonSerializer()",
            option="serializer",
        )
    return serializer


def _a(kind: object) -> str:
    """Returns the name of a type with its article."""
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__origin__") else str(kind)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _why(error: Exception) -> str:
    text = str(error)
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"
