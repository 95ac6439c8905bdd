"""A store, opened for one command and closed after it.

In: a path. Out: the engine's store, or a broker. Always: nothing is made where no store is, looking writes nothing,
and no command does a service's housekeeping: one that ends a transaction or sends a message must not check, discard
or delete others on its way, by settings that are not the service's. Not here: what is done with the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import txstore
from txstore import Broker, errors
from txstore._native import Store
from txstore.config import BrokerConfig

__all__ = ["demand", "reading", "reading_broker", "writing", "writing_broker"]


def demand(path: str) -> None:
    """Raises StoreIOError where no store is."""
    if not (Path(path) / "commitlog").is_dir():
        place = Path(path)
        if place.is_dir():
            what = "is no store: it has no commitlog directory"
        else:
            what = "is no directory" if place.exists() else "is not there"
        raise errors.StoreIOError(
            f"{path} {what}\n"
            f"hint: give the directory that was passed to txstore.open; `txstore store create {path}` makes a store"
        )


@contextmanager
def reading(path: str) -> Iterator[Store]:
    """Read-only: takes no lock, and may run while a program has the store open."""
    with reading_broker(path) as broker:
        yield broker.store


@contextmanager
def reading_broker(path: str) -> Iterator[Broker]:
    """The same, with topics and groups."""
    demand(path)
    with txstore.open(path, read_only=True) as broker:
        yield broker


@contextmanager
def writing(path: str) -> Iterator[Store]:
    """As the store's one writer. Opening recovers and heals; raises StoreLockedError while a program has it open."""
    demand(path)
    with closing(Store.open(path)) as store:
        yield store


@contextmanager
def writing_broker(path: str) -> Iterator[Broker]:
    """The same, with topics, groups and offsets; an unknown topic is an error, not a new one."""
    with (
        writing(path) as store,
        Broker(store, BrokerConfig(auto_create_topic_enable=False), keep_house=False) as broker,
    ):
        yield broker
