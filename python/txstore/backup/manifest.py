"""The manifest of a backup: which store, when, how much of its log, and each file with its size and CRC.

In:     what was copied.
Out:    `txstore/backup.json` in the backup: JSON.
Always: written after all other files of the backup. A manifest that is incomplete or was changed is not accepted.
Not here: which backups there are (`destination`).

| field            | content                                                                                 |
|------------------|-----------------------------------------------------------------------------------------|
| `version`        | 1                                                                                       |
| `txstore`        | the version that wrote it                                                               |
| `time`           | when the backup began, UTC                                                              |
| `store`          | the store's directory                                                                   |
| `storeId`        | the store's id, or null                                                                 |
| `previous`       | the backup whose files are shared, or null                                              |
| `log`            | `first` and `end` (physical offsets), `fileSize`                                        |
| `files`          | each with `path`, `bytes` (of a log file: up to the log's end), `crc32`, `modifiedNs` (a |
|                  | log file: of the store's file when it was copied), `records` and `linked`               |
| `crc32`          | of this JSON without this field, in compact form with sorted keys                       |
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txstore.errors import StoreCorruptError
from txstore.inspection.progress import Progress, unwatched

__all__ = ["MANIFEST", "Backup", "BackupFile", "is_unopened"]

MANIFEST = "txstore/backup.json"
_OPENED = "txstore/published"  # Each opening for writing creates it.
_VERSION = 1
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup."""

    path: str
    """Its path in the backup."""
    bytes: int
    """Its size; of a log file, how many bytes belong to the log."""
    crc32: int
    """The CRC-32 of these bytes, as `zlib.crc32` returns it."""
    modified_ns: int | None = None
    """Of a full log file: when the store's file was last written, in nanoseconds since the epoch."""
    records: int | None = None
    """Of a log file: how many records it holds. All were verified when it was copied."""
    is_linked: bool = False
    """Whether it is shared with the backup before, which has copied and verified it."""

    @property
    def is_log(self) -> bool:
        """Whether it is a file of the commit log."""
        return self.records is not None

    def as_json(self) -> dict[str, Any]:
        """Returns its form in the manifest."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "crc32": f"{self.crc32:08x}",
            "modifiedNs": self.modified_ns,
            "records": self.records,
            "linked": self.is_linked,
        }

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> BackupFile:
        """Returns the file that `as_json` described."""
        return cls(
            str(found["path"]),
            int(found["bytes"]),
            int(found["crc32"], 16),
            found["modifiedNs"],
            found["records"],
            bool(found["linked"]),
        )


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup, and what it holds. `path` is a whole store: restoring is opening a copy of it."""

    path: Path
    """Its folder."""
    time: datetime
    """When it began. All that was acknowledged before is in it."""
    store: str
    """The directory of the store."""
    store_id: str | None
    """The store's id: 32 hex digits; None if only a RocketMQ broker has written it."""
    first: int
    """The physical offset at which its log begins."""
    end: int
    """The physical offset after its last record."""
    file_size: int
    """Bytes of a file of the log; 0 if there are none."""
    previous: str | None
    """The name of the backup whose files it shares."""
    files: tuple[BackupFile, ...]
    """All files but the manifest, sorted by path."""
    txstore: str
    """The version of txstore that took it."""

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied for it: what is new since the backup before."""
        return sum(one.bytes for one in self.files if not one.is_linked)

    @property
    def linked_bytes(self) -> int:
        """Bytes that it shares with the backup before."""
        return sum(one.bytes for one in self.files if one.is_linked)

    @property
    def verified_records(self) -> int:
        """Records of the log that were copied; each was verified by the CRCs that it has."""
        return sum(one.records or 0 for one in self.files if not one.is_linked)

    def as_json(self) -> dict[str, Any]:
        """Returns the manifest."""
        facts: dict[str, Any] = {
            "version": _VERSION,
            "txstore": self.txstore,
            "time": self.time.isoformat(),
            "store": self.store,
            "storeId": self.store_id,
            "previous": self.previous,
            "log": {"first": self.first, "end": self.end, "fileSize": self.file_size},
            "files": [one.as_json() for one in self.files],
        }
        return facts | {"crc32": _crc(facts)}

    @classmethod
    def read(cls, folder: Path) -> Backup:
        """Reads the manifest of a backup. Raises StoreCorruptError if it is missing or damaged."""
        file = folder / MANIFEST
        try:
            found = json.loads(file.read_bytes())
            crc = found.pop("crc32")
            if crc != _crc(found) or found["version"] != _VERSION:
                raise ValueError("its checksum or its version is wrong")
            return cls._of_json(folder, found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{file} is not the manifest of a complete backup: {error}"
            raise StoreCorruptError(text, file=str(file), offset=0) from error

    def damages(self, progress: Progress = unwatched) -> list[str]:
        """Reads all files and returns what is wrong, a line for each file that differs from the manifest."""
        found: list[str] = []
        with progress("comparing with the manifest", sum(one.bytes for one in self.files)) as steps:
            done = 0
            for file in self.files:
                what = _difference(self.path / file.path, file)
                if what is not None:
                    found.append(f"{file.path}: {what}")
                done += file.bytes
                steps.to(done)
        return found

    @classmethod
    def _of_json(cls, folder: Path, found: dict[str, Any]) -> Backup:
        log = found["log"]
        return cls(
            folder,
            datetime.fromisoformat(found["time"]),
            found["store"],
            found["storeId"],
            log["first"],
            log["end"],
            log["fileSize"],
            found["previous"],
            tuple(map(BackupFile.of_json, found["files"])),
            found["txstore"],
        )


def is_unopened(folder: Path) -> bool:
    """Tells whether a folder is a backup, or a copy of one that was never opened for writing."""
    return (folder / MANIFEST).exists() and not (folder / _OPENED).exists()


def _difference(path: Path, file: BackupFile) -> str | None:
    """Returns how a file differs from what the manifest says, or None."""
    crc, left = 0, file.bytes
    try:
        with path.open("rb") as opened:
            while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
                crc, left = zlib.crc32(piece, crc), left - len(piece)
    except FileNotFoundError:
        return "it is missing, and the manifest has it"
    if left > 0:
        return f"it ends {left} bytes too early for the manifest"
    return None if crc == file.crc32 else "its bytes differ from those that the manifest has a CRC of"


def _crc(facts: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True, separators=(',', ':')).encode()):08x}"
