"""JSON: the default serializer.

In:     dataclasses, Pydantic models and plain values.
Out:    UTF-8 JSON without spaces, and values of annotated types.
Always: needs no other package. A type in which a Pydantic model occurs is decoded by Pydantic.
"""

import dataclasses
import enum
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from txstore.serialization import json_types, pydantic

__all__ = ["JsonSerializer"]

T = TypeVar("T")
_WRITTEN = (
    "dataclasses, Pydantic models, dict, list, tuple, set, str, int, float, bool, None, Enum, datetime, date, time, "
    "Decimal and UUID"
)


class JsonSerializer:
    """Writes and reads bodies as JSON: dataclasses, Pydantic models, plain values, and collections of them.

    Decoding checks each value against its annotation: a field that is missing or has another type is an error; one that
    the type does not have is ignored. Times are written in ISO 8601, Decimal and UUID as strings. A type in which a
    Pydantic model occurs follows Pydantic's own rules.
    """

    def encode(self, value: object, /) -> bytes:
        """Returns the value as UTF-8 JSON. Raises ValueError for NaN, infinities and types that JSON cannot have."""
        try:
            text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode()
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def decode(self, body: bytes, kind: type[T], /) -> T:
        """Returns the value of a JSON text, as a `kind`. Raises ValueError, which says where what was found.

        Raises InvalidOptionError for a type that JSON cannot be converted to.
        """
        if pydantic.concerns(kind):
            return pydantic.decode(body, kind)
        try:
            parsed = json.loads(body.decode(), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start} is not UTF-8, as JSON must be") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        except RecursionError:
            raise ValueError("its JSON is nested too deeply") from None
        value: T = json_types.convert(parsed, kind)
        return value


def _plain(value: object) -> Any:
    """Returns what JSON has for a value, for one step: `json` calls it again for what it returns."""
    if pydantic.is_model(value):
        return pydantic.plain(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise ValueError(f"JSON cannot have a {type(value).__name__}; it can have {_WRITTEN}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")
