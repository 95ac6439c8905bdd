"""Delays: delivers delayed and timed messages to their topics when they are due.

In:     the engine's delivery round, which moves the messages.
Out:    when to look again.
Always: runs often enough that no message is late. An error is logged once in a while and does not end later rounds.
Not here: the form of a delivered message and the progress of each level (the engine), the thread (`housekeeping`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from txstore.errors import StoreClosedError, TxStoreError

__all__ = ["DELAYS_EVERY_SECONDS", "LEVEL_SECONDS", "DelayedMessages", "Delays"]

_log = logging.getLogger("txstore.delay")
DELAYS_EVERY_SECONDS = 0.5
"""Below the shortest level of one second, so that a message sent right after a round is still delivered in time."""
LEVEL_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The delay of each level, from level 1 on. The engine has the same."""
_BATCH = 256
_RETRY_SECONDS = 5.0


class DelayedMessages(Protocol):
    """The call that delivers: the engine's store has it."""

    def deliver_delayed(self, max_messages: int = ...) -> tuple[int, Sequence[str], int | None]: ...


class Delays:
    """The housekeeping job that delivers delayed messages. `monotonic` returns seconds."""

    def __init__(self, store: DelayedMessages, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._not_before = 0.0

    def deliver(self) -> float | None:
        """Runs one round; returns seconds until the next message is due, None if no message waits."""
        if self._monotonic() < self._not_before:
            return None
        try:
            _, passed_over, next_in_ms = self._store.deliver_delayed(_BATCH)
        except StoreClosedError:
            raise
        except TxStoreError as error:
            # A full disk, for example, lasts a while. The messages stay where they are until then.
            self._not_before = self._monotonic() + _RETRY_SECONDS
            _log.warning("delayed messages are postponed: %s", error)
            return None
        for reason in passed_over:
            _log.error("%s", reason)
        return None if next_in_ms is None else next_in_ms / 1000
