"""Logs: what a server tells on stderr, as text or as one JSON object a line.

In: the log's records, warnings, what no one caught, usage errors. Out: lines. Always: as JSON, every line is an object,
whatever goes wrong in Python or in the engine. Not here: what is logged.
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

import typer

from txstore import errors
from txstore._native import log_panics_as_json
from txstore.cli.main import exit_code

__all__ = ["errors_logged", "log_to_stderr", "usage_errors_logged"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_log = logging.getLogger("txstore.serve")


def log_to_stderr(form: str) -> None:
    """Raises InvalidOptionError for what is neither text nor json."""
    if form not in ("text", "json"):
        raise errors.InvalidOptionError(f"--log {form!r} is neither text nor json", option="log")
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(_JsonLines() if form == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    if form == "json":
        _catch_the_rest()


@contextmanager
def errors_logged(form: str) -> Iterator[None]:
    """As JSON, what ends the command is a line of the log, too; its exit code is the same."""
    try:
        yield
    except (errors.TxStoreError, OSError) as error:
        if form != "json":
            raise
        _log.critical("%s", error, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code(error)) from None


@contextmanager
def usage_errors_logged(arguments: Sequence[str]) -> Iterator[None]:
    """Arguments that are no good are a line of the log, if the log that they ask for is JSON."""
    asked = [*itertools.pairwise(arguments), *(tuple(one.split("=", 1)) for one in arguments)]
    try:
        yield
    except typer.TyperException as error:
        if ("--log", "json") not in asked:
            raise
        log_to_stderr("json")
        _log.critical("%s", error.format_message(), extra={"error": "UsageError"})
        raise typer.Exit(error.exit_code) from None


class _JsonLines(logging.Formatter):
    """A record as one JSON object."""

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
    """A record whose arguments do not fit its text is told all the same."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


def _plain(value: object) -> object:
    """What JSON knows as it is, all else as text."""
    return value if value is None or isinstance(value, str | bool | int) else str(value)


def _catch_the_rest() -> None:
    """What ends a thread or the process, and what Python cannot raise, would be told as text."""

    def uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
        _log.critical("the process ends: %s: %s", kind.__name__, error, exc_info=error)

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
