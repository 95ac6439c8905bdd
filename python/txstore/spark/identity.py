"""Identity: tells whether a store is the one that was read before.

In:     a store's directory, and how far it was read.
Out:    a `Mark` to keep with that offset, as JSON; an error if another store is at the path later.
Always: the last record that was read decides. If retention has removed it, the store's id decides. A RocketMQ broker's
        store has no id.
Not here: which offsets may be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from txstore import _native
from txstore.errors import InvalidOptionError

__all__ = ["Keeper", "Mark"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Keeper:
    """What keeps a mark, and how errors name it."""

    name: str
    option: str
    hint: str
    """The next step for a user whose store is another one."""


@dataclass(frozen=True)
class Record:
    """The facts that tell a record from any other at the same physical offset."""

    physical_offset: int
    message_id: str
    store_ms: int

    @classmethod
    def of(cls, name: _native.RecordName | None) -> Record | None:
        """Converts the record that the engine found; None if there is none."""
        return None if name is None else cls(name.physical_offset, name.message_id, name.store_timestamp_ms)

    def __str__(self) -> str:
        stored = (_EPOCH + timedelta(milliseconds=self.store_ms)).isoformat(timespec="milliseconds")
        return f"message {self.message_id} at offset {self.physical_offset}, stored at {stored}"


@dataclass(frozen=True)
class Mark:
    """A store that was read up to an offset: its id, and the last record before that offset."""

    store_id: str | None
    last: Record | None

    @classmethod
    def of(cls, path: str, end: int) -> Mark:
        """Returns the mark of a store that is read up to `end`, a physical offset where a record begins."""
        return cls(_native.log_store_id(path), Record.of(_native.log_last_record(path, end)))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Mark:
        """Reads a mark of `to_json`. Raises KeyError or TypeError for anything else."""
        store, last = found["store"], found["last"]
        if not isinstance(store, str | None):
            raise TypeError(f"a store's id must be a str or null, got {store!r}")
        return cls(store, None if last is None else Record(int(last["phy"]), str(last["id"]), int(last["ms"])))

    def to_json(self) -> dict[str, Any]:
        """Returns the mark as JSON values."""
        last = self.last
        record = None if last is None else {"phy": last.physical_offset, "id": last.message_id, "ms": last.store_ms}
        return {"store": self.store_id, "last": record}

    def check(self, path: str, first: int, end: int, keeper: Keeper) -> None:
        """Raises InvalidOptionError if another store is at `path`.

        `first` is where its log begins; `end` is how far the store of this mark was read.
        """
        if self.last is not None and self.last.physical_offset >= first:
            found = Record.of(_native.log_record(path, self.last.physical_offset))
            # The same record is enough, whatever the ids say: a release without ids drops a store's id when it writes.
            if found != self.last:
                raise self._another(path, _native.log_store_id(path), found, end, keeper)
            return
        store_id = _native.log_store_id(path)
        if end > 0 and None not in (store_id, self.store_id) and store_id != self.store_id:
            raise self._another(path, store_id, None, end, keeper)

    def _another(
        self, path: str, store_id: str | None, found: Record | None, end: int, keeper: Keeper
    ) -> InvalidOptionError:
        last = "" if self.last is None else f"; the last record before it is {self.last}"
        there = "" if self.last is None else "; it does not have that record"
        there = f"; it has {found} there" if found is not None else there
        why = ""
        if store_id is not None and store_id == self.store_id:
            why = "\nthe ids are equal: an older copy was restored, or lost power removed what was not flushed"
        return InvalidOptionError(
            f"option {keeper.option}: {path} is not the store that {keeper.name} was made from\n"
            f"{keeper.name}: {_named(self.store_id)}, read up to offset {end}{last}\n"
            f"{path}: {_named(store_id)}{there}{why}\nhint: {keeper.hint}",
            option=keeper.option,
        )


def _named(store_id: str | None) -> str:
    return "a store without an id" if store_id is None else f"store {store_id}"
