"""Sending: messages within transactions of Django, through one broker for each process.

In:     messages, the setting TXSTORE.
Out:    receipts.
Always: the broker is opened by the first message of a process, also after a fork, and closed when the process ends.
Not here: the rows (`txstore.database`).
"""

import atexit
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.db import connections

import txstore
from txstore.database import Database, OutboxProducer, OutboxReceipt
from txstore.database.django import Alias
from txstore.database.outbox import BlockingSession
from txstore.django.settings import read_keep_sent, read_settings
from txstore.forks import at_fork
from txstore.message import Message

__all__ = ["broker", "close", "database", "producer", "send", "send_batch", "use_broker"]

_DEFAULT = "default"


class _Process:
    """The broker of this process, and its producers by alias."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins without a broker, also in a forked child: the parent keeps its own, and another thread of the parent
        may have held the lock."""
        self._lock = threading.RLock()
        self._broker: Any = None
        self._is_given = False
        self._producers: dict[str, OutboxProducer] = {}

    def broker(self) -> Any:
        with self._lock:
            if self._broker is None:
                settings = read_settings()
                if settings.store is not None:
                    self._broker = txstore.open(settings.store, **{"shared": True, **settings.options})
                else:
                    assert settings.address is not None
                    self._broker = txstore.connect(settings.address, **settings.options)
            return self._broker

    def producer(self, using: str) -> OutboxProducer:
        with self._lock:
            opened = self.broker()
            if using not in self._producers:
                group = "django" if self._is_given else read_settings().group
                self._producers[using] = opened.producer(group, database=database(using))
            return self._producers[using]

    def close(self) -> None:
        """Closes the broker. The next message opens it again."""
        with self._lock:
            opened, is_ours = self._broker, not self._is_given
            self._broker, self._is_given, self._producers = None, False, {}
        if opened is not None and is_ours:
            opened.close()

    def give(self, given: Any) -> None:
        self.close()
        with self._lock:
            self._broker, self._is_given = given, given is not None


_process = _Process()
atexit.register(_process.close)
at_fork(after_in_child=_process.begin)


@cache
def database(using: str = _DEFAULT) -> Database:
    """Returns the database of an alias: its inbox, `pending`, `outbox` and `clean`."""
    return Database(Alias(using), keep_sent=read_keep_sent())


def broker() -> Any:
    """Returns the broker of this process, and opens it if necessary. Raises ImproperlyConfigured, and what
    `txstore.open` or `txstore.connect` raises."""
    return _process.broker()


def close() -> None:
    """Forwards what is committed, and closes the broker of this process. The next message opens it again.

    Call it at the end of tests, because their database cannot be dropped while the forwarder is connected to it.
    """
    _process.close()


def producer(using: str = _DEFAULT) -> OutboxProducer:
    """Returns the producer for an alias. Raises as `broker` does, and TableError."""
    return _process.producer(using)


def send(message: Message, *, using: str = _DEFAULT, queue_id: int | None = None) -> OutboxReceipt:
    """Sends a message within the open `transaction.atomic()` of an alias.

    It becomes visible if, and only if, the transaction commits. Raises InvalidOptionError outside `atomic()`, what
    `producer` raises, and what `OutboxProducer.send` raises.
    """
    session: BlockingSession = connections[using]
    return producer(using).send(message, session=session, queue_id=queue_id)


def send_batch(
    messages: Sequence[Message], *, using: str = _DEFAULT, queue_id: int | None = None
) -> list[OutboxReceipt]:
    """Sends several messages as `send` does."""
    session: BlockingSession = connections[using]
    return producer(using).send_batch(messages, session=session, queue_id=queue_id)


@contextmanager
def use_broker(given: Any) -> Iterator[None]:
    """Makes `send` use another broker until the end of the block, such as a `txstore.testing.FakeBroker`; for tests."""
    _process.give(given)
    try:
        yield
    finally:
        _process.give(None)


def _settings_changed(*, setting: str, **_: object) -> None:
    """Closes the broker if a test overrides a setting that it was opened by."""
    if setting in ("TXSTORE", "DATABASES"):
        _process.close()
        database.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="txstore.django")
