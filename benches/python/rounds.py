"""One check round over pending transactions, as the housekeeping does it, without the listeners' own time.

In:     a broker with pending transactions.
Out:    seconds.
Always: every pending one is due, is decided about, and is postponed again.
"""

import time

import txstore
from benches.python.loads import GROUP
from txstore.transactions.decision import Action, CheckRules, decide_alike

__all__ = ["make_due", "round_seconds", "scan_seconds", "stop_own"]

_BATCH = 256


def stop_own(broker: txstore.EmbeddedBroker) -> None:
    """Stops the broker's own rounds, which would postpone what is measured."""
    broker._parts.housekeeping.stop(60)


def make_due(broker: txstore.EmbeddedBroker, pending: int) -> None:
    """Makes all pending transactions due again."""
    for waiting in broker.store.halves_waiting(-1, 2 * pending):
        broker.store.look_again(waiting.half_queue_offset, -1)


def round_seconds(broker: txstore.EmbeddedBroker, pending: int) -> float:
    """Time of a round: take what is due, decide, set when to look again."""
    store, rules, asked = broker.store, CheckRules.of(broker.config), 0
    start = time.perf_counter()
    while due := store.halves_due(_BATCH):
        for alike in due:
            decision = decide_alike(alike.youngest, alike.oldest, rules, producers=1, group=GROUP)
            asked += len(alike) * (decision is not None and decision.action is Action.ASK)
            store.look_again_all(alike, 3_600_000)
    seconds = time.perf_counter() - start
    assert asked == pending
    return seconds


def scan_seconds(broker: txstore.EmbeddedBroker, pending: int) -> float:
    """Time of finding all that is due, by the engine alone."""
    start = time.perf_counter()
    due = broker.store.halves_due(2 * pending)
    seconds = time.perf_counter() - start
    assert sum(map(len, due)) == pending
    return seconds
