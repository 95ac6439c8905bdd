"""Retention: which files of the log are too old, too many, or still needed; the job that has them removed.

In: facts about the log's first files (the engine's), the settings. Out: how far the log's front may go. Always:
`removable` is pure; whole files only, from the front; a pending half and a waiting delayed message keep their file
whatever the settings say, an unread message unless they say otherwise. Not here: removing (the engine does, and looks
again at what is needed), discarding what pends too long (`check`), the thread (`housekeeping`).
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
_FILES_AT_ONCE = 16  # A round removes at most so many; then the other jobs get their turn.


class LogFile(Protocol):
    """Facts about one file at the log's front; the engine's `LogFile`."""

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
    """What a removal did; the engine's `Expired`."""

    @property
    def minimum(self) -> int: ...
    @property
    def log_files(self) -> int: ...
    @property
    def queue_files(self) -> int: ...
    @property
    def index_files(self) -> int: ...


class Figures(Protocol):
    """Where the log ends, from the engine's `StoreStat`."""

    @property
    def max_physical_offset(self) -> int: ...


class LogFiles(Protocol):
    """What removes: the engine's store."""

    def log_files(self, limit: int) -> Sequence[LogFile]: ...
    def stat(self) -> Figures: ...
    def remove_log_files(self, below: int, *, keep_unread: bool) -> ExpiredFiles: ...


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The settings that `removable` goes by."""

    file_reserved_time_ms: int
    delete_unread: bool
    store_bytes_max: int | None
    hours: frozenset[int]
    """Hours of the day (local time) in which age counts."""

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
    """How far the front of the log may go, as physical offsets; 0: nothing may."""

    read: int = 0
    """Below it files are too old, or too many, and hold nothing unread."""
    unread: int = 0
    """Below it they may go whether they are read or not."""
    stopped_by: str | None = None
    """Why a file that is too old, or one too many, stays."""


def removable(files: Sequence[LogFile], end: int, hour: int, rules: RetentionRules) -> Removable:
    """Pure: the ages in `files`, and the `hour` of the day, are the only time there is. `end`: where the log ends."""
    read = unread = 0
    for file in files:
        too_old = hour in rules.hours and file.age_ms > rules.file_reserved_time_ms
        too_much = rules.store_bytes_max is not None and end - file.first > rules.store_bytes_max
        if not (too_old or too_much):
            break
        if file.held:
            return Removable(read, unread, "a transaction pends in it, or a delayed message waits")
        if file.unread and not (too_much or rules.delete_unread):
            return Removable(read, unread, "a group has not read it (delete_unread, store_bytes_max)")
        if file.unread:
            unread = file.end
        else:
            read = file.end
    return Removable(read, unread)


class Retention:
    """The job of housekeeping. `time_ms`: the wall clock, for the hours of `delete_when` alone."""

    def __init__(self, store: LogFiles, rules: RetentionRules, time_ms: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._time_ms = time_ms
        self._stopped_at: tuple[int, str] | None = None

    def round(self) -> float | None:
        """Removes what may go; seconds until there is more to do, None: at the next interval."""
        files = self._store.log_files(_FILES_AT_ONCE)
        if not files:
            return None
        hour = datetime.fromtimestamp(self._time_ms() / 1000).hour
        found = removable(files, self._store.stat().max_physical_offset, hour, self._rules)
        self._tell_what_stays(files, found)
        # What is read goes under the engine's own eye for what is not: somebody may just have reset a group.
        removed = 0
        for below, keep_unread in ((found.unread, False), (found.read, True)):
            if below:
                removed += self._remove(below, keep_unread)
        return 0.0 if removed == _FILES_AT_ONCE else None

    def _remove(self, below: int, keep_unread: bool) -> int:
        expired = self._store.remove_log_files(below, keep_unread=keep_unread)
        if expired.log_files:
            fields = {"minimum": expired.minimum, "files": expired.log_files, "keep_unread": keep_unread}
            _log.info("%d files of the log removed; it begins at %d", expired.log_files, expired.minimum, extra=fields)
        return expired.log_files

    def _tell_what_stays(self, files: Sequence[LogFile], found: Removable) -> None:
        """Once for each file and reason."""
        if found.stopped_by is None:
            return
        at = max(found.read, found.unread) or files[0].first
        if self._stopped_at != (at, found.stopped_by):
            self._stopped_at = (at, found.stopped_by)
            _log.warning("the log's file at %d stays: %s", at, found.stopped_by, extra={"physical_offset": at})


def check_store_bytes_max(config: BrokerConfig, store: Store) -> None:
    """Raises InvalidOptionError if `store_bytes_max` is less than two files.

    Whole files go, and never the one that is written: below two files nothing would be left.
    """
    size = store.stat().commit_log_file_size
    if config.store_bytes_max is not None and not store.read_only and config.store_bytes_max < 2 * size:
        raise InvalidOptionError(
            f"store_bytes_max {config.store_bytes_max} is less than two files of the log, of {size} bytes each\n"
            "hint: raise it; a new store may have smaller files, by mapped_file_size_commit_log",
            option="store_bytes_max",
        )
