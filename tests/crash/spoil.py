"""Damages a store's files on purpose, one at a time, in every way that was met in practice.

In:     a store directory, which kind of file, which kind of damage, a random generator.
Out:    the store changed, and which bytes.
Always: the same generator does the same.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Kind of file → which files those are.
FILES: dict[str, str] = {
    "log": "commitlog/0*",
    "half queue": "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/*/*",
    "op queue": "consumequeue/RMQ_SYS_TRANS_OP_HALF_TOPIC/*/*",
    "queue": "consumequeue/[!R]*/*/*",
    "index": "index/*",
    "checkpoint": "checkpoint",
    "abort": "abort",
    "lock": "lock",
    "guard": "commitlog/!*",
    "topics": "config/topics.json",
    "offsets": "config/consumerOffset.json",
    "groups": "config/subscriptionGroup.json",
    "published": "txstore/published",
    "snapshot": "txstore/snapshot",
    "settings": "txstore/settings.json",
}
DERIVED = {"half queue", "op queue", "queue", "index", "checkpoint", "published", "snapshot"}
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@dataclass(frozen=True)
class Spoilt:
    """The damage that was done."""

    file: str
    start: int
    end: int
    """Which bytes are others now."""

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start} to {self.end}"


Damage = Callable[[Path, random.Random], tuple[int, int]]


def _used(data: bytearray) -> int:
    """The number of bytes before the zeros at the end."""
    return max(1, len(data.rstrip(b"\0")))


def _rewrite(change: Callable[[bytearray, random.Random], tuple[int, int]]) -> Damage:
    def damage(file: Path, luck: random.Random) -> tuple[int, int]:
        data = bytearray(file.read_bytes() or b"\0")
        span = change(data, luck)
        file.write_bytes(data)
        return span

    return damage


def _flip(data: bytearray, luck: random.Random) -> tuple[int, int]:
    at = luck.randrange(_used(data))
    data[at] ^= 1 << luck.randrange(8)
    return at, at + 1


def _head(data: bytearray, luck: random.Random) -> tuple[int, int]:
    """Changes magics, versions and lengths at the beginning of the file, as another version would write them."""
    at = luck.randrange(min(16, len(data)))
    data[at] = (data[at] + luck.choice([1, 255])) % 256
    return at, at + 1


def _zeros(data: bytearray, luck: random.Random) -> tuple[int, int]:
    at = luck.randrange(_used(data))
    end = min(len(data), at + luck.choice([1, 4, 64, 512]))
    data[at:end] = bytes(end - at)
    return at, end


def _noise(data: bytearray, luck: random.Random) -> tuple[int, int]:
    at = luck.randrange(_used(data))
    end = min(len(data), at + luck.choice([4, 64, 512]))
    data[at:end] = luck.randbytes(end - at)
    return at, end


def _foreign(data: bytearray, luck: random.Random) -> tuple[int, int]:
    data[:] = (_PNG + luck.randbytes(len(data)))[: len(data)]
    return 0, len(data)


def _foreign_shorter(data: bytearray, luck: random.Random) -> tuple[int, int]:
    length = len(data)
    data[:] = _PNG + luck.randbytes(luck.randrange(200))
    return 0, max(length, len(data))


def _cut(data: bytearray, luck: random.Random) -> tuple[int, int]:
    length, kept = len(data), luck.choice([len(data) - 1, len(data) // 2, luck.randrange(len(data))])
    del data[kept:]
    return kept, length


def _emptied(data: bytearray, luck: random.Random) -> tuple[int, int]:
    length = len(data)
    data.clear()
    return 0, length


def _longer(data: bytearray, luck: random.Random) -> tuple[int, int]:
    length = len(data)
    data += luck.choice([bytes(luck.randrange(1, 5000)), luck.randbytes(luck.randrange(1, 5000))])
    return length, len(data)


def _removed(file: Path, luck: random.Random) -> tuple[int, int]:
    length = file.stat().st_size
    file.unlink()
    return 0, length


def _swapped(file: Path, luck: random.Random) -> tuple[int, int]:
    """Replaces it with another file of its kind, if there is one, else with any."""
    top = next(parent for parent in file.parents if (parent / "commitlog").is_dir())
    near = [other for other in sorted(file.parent.iterdir()) if other.is_file() and other != file]
    far = [other for other in sorted(top.rglob("*")) if other.is_file() and other != file]
    other = luck.choice(near or far)
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)
    return 0, max(len(mine), len(theirs))


def _directory(file: Path, luck: random.Random) -> tuple[int, int]:
    span = _removed(file, luck)
    file.mkdir()
    return span


def _link(file: Path, luck: random.Random) -> tuple[int, int]:
    """Replaces it with a link to the same bytes elsewhere: no link is followed, wherever it leads."""
    elsewhere = next(parent for parent in file.parents if (parent / "commitlog").is_dir()).with_suffix(".elsewhere")
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)
    return 0, elsewhere.stat().st_size


def _pipe(file: Path, luck: random.Random) -> tuple[int, int]:
    """Replaces it with a pipe; opening one waits for a process at its other end."""
    span = _removed(file, luck)
    os.mkfifo(file)
    return span


DAMAGES: dict[str, Damage] = {
    "flipped": _rewrite(_flip),
    "another version": _rewrite(_head),
    "zeros": _rewrite(_zeros),
    "noise": _rewrite(_noise),
    "cut": _rewrite(_cut),
    "empty": _rewrite(_emptied),
    "longer": _rewrite(_longer),
    "foreign": _rewrite(_foreign),
    "foreign and shorter": _rewrite(_foreign_shorter),
    "removed": _removed,
    "swapped": _swapped,
    "a directory": _directory,
    "a link": _link,
    "a pipe": _pipe,
}


def kinds_of(store: Path) -> list[str]:
    """The kinds of files that a store has."""
    return [kind for kind, pattern in FILES.items() if any(store.glob(pattern))]


def spoil(store: Path, kind: str, damage: str, luck: random.Random) -> Spoilt:
    """Damages one file of a kind."""
    file = luck.choice(sorted(store.glob(FILES[kind])))
    start, end = DAMAGES[damage](file, luck)
    return Spoilt(str(file.relative_to(store)), start, end)
