"""Compares what clients were told and read with what the store has in the end.

In:     events of all clients, the frames that reached the server, the store's queues.
Out:    anomalies, each with its class; none if every promise was kept.
Always: a pure function.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = Mapping[str, Any]
"""One thing that a client did or was told, by its key `what`:

    begin  name transaction      it is about to send the message of that name, as a transaction or plain
    sent   name queue offset ms  the send was acknowledged after so many milliseconds
    half   name id               the half message was acknowledged under that transaction id
    says   name state            a listener, a checker or an end of the client's said COMMIT or ROLLBACK
    told   name outcome          the client was told what became of the transaction
    read   rows                  one poll returned rows of (queue, offset, name)
"""

Position: TypeAlias = tuple[int, int]
MISSING = "missing"
"""The outcome of a half message that is not in the store."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    """lost, duplicate, rolled back but read, phantom, vanished, gap, order, two outcomes"""
    text: str


@dataclass(slots=True)
class History:
    """A run. `clients`: the events of each, in their order."""

    clients: Sequence[Sequence[Event]]
    delivered: Mapping[str, int]
    """How many frames with this message reached the server, of the client's own retries and of the network's."""
    stored: Mapping[int, Sequence[str]]
    """The names in each queue, from offset 0 on."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """The state in the store of each transaction whose half was acknowledged: committed, rolled_back, discarded,
    pending, missing."""

    def of(self, *kinds: str) -> Iterator[Event]:
        return (event for client in self.clients for event in client if event["what"] in kinds)

    def positions(self) -> dict[str, list[Position]]:
        """The queue and offset of each name."""
        found: defaultdict[str, list[Position]] = defaultdict(list)
        for queue, names in self.stored.items():
            for offset, name in enumerate(names):
                found[name].append((queue, offset))
        return found

    def transactions(self) -> set[str]:
        return {event["name"] for event in self.of("begin") if event["transaction"]}

    def rows(self) -> Iterator[tuple[Position, str]]:
        """All that was read."""
        return (((queue, offset), name) for event in self.of("read") for queue, offset, name in event["rows"])


def events_of(paths: Iterable[Path]) -> list[list[Event]]:
    """The events of each client, parsed from the lines of its process."""
    clients: defaultdict[int, list[Event]] = defaultdict(list)
    for path in paths:
        for line in path.read_text().splitlines():
            event = json.loads(line)
            clients[event["client"]].append(event)
    return list(clients.values())


def anomalies(history: History) -> list[Anomaly]:
    """Every broken promise."""
    rules = (_lost, _duplicate, _rolled_back_but_read, _phantom, _vanished, _gap, _order, _two_outcomes)
    return [anomaly for rule in rules for anomaly in rule(history)]


def _lost(history: History) -> Iterator[Anomaly]:
    """Acknowledged or committed or stored, and never read; or at another offset than acknowledged."""
    read = {name for _, name in history.rows()}
    positions = history.positions()
    for event in history.of("sent"):
        name, position = event["name"], (event["queue"], event["offset"])
        if name not in read:
            yield Anomaly("lost", f"{name} was acknowledged at {position}, never read")
        elif position not in positions.get(name, ()):
            yield Anomaly("lost", f"{name} was acknowledged at {position}, stored at {positions.get(name)}")
    for event in history.of("told"):
        if event["outcome"] == "committed" and event["name"] not in read:
            yield Anomaly("lost", f"{event['name']} was committed, never read")
    for name, outcome in history.outcomes.items():
        if outcome == MISSING:
            yield Anomaly("lost", f"the half message of {name} was acknowledged, and is not stored")
    for name in positions.keys() - read:
        yield Anomaly("lost", f"{name} is stored at {positions[name]}, never read")


def _duplicate(history: History) -> Iterator[Anomaly]:
    """A transaction is one message; any other is stored at most as often as it was sent to the server."""
    transactions = history.transactions()
    for name, positions in history.positions().items():
        most = 1 if name in transactions else history.delivered.get(name, 0)
        if len(positions) > most:
            yield Anomaly("duplicate", f"{name} is stored at {positions}, {most} may be")


def _rolled_back_but_read(history: History) -> Iterator[Anomaly]:
    """Read or stored, though it was rolled back, or though nobody said COMMIT."""
    seen = {name for _, name in history.rows()} | history.positions().keys()
    rolled_back = {event["name"] for event in history.of("told") if event["outcome"] == "rolled_back"}
    commits = {event["name"] for event in history.of("says") if event["state"] == "COMMIT"}
    for name in sorted(seen & (rolled_back | (history.transactions() - commits))):
        yield Anomaly("rolled back but read", f"{name} is in {history.positions().get(name)}")


def _phantom(history: History) -> Iterator[Anomaly]:
    """Read or stored, and never sent."""
    sent = {event["name"] for event in history.of("begin")}
    seen = {name for _, name in history.rows()} | history.positions().keys()
    return (Anomaly("phantom", f"{name} was sent by nobody") for name in sorted(seen - sent))


def _vanished(history: History) -> Iterator[Anomaly]:
    """Read at an offset where the store has another message, or none, in the end."""
    for (queue, offset), name in history.rows():
        names = history.stored.get(queue, ())
        there = names[offset] if offset < len(names) else None
        if there != name:
            yield Anomaly("vanished", f"{name} was read at {(queue, offset)}, where {there} is")


def _gap(history: History) -> Iterator[Anomaly]:
    """A poll jumps over an offset of a queue."""
    for queue, one, other in _steps(history):
        if other > one + 1:
            yield Anomaly("gap", f"queue {queue}: {other} was read after {one}")


def _order(history: History) -> Iterator[Anomaly]:
    """A poll goes back in a queue; or a message comes before one that its client had sent before it."""
    for queue, one, other in _steps(history):
        if other <= one:
            yield Anomaly("order", f"queue {queue}: {other} was read after {one}")
    for client in history.clients:
        last: dict[int, Event] = {}
        for event in client:
            if event["what"] != "sent":
                continue
            before = last.get(event["queue"])
            if before is not None and event["offset"] <= before["offset"]:
                yield Anomaly("order", f"{event['name']} was sent after {before['name']}, and is before it")
            last[event["queue"]] = event


def _steps(history: History) -> Iterator[tuple[int, int, int]]:
    """A queue and two of its offsets, one read after the other in one poll."""
    for event in history.of("read"):
        last: dict[int, int] = {}
        for queue, offset, _ in event["rows"]:
            if queue in last:
                yield queue, last[queue], offset
            last[queue] = offset


def _two_outcomes(history: History) -> Iterator[Anomaly]:
    """Clients, the store's state and its messages disagree about one transaction."""
    said: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in history.of("told"):
        said[event["name"]][f"told {event['outcome']}"] += 1
    for name, outcome in history.outcomes.items():
        said[name][f"stored {outcome}"] += 1
    positions = history.positions()
    for name, words in said.items():
        outcomes = {word.partition(" ")[2] for word in words} - {MISSING}
        if len(outcomes) > 1:
            yield Anomaly("two outcomes", f"{name}: {', '.join(sorted(words))}")
        elif "stored committed" in words and name not in positions:
            yield Anomaly("two outcomes", f"{name}: committed in the store, but it has no message")
