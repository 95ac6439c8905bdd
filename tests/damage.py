"""Overwrites a record of a store while a broker or a server has the store open.

In:     the store's directory, the body of a message.
Out:    a record that no reader can decode.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["overwrite_record"]


def overwrite_record(store: Path, body: bytes) -> None:
    """Replaces the beginning of the record with this body: its size, its magic code and its checksum."""
    for path in sorted((store / "commitlog").iterdir()):
        found = path.read_bytes().find(body)
        if found >= 0:
            with path.open("r+b") as file:
                file.seek(found - 88)
                file.write(b"\xde\xad\xbe\xef" * 3)
            return
    raise AssertionError(f"{body!r} is not in the log")
