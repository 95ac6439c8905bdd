"""Golden stores: unpacked once, compared with their hashes, copied for tests that write.

In:     an archive's name.
Out:    its store directory and its manifest, read.
Always: an unpacked store is only read; a test that writes takes a copy.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import zstandard

ARCHIVES = Path(__file__).parent / "stores"
# What an earlier txstore wrote; a broker wrote all others.
OWN = ["txstore-closed", "txstore-killed"]
NAMES = sorted({path.name.removesuffix(".tar.zst") for path in ARCHIVES.glob("*.tar.zst")} - set(OWN))
# These hold transactions; the other ones only plain messages.
TRANSACTIONAL = ["5.3.3-tx", "tx", "tx-crash", "tx-ipv6"]


@dataclass(frozen=True)
class Golden:
    """One unpacked archive."""

    name: str
    store: Path
    manifest_path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.manifest_path.read_text())
        return loaded

    def copy_to(self, directory: Path) -> Path:
        """A copy of the store, to write to."""
        return shutil.copytree(self.store, directory / self.name)


def unpack(name: str, directory: Path) -> Golden:
    """Unpacks one archive below `directory`, after comparing its hash."""
    packed = (ARCHIVES / f"{name}.tar.zst").read_bytes()
    if f"{hashlib.sha256(packed).hexdigest()}  {name}.tar.zst" not in (ARCHIVES / "SHA256SUMS").read_text():
        raise ValueError(f"{name}.tar.zst does not have the hash in SHA256SUMS")
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(directory, filter="data")
    (manifest,) = directory.glob("**/manifest.json")
    return Golden(name, manifest.parent / "store", manifest)


def file_hashes(store: Path) -> dict[str, str]:
    """SHA-256 of every file of a store."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file())
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Unpacked:
    """The golden stores of one test run, each unpacked on first use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Golden] = {}

    def __getitem__(self, name: str) -> Golden:
        if name not in self._known:
            self._known[name] = unpack(name, self._directory / name)
        return self._known[name]
