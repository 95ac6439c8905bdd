"""Writes down as facts everything that a store, possibly damaged, shows.

In:     a path, how to open it, what an undamaged copy showed.
Out:    a JSON file: the error of the opening, or each record, queue entry, transaction and offset, or the class of the
        error in its stead.
Always: an error that is not one of txstore's ends the child.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txstore
from tests.crash.zygote import Voice
from txstore import EmbeddedBroker, TxStoreError

_READ_AT_ONCE = 256
Facts = dict[str, Any]


def _or_error(call: Callable[[], Any]) -> Any:
    """The result of a call, or the class and text of its error, in a list that begins with an exclamation mark."""
    try:
        return call()
    except TxStoreError as error:
        return ["!", type(error).__name__, str(error)[:300]]


def _records(broker: EmbeddedBroker) -> dict[str, int]:
    """By scanning: physical offset → CRC of the record."""
    found: dict[str, int] = {}
    at = broker.stat().min_physical_offset
    while True:
        messages, following = broker.store.scan(at, _READ_AT_ONCE)
        found |= {str(message.physical_offset): zlib.crc32(message.record) for message in messages}
        if not messages and following <= at:
            return found
        at = following


def _queue(broker: EmbeddedBroker, topic: str, queue_id: int, first: int, end: int) -> list[Any]:
    """Each entry separately: the physical offset of its message, and the message's CRC."""

    def entry(queue_offset: int) -> Any:
        messages, _ = broker.store.read(topic, queue_id, queue_offset, 1)
        return [[message.physical_offset, zlib.crc32(message.record)] for message in messages]

    return [_or_error(lambda at=at: entry(at)) for at in range(first, min(end, first + 2_000))]  # type: ignore[misc]


def _states(broker: EmbeddedBroker) -> dict[str, list[Any]]:
    return {str(row.halves[:1] or row.finals): [row.transaction_id, row.state] for row in broker.store.transactions()}


def facts_of(broker: EmbeddedBroker, expected: Facts | None) -> Facts:
    """Everything; with `expected`, also each record that should be there, separately."""
    store, report = broker.store, broker.open_report
    facts: Facts = {
        "clean": report.clean,
        "truncated": report.truncated_bytes,
        "warnings": report.warnings,
        "first": broker.stat().min_physical_offset,
        "end": broker.stat().max_physical_offset,
        "scan": _or_error(lambda: _records(broker)),
        "queues": {
            f"{topic}/{queue_id}": [first, end, _queue(broker, topic, queue_id, first, end)]
            for topic, queue_id, first, end in store.queues()
        },
        "transactions": _or_error(lambda: _states(broker)),
        "pending": _or_error(lambda: sorted(str(one.transaction_id) for one in broker.transactions())),
        "offsets": _or_error(lambda: [list(row) for row in store.consumer_offsets()]),
        "topics": _or_error(lambda: store.config_text("topics.json") is not None),
    }
    if expected is None:
        messages, _ = store.scan(broker.stat().min_physical_offset, 1_000)
        names = sorted({f"{message.topic}@{key}" for message in messages for key in message.keys})[::7][:40]
    else:
        names = list(expected["keys"])
        facts["each"] = {at: _or_error(lambda at=at: _record(broker, int(at))) for at in expected["scan"]}  # type: ignore[misc]
    facts["keys"] = {name: _or_error(lambda name=name: _offsets_by_key(broker, name)) for name in names}  # type: ignore[misc]
    return facts


def _record(broker: EmbeddedBroker, physical_offset: int) -> int:
    return zlib.crc32(broker.store.read_at(physical_offset).record)


def _offsets_by_key(broker: EmbeddedBroker, name: str) -> list[int]:
    """The messages that the index finds for a `TOPIC@KEY`."""
    topic, _, key = name.partition("@")
    return [message.physical_offset for message in broker.store.query(topic, key)]


def look(voice: Voice, arguments: dict[str, Any]) -> None:
    """Opens the store, and writes down all that it shows."""
    logging.disable()
    expected = json.loads(Path(arguments["expected"]).read_text()) if "expected" in arguments else None
    facts: Facts = {}
    try:
        with txstore.open(arguments["path"], read_only=arguments["read_only"]) as broker:
            facts = facts_of(broker, expected)
            if not arguments["read_only"]:
                facts["appended"] = _or_error(lambda: _append(broker))
    except TxStoreError as error:
        facts["failed" if facts else "refused"] = [type(error).__name__, str(error)[:500]]
    Path(arguments["facts"]).write_text(json.dumps(facts))


def _append(broker: EmbeddedBroker) -> int:
    broker.write_queues("afterwards")
    return broker.append(txstore.Message("afterwards", b"one more"), 0).physical_offset
