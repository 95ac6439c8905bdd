"""Guards stores of an earlier txstore, closed or killed: all their content is found, and a store without an id gets
one.
"""

from __future__ import annotations

import base64
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.golden import reader
from tests.golden.unpack import OWN, Unpacked, file_hashes
from txstore import _native
from txstore._native import Message, Store, StoredMessage

pytestmark = pytest.mark.golden

WAITING = ("SCHEDULE_TOPIC_XXXX", 17)
Facts = dict[str, Any]


def log_bytes(store: Path, end: int) -> bytes:
    """The log up to an offset."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return b"".join(path.read_bytes() for path in files)[:end]


def everything(store: Store, topic: str, queue_id: int) -> list[StoredMessage]:
    first, end = store.queue_range(topic, queue_id)
    messages, following = store.read(topic, queue_id, first, 10_000)
    assert following == end
    return messages


def assert_holds(store: Store, facts: Facts) -> None:
    """What the calls had answered when the store was written."""
    assert (store.stat().min_physical_offset, store.stat().pending_transactions) == (0, 6)
    sent = {(one["topic"], one["queue"], one["queue_offset"]): one for one in facts["sent"]}
    for topic, queue_id in {(one["topic"], one["queue"]) for one in facts["sent"]}:
        for message in everything(store, topic, queue_id):
            one = sent.pop((topic, queue_id, message.queue_offset))
            assert (message.physical_offset, message.message_id) == (one["physical_offset"], one["unique_id"])
            assert (message.body, message.tags) == (base64.b64decode(one["body"]), one["tags"])
            assert message.keys == tuple(one["keys"])
            assert message.properties["number"] == one["properties"]["number"]
    assert not sent
    for one in facts["sent"][::7]:
        (found,) = store.query(one["topic"], one["keys"][0])
        assert found.physical_offset == one["physical_offset"]
    transactions = facts["transactions"]
    assert {row.transaction_id: row.state for row in store.transactions()} == {
        transaction: one["state"] for transaction, one in transactions.items()
    }
    committed = Counter(base64.b64decode(one["body"]) for one in transactions.values() if one["state"] == "committed")
    queues = {queue_id for topic, queue_id, _, _ in store.queues() if topic == "payments"}
    assert Counter(message.body for queue in queues for message in everything(store, "payments", queue)) == committed
    assert [message.body for message in everything(store, *WAITING)] == list(map(base64.b64decode, facts["waiting"]))
    for topic, offsets in facts["offsets"]["readers"].items():
        assert {queue: store.consumer_offset(topic, "readers", int(queue)) for queue in offsets} == offsets
    gone = facts["deleted"]["topic"]
    assert facts["deleted"]["messages"] == 10
    assert not any(everything(store, topic, queue_id) for topic, queue_id, _, _ in store.queues() if topic == gone)
    assert store.query(gone, "all") == []


@pytest.mark.parametrize("name", OWN)
def test_reader_finds_everything_and_changes_nothing(golden: Unpacked, name: str) -> None:
    before = file_hashes(golden[name].store)
    with closing(Store.open(str(golden[name].store), read_only=True)) as store:
        assert store.open_report.clean == (name == "txstore-closed")
        assert store.stat().max_physical_offset == golden[name].manifest["log_end"]
        assert_holds(store, golden[name].manifest)
    assert _native.log_store_id(golden[name].store) is None
    assert file_hashes(golden[name].store) == before


@pytest.mark.parametrize("name", OWN)
def test_writer_keeps_everything_and_gives_it_an_id(golden: Unpacked, name: str, tmp_path: Path) -> None:
    facts = golden[name].manifest
    directory = golden[name].copy_to(tmp_path)
    before = log_bytes(directory, facts["log_end"])
    with closing(Store.open(str(directory))) as store:
        assert store.open_report.truncated_bytes == store.open_report.healed_ops == 0
        store_id = _native.log_store_id(directory)
        assert store_id is not None
        assert_holds(store, facts)
    with closing(Store.open(str(directory))) as store:
        assert store.open_report.clean
        assert_holds(store, facts)
        ended = [
            store.end_transaction(half.half_queue_offset, half.prepared_transaction_offset, commit=True).outcome
            for half in store.halves_waiting(-1, 100)
        ]
        assert ended == ["committed"] * 6
        store.append(Message("orders", b"sent later"), 0)
    assert _native.log_store_id(directory) == store_id
    assert log_bytes(directory, facts["log_end"]) == before
    found = reader.transactions(list(reader.records(directory)))
    pending = {transaction for transaction, one in facts["transactions"].items() if one["state"] == "pending"}
    states = {one.halves[0].properties["UNIQ_KEY"]: one.state(0) for one in found}
    assert states == {
        transaction: "committed" if transaction in pending else one["state"]
        for transaction, one in facts["transactions"].items()
    }


def test_each_store_has_an_id_of_its_own(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        Store.open(str(tmp_path / name)).close()
        ids.append(_native.log_store_id(tmp_path / name))
    assert None not in ids
    assert len(set(ids)) == 2
