"""The configuration of `txstore serve`: flags, environment variables and a TOML file.

In:     a file's path, variables, the flags that were given.
Out:    a `ServerConfig`, the settings of the store, the form of the log.
Always: a flag wins over a variable, a variable over the file, the file over the default. A name that none of them
        knows is an error with the nearest known name, as is a value of the wrong type. All names are those of
        `ServerConfig` and `BrokerConfig`, so that a new field is known here at once.
Not here: which values are accepted (`ServerConfig`, `BrokerConfig`).
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from txstore import BrokerConfig, ServerConfig
from txstore.cli.logs import FORMS
from txstore.errors import InvalidOptionError

__all__ = ["CONFIG_VARIABLE", "VARIABLES", "Configuration", "read_configuration"]

VARIABLES = "TXSTORE_SERVE_"
"""What the names of variables begin with."""
CONFIG_VARIABLE = f"{VARIABLES}CONFIG"
_STORE = "store"
_SET_VARIABLE = f"{VARIABLES}SET"
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_TYPES: dict[str, Any] = {**get_type_hints(ServerConfig), "log": str}
_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number of seconds", str: "a text"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a server is started with."""

    server: ServerConfig
    store: dict[str, object]
    """Settings of `BrokerConfig`."""
    log: str
    """The form of the log, 'text' or 'json'."""


def read_configuration(
    file: str | os.PathLike[str] | None,
    variables: Mapping[str, str],
    flags: Mapping[str, object],
    sets: Sequence[str] = (),
) -> Configuration:
    """Merges the sources. `flags` are the given ones, by the names of `ServerConfig`, or `log`; `sets` is `--set`.

    Raises InvalidOptionError, which names the source.
    """
    chosen, store = ({}, {}) if file is None else _from_file(Path(file))
    chosen |= {name: _from_text(name, value, VARIABLES + name.upper()) for name, value in _named(variables)}
    sources = dict.fromkeys(store, f"config: {file}: [{_STORE}] ")
    found = _settings(shlex.split(variables.get(_SET_VARIABLE, "")), _SET_VARIABLE)
    sources |= dict.fromkeys(found, f"{_SET_VARIABLE}: ")
    store |= found
    chosen |= {name: _none_or(name, value) for name, value in flags.items()}
    found = _settings(sets, "--set")
    sources |= dict.fromkeys(found, "--set: ")
    store |= found
    try:
        BrokerConfig.from_options(store)
    except InvalidOptionError as error:
        text = str(error).replace(", or a timedelta", "")
        raise InvalidOptionError(sources.get(error.option or "", "") + text, option=error.option) from None
    log = chosen.pop("log", "text")
    return Configuration(ServerConfig(**chosen), store, str(log))


def _from_file(path: Path) -> tuple[dict[str, Any], dict[str, object]]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidOptionError(f"config: {path} cannot be read: {error.strerror}", option="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"config: {path} is not TOML: {error}", option="config") from None
    store = read.pop(_STORE, {})
    if not isinstance(store, dict):
        raise InvalidOptionError(f"config: {path}: store must be a table, got {store!r}\nhint: [store]", option="store")
    for name, value in read.items():
        if isinstance(value, dict):
            text = f"config: {path}: unknown table {name!r}\nhint: options have no table, settings of the store [store]"
            raise InvalidOptionError(text, option=name)
        _check_known(name, f"config: {path}: unknown option {name!r}", str)
    return {name: _from_toml(name, value, path) for name, value in read.items()}, store


def _from_toml(name: str, value: object, path: Path) -> object:
    kind, _ = _kind(name)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(f"config: {path}: {name}", kind, value, name)
    if name == "log" and value not in FORMS:
        raise InvalidOptionError(f"config: {path}: log must be {' or '.join(FORMS)}, got {value!r}", option=name)
    return _none_or(name, value)


def _named(variables: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yields the options among the variables."""
    for variable, value in variables.items():
        if variable.startswith(VARIABLES) and variable not in (CONFIG_VARIABLE, _SET_VARIABLE):
            name = variable.removeprefix(VARIABLES).lower()
            _check_known(name, f"unknown variable {variable}", lambda near: VARIABLES + near.upper())
            yield name, value


def _check_known(name: str, what: str, shown: Any) -> None:
    if name not in _TYPES:
        near = difflib.get_close_matches(name, _TYPES, n=1, cutoff=0.5)
        known = ", ".join(map(shown, _TYPES))
        hint = f"did you mean {shown(near[0])}?" if near else f"the options are {known}"
        raise InvalidOptionError(f"{what}\nhint: {hint}", option=name)


def _from_text(name: str, text: str, source: str) -> object:
    kind, _ = _kind(name)
    try:
        return _BOOLEANS[text.lower()] if kind is bool else _none_or(name, kind(text))
    except (KeyError, ValueError):
        raise _wrong(source, kind, text, name) from None


def _none_or(name: str, value: object) -> object:
    _, optional = _kind(name)
    return None if optional and value == "none" else value


def _kind(name: str) -> tuple[type, bool]:
    """Returns the type of an option, and whether it can be None."""
    hint = _TYPES[name]
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(kind for kind in kinds if kind in _KINDS), types.NoneType in kinds


def _wrong(source: str, kind: type, value: object, name: str) -> InvalidOptionError:
    return InvalidOptionError(f"{source} must be {_KINDS[kind]}, got {value!r}", option=name)


def _settings(given: Iterable[str], source: str) -> dict[str, object]:
    """Parses `NAME=VALUE`. A value that is valid JSON is read as JSON, any other as text."""
    found: dict[str, object] = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals:
            text = f"{source}: {setting!r} has no value\nhint: NAME=VALUE, a setting of BrokerConfig"
            raise InvalidOptionError(text, option="set")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
