"""JSON types: converts parsed JSON to annotated types.

In:     what `json.loads` returns, and a type: a dataclass, a TypedDict, a NamedTuple, an Enum, a Literal, a plain or
        generic type, or a union of them.
Out:    a value of that type.
Always: a ValueError says the position (`$.items[0].price`), what was expected and what kind of value was found, but not
        the value, which logs should not show. InvalidOptionError for a type that JSON cannot be converted to.
Not here: Pydantic's types. Written by hand, although Pydantic does it, because the core needs no other package.
"""

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from txstore.errors import InvalidOptionError

__all__ = ["convert", "found", "hints"]

_ARRAYS: dict[object, Callable[[Any], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    MutableSequence: list,
}
_OBJECTS = (dict, Mapping, MutableMapping)
_FROM_TEXT: dict[object, tuple[Callable[[str], Any], str]] = {
    datetime: (datetime.fromisoformat, "a datetime in ISO 8601"),
    date: (date.fromisoformat, "a date in ISO 8601"),
    time: (time.fromisoformat, "a time in ISO 8601"),
    Decimal: (Decimal, "a decimal number"),
    UUID: (UUID, "a UUID"),
}


def convert(value: Any, kind: Any, at: str = "$") -> Any:
    """Returns parsed JSON as a `kind`. `at` is its position, for errors."""
    if kind is Any or kind is object:
        return value
    if kind is None or kind is type(None):
        return _exactly(value, type(None), "null", at)
    if kind is bool:
        return _exactly(value, bool, "true or false", at)
    if kind is int:
        return _exactly(value, int, "an integer", at)
    if kind is float:
        return float(value) if type(value) is int else _exactly(value, float, "a number", at)
    if kind is str:
        return _exactly(value, str, "a string", at)
    if kind in _FROM_TEXT:
        return _from_text(value, kind, at)
    return _structured(value, kind, at)


def found(value: object) -> str:
    """Returns what kind of JSON a value is, with its size."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    return f"a {type(value).__name__}"


@functools.lru_cache(maxsize=1024)
def hints(kind: type) -> dict[str, Any]:
    """Returns the annotations of a class. Raises InvalidOptionError for one that cannot be resolved."""
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidOptionError(
            f"an annotation of {kind.__qualname__} cannot be resolved: {error}\n"
            "hint: define the types that it names at the top level of its module",
            option="kind",
        ) from None


def _structured(value: Any, kind: Any, at: str) -> Any:
    origin = get_origin(kind)
    if origin in (Annotated, Required, NotRequired):
        return convert(value, get_args(kind)[0], at)
    if isinstance(kind, NewType):
        return convert(value, kind.__supertype__, at)
    if origin is Union or origin is types.UnionType:
        return _union(value, kind, at)
    if origin is Literal:
        return _literal(value, kind, at)
    plain = kind if origin is None else origin
    if isinstance(plain, type) and (of_class := _of_class(plain)) is not None:
        return of_class(value, plain, at)
    if plain in _OBJECTS:
        return _mapping(value, get_args(kind), at)
    if plain in _ARRAYS:
        return _array(value, plain, get_args(kind), at)
    raise InvalidOptionError(
        f"JSON cannot be converted to {kind!r}{'' if at == '$' else ' at ' + at}\n"
        "hint: use a dataclass, a Pydantic model, a TypedDict, plain types or lists and dicts of them; message.body "
        "has the bytes, and another serializer reads other formats",
        option="kind",
    )


def _of_class(kind: type) -> Callable[[Any, Any, str], Any] | None:
    """Returns the call that converts to a class with fields or members; None for other types."""
    if issubclass(kind, enum.Enum):
        return _enum
    if is_typeddict(kind):
        return _typed_dict
    if dataclasses.is_dataclass(kind):
        return _dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple
    return None


def _wrong(at: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{at}: expected {expected}, found {found(value)}")


def _exactly(value: Any, kind: type, name: str, at: str) -> Any:
    if type(value) is not kind:
        raise _wrong(at, name, value)
    return value


def _from_text(value: Any, kind: Any, at: str) -> Any:
    read, name = _FROM_TEXT[kind]
    is_number = kind is Decimal and type(value) in (int, float)
    if not isinstance(value, str) and not is_number:
        raise _wrong(at, f"{name}, as a string", value)
    try:
        return read(str(value))
    except (ValueError, InvalidOperation):
        raise ValueError(f"{at}: expected {name}, found another string") from None


def _union(value: Any, kind: Any, at: str) -> Any:
    members = [member for member in get_args(kind) if member is not type(None)]
    if value is None and len(members) < len(get_args(kind)):
        return None
    if len(members) == 1:
        return convert(value, members[0], at)
    if sum(map(_is_object, members)) > 1:
        raise InvalidOptionError(
            f"{kind} has several types that are objects of JSON, so it is not clear which one is meant at {at}\n"
            "hint: use Pydantic models with a discriminator",
            option="kind",
        )
    for member in members:
        try:
            return convert(value, member, at)
        except ValueError as error:
            if isinstance(error, InvalidOptionError) or (_is_object(member) and isinstance(value, dict)):
                raise  # An object is meant for the only member that is one, so its own error says more.
    raise _wrong(at, str(kind), value)


def _is_object(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    return plain in _OBJECTS or dataclasses.is_dataclass(plain) or is_typeddict(plain)


def _literal(value: Any, kind: Any, at: str) -> Any:
    for option in get_args(kind):
        if type(value) is type(option) and value == option:
            return option
    raise _wrong(at, f"one of {', '.join(map(repr, get_args(kind)))}", value)


def _enum(value: Any, kind: type[enum.Enum], at: str) -> enum.Enum:
    for member in kind:
        if type(member.value) is type(value) and member.value == value:
            return member
    raise _wrong(at, f"one of {', '.join(repr(member.value) for member in kind)}", value)


def _mapping(value: Any, arguments: Sequence[Any], at: str) -> dict[Any, Any]:
    fields = _exactly(value, dict, "an object", at)
    if not arguments:
        return dict(fields)
    key_kind, value_kind = arguments
    return {_key(key, key_kind, at): convert(item, value_kind, f"{at}.{key}") for key, item in fields.items()}


def _key(key: str, kind: Any, at: str) -> Any:
    """Converts a field's name: JSON writes the keys of a dict as strings."""
    if kind is int:
        try:
            return int(key)
        except ValueError:
            raise ValueError(f"{at}: expected integers as the names of fields, found another string") from None
    return convert(key, kind, at)


def _array(value: Any, plain: Any, arguments: tuple[Any, ...], at: str) -> Any:
    items = _exactly(value, list, "an array", at)
    if plain is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(items) != len(arguments):
            raise ValueError(f"{at}: expected an array of {len(arguments)}, found {found(items)}")
        return tuple(
            convert(item, kind, f"{at}[{n}]") for n, (item, kind) in enumerate(zip(items, arguments, strict=True))
        )
    kind = arguments[0] if arguments else Any
    made = [convert(item, kind, f"{at}[{number}]") for number, item in enumerate(items)]
    try:
        return _ARRAYS[plain](made)
    except TypeError as error:  # A set of lists, say.
        raise ValueError(f"{at}: {error}") from None


def _dataclass(value: Any, kind: type, at: str) -> Any:
    fields = _exactly(value, dict, f"an object with the fields of {kind.__name__}", at)
    types_of, given = hints(kind), {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name in fields:
            given[field.name] = convert(fields[field.name], types_of[field.name], f"{at}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{at}.{field.name}: missing, and {kind.__name__} has no default for it")
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"{at}: {kind.__name__} refused it: {error}") from None


def _typed_dict(value: Any, kind: Any, at: str) -> dict[str, Any]:
    fields, types_of = _exactly(value, dict, f"an object with the fields of {kind.__name__}", at), hints(kind)
    for name in sorted(kind.__required_keys__):
        if name not in fields:
            raise ValueError(f"{at}.{name}: missing, and {kind.__name__} requires it")
    return {name: convert(item, types_of.get(name, Any), f"{at}.{name}") for name, item in fields.items()}


def _named_tuple(value: Any, kind: Any, at: str) -> Any:
    items, types_of = _exactly(value, list, f"an array with the fields of {kind.__name__}", at), hints(kind)
    least = len(kind._fields) - len(kind._field_defaults)
    if not least <= len(items) <= len(kind._fields):
        raise ValueError(f"{at}: expected an array of {len(kind._fields)} for {kind.__name__}, found {found(items)}")
    named = zip(kind._fields, items, strict=False)
    return kind(*(convert(item, types_of.get(name, Any), f"{at}.{name}") for name, item in named))
