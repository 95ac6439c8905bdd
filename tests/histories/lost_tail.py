"""Knows what the loss of a source's machine takes with it, if writes wait for no copies.

In:     the log of the source, and the physical offset up to which its replica reported a copy.
Out:    which messages, halves and ends are above that offset; a history without what clients were told of them.
Always: the log is read before the machine is lost, by a scan, which knows nothing of replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import txstore
from tests.histories.checker import Anomaly, Event, History
from tests.histories.clients import TOPIC

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


@dataclass(frozen=True, slots=True)
class LostTail:
    """What a source's log has above a physical offset."""

    messages: frozenset[tuple[int, int, str]]
    """Queue, offset and name of each message of the topic."""
    halves: frozenset[str]
    """The names of transactions whose half message is there."""
    ended: frozenset[str]
    """The names of transactions whose end is there."""

    @classmethod
    def of(cls, store: Path, copied_end: int) -> LostTail:
        columns = ["topic", "queue_id", "queue_offset", "physical_offset", "size", "body"]
        records = _rows(store, view="commitlog", columns=columns)
        names = {row["queue_offset"]: row["body"].decode() for row in records if row["topic"] == _HALF_TOPIC}
        tail = [row for row in records if row["physical_offset"] + row["size"] > copied_end]
        # A record is copied completely, or not at all.
        assert all(row["physical_offset"] >= copied_end for row in tail), copied_end
        ops = [row for row in _rows(store, view="ops") if row["physical_offset"] >= copied_end]
        messages = {
            (row["queue_id"], row["queue_offset"], row["body"].decode()) for row in tail if row["topic"] == TOPIC
        }
        return cls(
            frozenset(messages),
            frozenset(row["body"].decode() for row in tail if row["topic"] == _HALF_TOPIC),
            frozenset(names[row["half_queue_offset"]] for row in ops) | {name for _, _, name in messages},
        )

    def without(self, clients: list[list[Event]]) -> list[list[Event]]:
        """The events of clients without those that rest on something in the tail."""
        return [list(self._kept(client)) for client in clients]

    def _kept(self, client: list[Event]) -> Iterator[Event]:
        for event in client:
            if event["what"] == "sent" and (event["queue"], event["offset"], event["name"]) in self.messages:
                continue
            if event["what"] == "half" and event["name"] in self.halves:
                continue
            # At the new source such a transaction is pending, or was never there.
            if event["what"] == "told" and event["name"] in self.halves | self.ended:
                continue
            if event["what"] == "read":
                rows = [row for row in event["rows"] if tuple(row) not in self.messages]
                yield {**event, "rows": rows}
            else:
                yield event

    def acknowledged(self, clients: list[list[Event]]) -> set[str]:
        """The names of messages in the tail that were acknowledged."""
        sent = (event for client in clients for event in client if event["what"] == "sent")
        return {one["name"] for one in sent if (one["queue"], one["offset"], one["name"]) in self.messages}

    def survivors(self, history: History, clients: list[list[Event]]) -> Iterator[Anomaly]:
        """Acknowledged messages of the tail that are there all the same, though nobody sent them again."""
        positions = history.positions()
        for name in sorted(self.acknowledged(clients)):
            if name in positions and history.delivered.get(name, 0) < 2:
                yield Anomaly("not lost", f"{name} was only in the tail, and is stored at {positions[name]}")


def _rows(store: Path, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(txstore.scan(store, **options)).to_pylist()
    return rows
