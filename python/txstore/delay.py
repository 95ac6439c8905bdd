"""Delays: delayed messages are handed to their topics when their time has come.

In: the engine's round of delivery, which does the bytes. Out: when to look again. Always: looked at so often that no
message is late; an error is told once in a while and ends no later round. Not here: what a delivered message is, and
how far each level is (the engine), the thread (housekeeping).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from txstore.errors import StoreClosedError, TxStoreError

__all__ = ["DELAYS_EVERY_SECONDS", "DelayedMessages", "Delays"]

_log = logging.getLogger("txstore.delay")
DELAYS_EVERY_SECONDS = 0.5
"""Below the shortest level, one second, so that a message sent right behind a round is still seen in time."""
_BATCH = 256
_RETRY_SECONDS = 5.0


class DelayedMessages(Protocol):
    """What delivers: the engine's store."""

    def deliver_delayed(self, max_messages: int = ...) -> tuple[int, Sequence[str], int | None]: ...


class Delays:
    """The job of housekeeping that delivers. `monotonic`: seconds that only go forward."""

    def __init__(self, store: DelayedMessages, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._not_before = 0.0

    def deliver(self) -> float | None:
        """One round; seconds until the next message is due, None: nothing waits."""
        if self._monotonic() < self._not_before:
            return None
        try:
            _, passed_over, next_in_ms = self._store.deliver_delayed(_BATCH)
        except StoreClosedError:
            raise
        except TxStoreError as error:
            # A full disk, say: it stays so for a while, and the messages stay where they are.
            self._not_before = self._monotonic() + _RETRY_SECONDS
            _log.warning("delayed messages wait: %s", error)
            return None
        for reason in passed_over:
            _log.error("%s", reason)
        return None if next_in_ms is None else next_in_ms / 1000
