"""Retention: decides which commit log files may be removed, and the job that has them removed.

In:     facts about the log's oldest files (from the engine), the settings.
Out:    the physical offset below which the log may be removed.
Always: `removable` is pure. Only whole files are removed, oldest first. A pending half or a waiting delayed message
        keeps its file whatever the settings say; an unread message keeps it unless the settings say otherwise.
Not here: removing (the engine, which checks again what is needed), discarding old pending transactions
        (`transactions`), the thread (`housekeeping`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from txstore._native import Store
from txstore.config import BrokerConfig, milliseconds
from txstore.errors import InvalidOptionError

__all__ = ["ExpiredFiles", "LogFiles", "Retention", "RetentionRules", "check_store_bytes_max", "removable"]

_log = logging.getLogger("txstore.retention")
_FILES_AT_ONCE = 16  # A round stops here, so that the other background jobs get their turn.


class LogFile(Protocol):
    """Facts about one of the log's oldest files. The engine's `LogFile` satisfies it."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def age_ms(self) -> int: ...
    @property
    def held(self) -> bool: ...
    @property
    def unread(self) -> bool: ...


class ExpiredFiles(Protocol):
    """The result of a removal. The engine's `Expired` satisfies it."""

    @property
    def minimum(self) -> int: ...
    @property
    def log_files(self) -> int: ...
    @property
    def queue_files(self) -> int: ...
    @property
    def index_files(self) -> int: ...


class LogEnd(Protocol):
    """Where the log ends. The engine's `StoreStat` satisfies it."""

    @property
    def max_physical_offset(self) -> int: ...


class LogFiles(Protocol):
    """The calls that inspect and remove log files. The engine's store has them."""

    def log_files(self, limit: int) -> Sequence[LogFile]: ...
    def stat(self) -> LogEnd: ...
    def remove_log_files(self, below: int, *, keep_unread: bool) -> ExpiredFiles: ...


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The settings that `removable` uses."""

    file_reserved_time_ms: int
    delete_unread: bool
    store_bytes_max: int | None
    hours: frozenset[int]
    """Hours of the day (local time) in which age deletes."""

    @classmethod
    def of(cls, config: BrokerConfig) -> "RetentionRules":
        return cls(
            file_reserved_time_ms=milliseconds(config.file_reserved_time),
            delete_unread=config.delete_unread,
            store_bytes_max=config.store_bytes_max,
            hours=frozenset(config.delete_hours),
        )


@dataclass(frozen=True, slots=True)
class Removable:
    """The physical offsets below which the log may be removed; 0 for nothing."""

    read: int = 0
    """Files below it are too old, or too many, and hold nothing unread."""
    unread: int = 0
    """Files below it may be removed whether they are read or not."""
    stopped_by: str | None = None
    """Why a file that is too old, or one too many, is kept."""


def removable(files: Sequence[LogFile], end: int, hour: int, rules: RetentionRules) -> Removable:
    """Decides what may be removed. Pure: the ages in `files` and the `hour` of the day are the only clock. `end` is
    the physical offset at which the log ends."""
    read = unread = 0
    for file in files:
        too_old = hour in rules.hours and file.age_ms > rules.file_reserved_time_ms
        too_much = rules.store_bytes_max is not None and end - file.first > rules.store_bytes_max
        if not (too_old or too_much):
            break
        if file.held:
            return Removable(read, unread, "it holds a pending transaction or a delayed message that is not due")
        if file.unread and not (too_much or rules.delete_unread):
            return Removable(read, unread, "a group has not read it (delete_unread, store_bytes_max)")
        if file.unread:
            unread = file.end
        else:
            read = file.end
    return Removable(read, unread)


class Retention:
    """The housekeeping job that removes old files. `time_ms` is the wall clock, used only for `delete_when`."""

    def __init__(self, store: LogFiles, rules: RetentionRules, time_ms: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._time_ms = time_ms
        self._stopped_at: tuple[int, str] | None = None

    def round(self) -> float | None:
        """Removes files; returns seconds until there is more to do, None for the next interval."""
        files = self._store.log_files(_FILES_AT_ONCE)
        if not files:
            return None
        hour = datetime.fromtimestamp(self._time_ms() / 1000).hour
        found = removable(files, self._store.stat().max_physical_offset, hour, self._rules)
        self._log_kept_file(files, found)
        # The engine itself checks that nothing unread is removed, because a group may just have been reset.
        removed = 0
        for below, keep_unread in ((found.unread, False), (found.read, True)):
            if below:
                removed += self._remove(below, keep_unread)
        return 0.0 if removed == _FILES_AT_ONCE else None

    def _remove(self, below: int, keep_unread: bool) -> int:
        expired = self._store.remove_log_files(below, keep_unread=keep_unread)
        if expired.log_files:
            fields = {"minimum": expired.minimum, "files": expired.log_files, "keep_unread": keep_unread}
            _log.info("%d log files removed; the log begins at %d", expired.log_files, expired.minimum, extra=fields)
        return expired.log_files

    def _log_kept_file(self, files: Sequence[LogFile], found: Removable) -> None:
        """Logs once for each file and reason why a file is kept."""
        if found.stopped_by is None:
            return
        at = max(found.read, found.unread) or files[0].first
        if self._stopped_at != (at, found.stopped_by):
            self._stopped_at = (at, found.stopped_by)
            _log.warning("the log file at %d is kept: %s", at, found.stopped_by, extra={"physical_offset": at})


def check_store_bytes_max(config: BrokerConfig, store: Store) -> None:
    """Raises InvalidOptionError if `store_bytes_max` is less than two files.

    Whole files are removed, but never the current one, so below two files nothing would be left.
    """
    size = store.stat().commit_log_file_size
    if config.store_bytes_max is not None and not store.read_only and config.store_bytes_max < 2 * size:
        raise InvalidOptionError(
            f"store_bytes_max {config.store_bytes_max} is less than two commit log files of {size} bytes each\n"
            "hint: raise it; a new store can have smaller files with mapped_file_size_commit_log",
            option="store_bytes_max",
        )
