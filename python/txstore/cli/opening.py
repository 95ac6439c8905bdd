"""A store, opened for one command and closed after it.

In: a path. Out: the engine's store. Always: nothing is made where no store is, and looking writes nothing. Not here:
a broker's housekeeping: a command that ends one transaction must not check or discard others on its way, so writing
commands open the engine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import txstore
from txstore import errors
from txstore._native import Store

__all__ = ["reading", "writing"]


def _demand(path: str) -> None:
    if not (Path(path) / "commitlog").is_dir():
        place = Path(path)
        if place.is_dir():
            what = "is no store: it has no commitlog directory"
        else:
            what = "is no directory" if place.exists() else "is not there"
        raise errors.StoreIOError(f"{path} {what}\nhint: give the directory that was passed to txstore.open")


@contextmanager
def reading(path: str) -> Iterator[Store]:
    """Read-only: takes no lock, and may run while a program has the store open."""
    _demand(path)
    with txstore.open(path, read_only=True) as broker:
        yield broker.store


@contextmanager
def writing(path: str) -> Iterator[Store]:
    """As the store's one writer. Opening recovers and heals; raises StoreLockedError while a program has it open."""
    _demand(path)
    with closing(Store.open(path)) as store:
        yield store
