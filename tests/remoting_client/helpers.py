"""Shared by tests of the client: a listener with given answers, and a call that takes messages in time."""

from __future__ import annotations

import time
from typing import Any

import txstore
from txstore import LocalTransactionState, TransactionListener

COMMIT, ROLLBACK, UNKNOWN = (LocalTransactionState[name] for name in ("COMMIT", "ROLLBACK", "UNKNOWN"))
SECONDS = 60.0


def take(consumer: txstore.Consumer, count: int, seconds: float = SECONDS) -> list[Any]:
    """Takes that many messages, each acknowledged by the next poll."""
    found: list[Any] = []
    until = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} messages came in time"
        found += consumer.poll(32, 0.5)
    return found


class Answers(TransactionListener):
    """A listener that returns the given answers and records what it was asked."""

    def __init__(self, execute: LocalTransactionState, check: LocalTransactionState = UNKNOWN) -> None:
        self.execute = execute
        self.check = check
        self.checked: list[Any] = []

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return self.execute

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        self.checked.append(message)
        return self.check
