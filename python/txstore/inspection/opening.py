"""Opens a store for one look or one change, and closes it afterwards.

In:     a path.
Out:    the engine's store, or a broker.
Always: creates no store and, for reading, writes nothing. No tool does a service's housekeeping: one that ends a
        transaction or sends a message must not check, discard or delete others by other settings than the service's.
Not here: what is done with the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import txstore
from txstore import EmbeddedBroker, errors
from txstore._native import Store
from txstore.config import BrokerConfig

__all__ = ["demand", "reading", "reading_broker", "writing", "writing_broker"]


def demand(path: str) -> None:
    """Raises StoreIOError if there is no store at `path`."""
    if not (Path(path) / "commitlog").is_dir():
        directory = Path(path)
        if directory.is_dir():
            what = "is not a store: it has no commitlog directory"
        else:
            what = "is not a directory" if directory.exists() else "does not exist"
        raise errors.StoreIOError(
            f"{path} {what}\nhint: pass the directory of a store; `txstore store create {path}` creates one"
        )


@contextmanager
def reading(path: str) -> Iterator[Store]:
    """Opens read-only: takes no lock, and works while a program has the store open."""
    with reading_broker(path) as broker:
        yield broker.store


@contextmanager
def reading_broker(path: str) -> Iterator[EmbeddedBroker]:
    """Opens read-only, with topics and groups."""
    demand(path)
    with txstore.open(path, read_only=True) as broker:
        yield broker


@contextmanager
def writing(path: str) -> Iterator[Store]:
    """Opens as the store's writer, which recovers and heals it. Raises StoreLockedError if a program has it open."""
    demand(path)
    with closing(Store.open(path)) as store:
        yield store


@contextmanager
def writing_broker(path: str) -> Iterator[EmbeddedBroker]:
    """Opens as the store's writer, with topics, groups and offsets. Unknown topics are errors."""
    with (
        writing(path) as store,
        EmbeddedBroker(store, BrokerConfig(auto_create_topic_enable=False), keep_house=False) as broker,
    ):
        yield broker
