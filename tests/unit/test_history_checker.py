"""Guards the checker of histories: it accepts a correct history, and finds each class of anomaly, and only it, in
histories that have one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.histories.checker import MISSING, Event, History, anomalies
from tests.histories.clients import TOPIC
from tests.histories.lost_tail import LostTail
from tests.unit.test_administration import Unknown
from txstore import LocalTransactionState, Message


def right() -> History:
    """A plain send, one that was retried, a commit, a rollback, and a commit by a check; all are read once."""
    sender: list[dict[str, Any]] = [
        {"what": "begin", "name": "plain-1", "transaction": False},
        {"what": "sent", "name": "plain-1", "queue": 0, "offset": 0},
        {"what": "begin", "name": "plain-2", "transaction": False},
        {"what": "sent", "name": "plain-2", "queue": 0, "offset": 2},
    ]
    payer: list[dict[str, Any]] = [
        {"what": "begin", "name": "commit-1", "transaction": True},
        {"what": "half", "name": "commit-1", "id": "A"},
        {"what": "says", "name": "commit-1", "state": "COMMIT"},
        {"what": "told", "name": "commit-1", "outcome": "committed"},
        {"what": "begin", "name": "rollback-1", "transaction": True},
        {"what": "half", "name": "rollback-1", "id": "B"},
        {"what": "says", "name": "rollback-1", "state": "ROLLBACK"},
        {"what": "told", "name": "rollback-1", "outcome": "rolled_back"},
        {"what": "begin", "name": "commit-2", "transaction": True},
        {"what": "says", "name": "commit-2", "state": "COMMIT"},
    ]
    reader: list[dict[str, Any]] = [
        {"what": "read", "rows": [(0, 0, "plain-1"), (1, 0, "commit-1"), (0, 1, "plain-2"), (0, 2, "plain-2")]},
        {"what": "read", "rows": [(0, 2, "plain-2"), (0, 3, "commit-2")]},
    ]
    return History(
        clients=[sender, payer, reader],
        delivered={"plain-1": 1, "plain-2": 2, "commit-1": 1, "rollback-1": 2, "commit-2": 1},
        stored={0: ["plain-1", "plain-2", "plain-2", "commit-2"], 1: ["commit-1"]},
        outcomes={"commit-1": "committed", "rollback-1": "rolled_back"},
    )


def without(history: History, name: str) -> None:
    """No consumer has read it."""
    for event in history.of("read"):
        event["rows"][:] = [row for row in event["rows"] if row[2] != name]


def stored(history: History, queue: int) -> list[str]:
    names = history.stored[queue]
    assert isinstance(names, list)
    return names


def events(history: History, client: int) -> list[Any]:
    found = history.clients[client]
    assert isinstance(found, list)
    return found


def lost_send(history: History) -> None:
    events(history, 0).append({"what": "begin", "name": "plain-3", "transaction": False})
    events(history, 0).append({"what": "sent", "name": "plain-3", "queue": 1, "offset": 1})


def lost_half(history: History) -> None:
    events(history, 1).append({"what": "begin", "name": "commit-3", "transaction": True})
    events(history, 1).append({"what": "half", "name": "commit-3", "id": "C"})
    history.outcomes = {**history.outcomes, "commit-3": MISSING}


def lost_commit(history: History) -> None:
    stored(history, 1).clear()
    without(history, "commit-1")
    history.outcomes = {"rollback-1": "rolled_back"}


def never_read(history: History) -> None:
    without(history, "commit-2")


def acknowledged_elsewhere(history: History) -> None:
    events(history, 0)[1]["offset"] = 7
    events(history, 0)[3]["offset"] = 8


def committed_twice(history: History) -> None:
    stored(history, 1).append("commit-1")


def stored_twice_after_one_send(history: History) -> None:
    history.delivered = {**history.delivered, "plain-2": 1}


def rolled_back_but_read(history: History) -> None:
    stored(history, 1).append("rollback-1")
    events(history, 2)[0]["rows"].append((1, 1, "rollback-1"))
    history.outcomes = {"commit-1": "committed"}


def nobody_said_commit(history: History) -> None:
    del events(history, 1)[-1]


def phantom(history: History) -> None:
    stored(history, 1).append("plain-9")
    history.delivered = {**history.delivered, "plain-9": 1}
    events(history, 2)[0]["rows"].append((1, 1, "plain-9"))


def vanished(history: History) -> None:
    """The last message of a queue is gone: no sender was told of it, but a consumer has read it."""
    stored(history, 0).pop()


def another_at_its_offset(history: History) -> None:
    """As above, and its offset was assigned again: a consumer read the old message there, and now another is there."""
    stored(history, 0)[0:1] = ["commit-2"]
    stored(history, 0)[3] = "plain-1"
    events(history, 0)[1]["offset"] = 3
    events(history, 0)[3]["queue"] = 0
    events(history, 0)[3]["offset"] = 1
    events(history, 0)[:] = events(history, 0)[2:] + events(history, 0)[:2]


def gap(history: History) -> None:
    del events(history, 2)[0]["rows"][2]
    events(history, 2).append({"what": "read", "rows": [(0, 1, "plain-2")]})


def read_backwards(history: History) -> None:
    events(history, 2)[1]["rows"].reverse()


def sent_later_stored_earlier(history: History) -> None:
    events(history, 0)[:] = events(history, 0)[2:] + events(history, 0)[:2]


def told_two_things(history: History) -> None:
    events(history, 1).append({"what": "told", "name": "commit-1", "outcome": "rolled_back"})


def told_otherwise_than_stored(history: History) -> None:
    history.outcomes = {"commit-1": "committed", "rollback-1": "discarded"}


def committed_without_message(history: History) -> None:
    stored(history, 1).clear()
    without(history, "commit-1")
    del events(history, 1)[3]


# A transaction that is read after its rollback has two outcomes as well; a lost commit also lacks its message.
LIES: dict[Callable[[History], None], set[str]] = {
    lost_send: {"lost"},
    lost_half: {"lost"},
    lost_commit: {"lost"},
    never_read: {"lost"},
    acknowledged_elsewhere: {"lost"},
    committed_twice: {"duplicate"},
    stored_twice_after_one_send: {"duplicate"},
    rolled_back_but_read: {"rolled back but read"},
    nobody_said_commit: {"rolled back but read"},
    phantom: {"phantom"},
    vanished: {"vanished"},
    another_at_its_offset: {"vanished"},
    gap: {"gap"},
    read_backwards: {"order"},
    sent_later_stored_earlier: {"order"},
    told_two_things: {"two outcomes", "rolled back but read"},
    told_otherwise_than_stored: {"two outcomes"},
    committed_without_message: {"two outcomes"},
}


def test_correct_history_has_no_anomaly() -> None:
    assert anomalies(right()) == []


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_anomaly_is_found(lie: Callable[[History], None]) -> None:
    history = right()
    lie(history)
    found = anomalies(history)
    assert {anomaly.kind for anomaly in found} == LIES[lie], found


def test_tail_that_is_lost_has_what_is_above_an_offset(tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store") as broker, broker.transaction_producer("shop", Unknown()) as halves:
        broker.create_topic(TOPIC, 1)
        producer = broker.producer("shop")
        producer.send(Message(TOPIC, b"plain-1"))
        ended = halves.send_in_transaction(Message(TOPIC, b"rollback-1")).transaction_id
        copied_end = broker.store.appended_end
        broker.end_transaction(ended, LocalTransactionState.ROLLBACK)
        producer.send(Message(TOPIC, b"plain-2"))
        halves.send_in_transaction(Message(TOPIC, b"either-1"))
    tail = LostTail.of(tmp_path / "store", copied_end)
    assert tail.messages == {(0, 1, "plain-2")}
    assert tail.halves == {"either-1"}
    assert tail.ended == {"rollback-1", "plain-2"}
    told: list[Event] = [
        {"what": "sent", "name": "plain-1", "queue": 0, "offset": 0},
        {"what": "sent", "name": "plain-2", "queue": 0, "offset": 1},
        {"what": "told", "name": "rollback-1", "outcome": "rolled_back"},
        {"what": "half", "name": "either-1", "id": "A"},
        {"what": "read", "rows": [[0, 0, "plain-1"], [0, 1, "plain-2"]]},
    ]
    assert tail.without([told]) == [[told[0], {"what": "read", "rows": [[0, 0, "plain-1"]]}]]
    assert tail.acknowledged([told]) == {"plain-2"}
    history = History([told], {"plain-2": 1}, {0: ["plain-1", "plain-2"]})
    assert [anomaly.kind for anomaly in tail.survivors(history, [told])] == ["not lost"]
