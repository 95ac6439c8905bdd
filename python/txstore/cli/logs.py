"""Logs: a server's log lines on stderr, as text or as one JSON object per line.

In:     log records, warnings, uncaught exceptions, usage errors.
Out:    lines.
Always: with JSON, every line is an object, whatever fails in Python or in the engine. With text, only the server
        begins a line: what clients say is escaped. Clients cannot fill the log: equal lines are limited in number,
        each line in length.
By hand: the JSON lines. python-json-logger raises for arguments that do not fit, writes NaN, and limits no length.
Not here: what is logged.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.main import get_command

from txstore import errors
from txstore._native import log_panics_as_json
from txstore.cli.exit_codes import exit_code
from txstore.cli.flags import flags_of, in_flags
from txstore.cli.output import printable

__all__ = ["FORMS", "errors_logged", "log_to_stderr", "usage_errors_logged"]

FORMS = ("text", "json")
"""Of a log."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_log = logging.getLogger("txstore.serve")

_CHARACTERS_MAX = 4_000
_LINES_MAX = 20
"""Of one kind in a period."""
_PERIOD_SECONDS = 10.0


def log_to_stderr(form: str) -> None:
    """Sets up logging in the form `text` or `json`, again if need be. Raises InvalidOptionError for any other form."""
    if form not in FORMS:
        raise errors.InvalidOptionError(f"--log must be {' or '.join(FORMS)}, got {form!r}", option="log")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines("%(asctime)s %(levelname)-7s %(message)s"))
    handler.addFilter(_LineLimit())
    root = logging.getLogger()
    for before in [one for one in root.handlers if isinstance(one.formatter, _JsonLines | _TextLines)]:
        root.removeHandler(before)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # The console's own lines say the same.
    logging.captureWarnings(True)
    if form == "json":
        _catch_the_rest()


@contextmanager
def errors_logged(form: str, app: typer.Typer) -> Iterator[None]:
    """With JSON, logs the error that ends the command of `app` as a line, too. The exit code is the same."""
    try:
        yield
    except (errors.TxStoreError, OSError) as error:
        if form != "json":
            raise
        text = str(error)
        if isinstance(error, errors.InvalidOptionError):
            text = in_flags(text, flags_of(get_command(app)))
        _log.critical("%s", text, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code(error)) from None


@contextmanager
def usage_errors_logged(arguments: Sequence[str]) -> Iterator[None]:
    """Logs wrong arguments as a JSON line if the arguments ask for a JSON log."""
    asked = [*itertools.pairwise(arguments), *(tuple(one.split("=", 1)) for one in arguments)]
    try:
        yield
    except typer.TyperException as error:
        if ("--log", "json") not in asked:
            raise
        log_to_stderr("json")
        _log.critical("%s", error.format_message(), extra={"error": "UsageError"})
        raise typer.Exit(error.exit_code) from None


class _LineLimit(logging.Filter):
    """Leaves out lines that clients cause, where there are many of one kind; the next one says how many."""

    def __init__(self) -> None:
        super().__init__("txstore.remoting")
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True  # Not about a client.
        kind = str(record.msg)
        began, count = self._kinds.get(kind, (record.created, 0))
        if record.created - began >= _PERIOD_SECONDS:
            left_out = max(0, count - _LINES_MAX)
            began, count = record.created, 0
            if left_out > 0:
                record.msg, record.args = f"%s (left out before: {left_out} lines like this)", (_message(record),)
        self._kinds[kind] = began, count + 1
        return count < _LINES_MAX


class _TextLines(logging.Formatter):
    """A record as text: its lines after the first are indented, other control characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # The name of the class above.
        record.message = _escaped(_message(record))
        return super().formatMessage(record)

    def formatException(self, info: Any) -> str:  # noqa: N802  # The name of the class above.
        return "  " + _escaped(super().formatException(info))


def _escaped(text: str) -> str:
    """Text that cannot be taken for lines of the log, and does not change a terminal."""
    return "\n  ".join(map(printable, text.split("\n")))


class _JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        facts |= {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def _message(record: logging.LogRecord) -> str:
    """Returns a record's text, even if its arguments do not fit."""
    try:
        text = record.getMessage()
    except Exception:
        text = f"{record.msg} {record.args!r}"
    return _short(text)


def _plain(value: object) -> object:
    """Returns values that JSON has unchanged, all others as text."""
    return value if value is None or isinstance(value, bool | int) else _short(str(value))


def _short(text: str) -> str:
    """Returns the beginning of a long text."""
    return text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}… ({len(text)} characters)"


def _catch_the_rest() -> None:
    """Logs what would otherwise reach stderr as text: uncaught exceptions, ended threads, errors in destructors."""

    def uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
        _log.critical("the process exits: %s: %s", kind.__name__, error, exc_info=error)

    def ended(happened: threading.ExceptHookArgs) -> None:
        name = happened.thread.name if happened.thread is not None else "unknown"
        _log.error("a thread ended: %s", happened.exc_value, exc_info=happened.exc_value, extra={"thread_name": name})

    def ignored(happened: sys.UnraisableHookArgs) -> None:
        what = happened.err_msg or "an exception could not be raised"
        _log.error("%s: %s", what, happened.exc_value, exc_info=happened.exc_value)

    sys.excepthook = uncaught
    threading.excepthook = ended
    sys.unraisablehook = ignored
    log_panics_as_json()
