"""Pydantic: recognizes its models where it is installed, and passes them to it.

In:     types, values, bodies.
Out:    what Pydantic makes of them.
Always: never imports Pydantic: a program that has no model of it has not loaded it. Errors name the position and the
        rule, and not the value, which logs should not show.
"""

import dataclasses
import functools
import sys
from typing import Any, TypeVar, get_args

from txstore.serialization.json_types import found, hints

__all__ = ["concerns", "decode", "is_model", "plain"]

T = TypeVar("T")


def concerns(kind: object) -> bool:
    """Tells whether a model or dataclass of Pydantic occurs in a type: itself, as an argument, or in a field."""
    return "pydantic" in sys.modules and _occurs(kind, set())


def is_model(value: object) -> bool:
    """Tells whether a value is a model of Pydantic."""
    module = sys.modules.get("pydantic")
    return module is not None and isinstance(value, module.BaseModel)


def plain(model: Any) -> Any:
    """Returns what JSON has for a model."""
    return model.model_dump(mode="json")


def decode(body: bytes, kind: type[T]) -> T:
    """Returns the value of a JSON text. Raises ValueError, which says where what is wrong."""
    module: Any = sys.modules["pydantic"]
    hashable: Any = kind
    try:
        value: T = _adapter(hashable).validate_json(body)
    except module.ValidationError as error:
        rows = error.errors(include_url=False, include_context=False)
        raise ValueError("; ".join(_text(row) for row in rows)) from None
    return value


@functools.lru_cache(maxsize=256)
def _adapter(kind: object) -> Any:
    module: Any = sys.modules["pydantic"]
    return module.TypeAdapter(kind)


def _occurs(kind: object, seen: set[int]) -> bool:
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and hasattr(kind, "__pydantic_validator__"):
        return True
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return any(_occurs(hint, seen) for hint in hints(kind).values())
    return any(_occurs(part, seen) for part in get_args(kind))


def _text(row: dict[str, Any]) -> str:
    position = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in row["loc"])
    what = "" if row["type"] in ("missing", "json_invalid") else f", found {found(row['input'])}"
    return f"${position}: {row['msg']}{what}"
