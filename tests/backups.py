"""Looks at backups as a stranger would: by their files and their manifest alone.

In:     a folder of backups.
Out:    the complete ones; an assertion if one is not as its manifest says; a copy to open.
Always: shares no code with `txstore.backup`.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

__all__ = ["backups_in", "manifest_of", "must_be_whole", "restored"]


def backups_in(folder: Path) -> list[Path]:
    """The complete backups of a folder, by time."""
    names = [
        one for one in (folder.iterdir() if folder.exists() else ()) if re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z", one.name)
    ]
    return sorted(names)


def manifest_of(backup: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((backup / "txstore/backup.json").read_text())
    return facts


def must_be_whole(backup: Path) -> None:
    """Each file has the size and the CRC of the manifest, the log has no gap, and there are no other files."""
    facts = manifest_of(backup)
    own = dict(facts)
    crc = own.pop("crc32")
    assert f"{zlib.crc32(json.dumps(own, sort_keys=True, separators=(',', ':')).encode()):08x}" == crc
    at, size = facts["log"]["first"], facts["log"]["fileSize"]
    for file in facts["files"]:
        data = (backup / file["path"]).read_bytes()
        is_log = file["records"] is not None
        assert len(data) == (size if is_log else file["bytes"]), file
        assert f"{zlib.crc32(data[: file['bytes']]):08x}" == file["crc32"], file
        assert not any(data[file["bytes"] :]), f"bytes after the log's end: {file}"
        if is_log:
            assert file["path"] == f"commitlog/{at:020}"
            at += file["bytes"]
    assert at == facts["log"]["end"]
    found = {one.relative_to(backup).as_posix() for one in backup.rglob("*") if one.is_file()}
    assert found == {file["path"] for file in facts["files"]} | {"txstore/backup.json"}


def restored(backup: Path, to: Path) -> Path:
    """A copy to open, as docs/operate/backup.md makes it."""
    return shutil.copytree(backup, to)
