"""The record of transactions that have escaped to another broker: `txstore/escaped.jsonl` of a store.

In:     what a replica is about to send, and what became of it; which replicas may let transactions escape.
Out:    the last state of each transaction.
Always: a record is synced before `add` returns. Each line has a CRC-32; an incomplete last line is what a crash cut,
        and is not read; after a failed write the whole file is replaced. Damage before it raises StoreCorruptError.
Not here: who sends (`server/escape`), what a returning source does with the records (`server/returning`).
"""

import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from txstore.errors import StoreCorruptError
from txstore.message import utc
from txstore.transactions.escaped import EscapedTransaction, EscapeState

__all__ = ["EscapeJournal", "escape_of", "escaping_replicas", "facts_of", "read_escapes"]

_PATH = "txstore/escaped.jsonl"
_CRC_DIGITS = 8
_OWN = ""  # Instead of a replica's name: this store.


class EscapeJournal:
    """The records of one store, for the process that writes the store. Thread-safe."""

    def __init__(self, path: str | os.PathLike[str], first_physical_offset: int = 0) -> None:
        """Reads the records, and drops those of half messages below `first_physical_offset`, which retention removed.

        Raises StoreCorruptError, and OSError if the file cannot be read or written.
        """
        self._path = Path(path) / _PATH
        self._lock = threading.Lock()
        self._replicas: dict[str, bool] = {}
        self._may_end_torn = False  # A write or sync failed: what it left in the file is not known.
        self._escapes: dict[int, EscapedTransaction] = {}
        self.version: int = 0
        """Grows with each record."""
        lines, end = _read(self._path)
        if lines is None:
            return
        for line in lines:
            self._apply(line)
        kept = {key: one for key, one in self._escapes.items() if one.physical_offset >= first_physical_offset}
        if end < self._path.stat().st_size or len(kept) < len(self._escapes):
            self._escapes = kept
            self._write_again()

    def escapes(self) -> list[EscapedTransaction]:
        """Returns the transactions, by half queue offset."""
        with self._lock:
            return [self._escapes[key] for key in sorted(self._escapes)]

    def get(self, half_queue_offset: int) -> EscapedTransaction | None:
        """Returns a transaction by its half queue offset; None if it has not escaped."""
        return self._escapes.get(half_queue_offset)

    def replicas(self) -> set[str]:
        """Returns the names of this store's replicas that may let transactions escape."""
        with self._lock:
            return {name for name, may in self._replicas.items() if may and name != _OWN}

    @property
    def is_own_known(self) -> bool:
        """Whether the source knows that transactions may escape from this store."""
        return self._replicas.get(_OWN, False)

    def note_own(self, *, escapes: bool) -> None:
        """Records whether the source knows that transactions may escape from this store. Idempotent."""
        self.note_replica(_OWN, escapes=escapes)

    def add(self, escapes: Iterable[EscapedTransaction]) -> None:
        """Records the states of transactions. Those that are recorded already are skipped."""
        with self._lock:
            new = [one for one in escapes if self._escapes.get(one.half_queue_offset) != one]
            self._append([facts_of(one) for one in new])

    def note_replica(self, name: str, *, escapes: bool) -> None:
        """Records whether a replica may let transactions escape. Idempotent."""
        with self._lock:
            if self._replicas.get(name, False) != escapes:
                self._append([{"replica": name, "escapes": escapes}])

    def _append(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        if self._may_end_torn:
            self._write_again()
        is_new = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._may_end_torn = True
        with self._path.open("ab") as file:
            file.write(b"".join(map(_line, records)))
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_directory(self._path.parent)
        self._may_end_torn = False
        for record in records:
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        self.version += 1
        if "replica" in record:
            self._replicas[record["replica"]] = record["escapes"]
        else:
            one = escape_of(record)
            self._escapes[one.half_queue_offset] = one

    def _write_again(self) -> None:
        records = [{"replica": name, "escapes": True} for name, may in self._replicas.items() if may]
        records += [facts_of(one) for one in self._escapes.values()]
        new = self._path.with_suffix(".tmp")
        with new.open("wb") as file:
            file.write(b"".join(map(_line, records)))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        _sync_directory(self._path.parent)
        self._may_end_torn = False


def read_escapes(path: str | os.PathLike[str]) -> list[EscapedTransaction]:
    """Returns the escaped transactions of a store, which another process may write. Raises StoreCorruptError."""
    lines, _ = _read(Path(path) / _PATH)
    found = {one.half_queue_offset: one for one in map(escape_of, (row for row in lines or () if "half" in row))}
    return [found[key] for key in sorted(found)]


def escaping_replicas(path: str | os.PathLike[str]) -> set[str]:
    """Returns the names of a store's replicas that may let transactions escape. Raises StoreCorruptError."""
    lines, _ = _read(Path(path) / _PATH)
    found = {row["replica"]: row["escapes"] for row in lines or () if "replica" in row}
    return {name for name, may in found.items() if may and name != _OWN}


def facts_of(one: EscapedTransaction) -> dict[str, Any]:
    """Returns a transaction as a JSON object."""
    return {
        "half": one.half_queue_offset,
        "at": one.physical_offset,
        "id": one.transaction_id,
        "group": one.producer_group,
        "topic": one.topic,
        "broker": one.broker_name,
        "txstore": one.is_txstore,
        "state": one.state.value,
        "time": round(one.time.timestamp() * 1000),
    }


def escape_of(facts: Mapping[str, Any]) -> EscapedTransaction:
    """Returns the transaction that `facts_of` was given. Raises KeyError, TypeError or ValueError for other facts."""
    return EscapedTransaction(
        transaction_id=str(facts["id"]),
        producer_group=str(facts["group"]),
        topic=str(facts["topic"]),
        half_queue_offset=int(facts["half"]),
        physical_offset=int(facts["at"]),
        broker_name=str(facts["broker"]),
        is_txstore=facts["txstore"] is True,
        state=EscapeState(facts["state"]),
        time=utc(int(facts["time"])),
    )


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(path: Path) -> tuple[list[dict[str, Any]] | None, int]:
    """Returns the records of a file, and where the last whole one ends; None without a file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, 0
    found, end = [], 0
    for line in data.splitlines(keepends=True):
        record = _record(line)
        if record is None:
            if end + len(line) < len(data):
                text = f"{path} is damaged at byte {end}: it does not say which transactions have escaped"
                hint = "keep the file; without it, escaped transactions are checked here again"
                raise StoreCorruptError(f"{text}\nhint: {hint}", file=str(path), offset=end)
            break
        found.append(record)
        end += len(line)
    return found, end


def _record(line: bytes) -> dict[str, Any] | None:
    text = line[_CRC_DIGITS + 1 :].removesuffix(b"\n")
    if not line.endswith(b"\n") or line[:_CRC_DIGITS] != b"%08x" % zlib.crc32(text):
        return None
    record: dict[str, Any] = json.loads(text)
    return record


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
