"""Guards stores of a real broker: opened by txstore, every byte is found as the broker knew it.

Each golden store is opened read-only, so its files must be unchanged afterwards. Each message, field and queue is
compared with the manifest that RocketMQ's code made, each transaction with the manifest's plans and with
tests/golden/reader.py.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.golden import expected, reader
from tests.golden.unpack import NAMES, TRANSACTIONAL, Golden, Unpacked, file_hashes
from txstore._native import Store, StoredMessage, java_hash_code

pytestmark = pytest.mark.golden


@contextmanager
def opened(store: Golden) -> Iterator[Store]:
    """The store, open read-only; its files must be the same afterwards."""
    before = file_hashes(store.store)
    with closing(Store.open(str(store.store), read_only=True)) as native:
        yield native
    assert file_hashes(store.store) == before


def read_queue(store: Store, topic: str, queue_id: int) -> list[StoredMessage]:
    """All messages of a queue, in batches."""
    found: list[StoredMessage] = []
    at, end = store.queue_range(topic, queue_id)
    while at < end:
        batch, at = store.read(topic, queue_id, at, 100)
        assert batch
        found += batch
    return found


def as_manifest(message: StoredMessage) -> dict[str, Any]:
    """A message in the manifest's words."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "cqPos": message.physical_offset,
        "size": message.size,
        "cqSize": len(message.record),
        "magic": int.from_bytes(message.record[4:8], "big", signed=True),
        "offsetMsgId": message.offset_message_id,
        "tags": message.tags,
        "cqTagsCode": java_hash_code(message.tags) if message.tags else 0,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyLenStored": len(message.stored_body),
        "bodySha256Stored": hashlib.sha256(message.stored_body).hexdigest(),
        "bodyLen": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "propertiesRawBase64": base64.b64encode(message.properties_bytes).decode(),
        "properties": message.properties,
        "recordSha256": hashlib.sha256(message.record).hexdigest(),
    }


def assert_equal(message: StoredMessage, said: dict[str, Any]) -> None:
    """Every field of a message, as the manifest says."""
    found = as_manifest(message)
    assert found == {key: said[key] for key in found}
    assert message.version == (2 if said["magic"] & 0xFFFFFFFF == reader.MAGIC_V2 else 1)
    assert message.message_id == (said["msgId"] or said["offsetMsgId"])
    assert message.keys == tuple((said["keys"] or "").split())
    assert (message.born_host, message.store_host) == (
        expected.host(said["bornHost"]),
        expected.host(said["storeHost"]),
    )
    if "__transactionId__" in said["properties"]:
        assert message.transaction_id == said["properties"]["__transactionId__"]
    if "bodyBase64" in said:
        assert message.body == base64.b64decode(said["bodyBase64"])
    if said["topic"] == reader.HALF_TOPIC:
        assert message.transaction_type == "prepared"
        assert message.real_topic == said["properties"]["REAL_TOPIC"]
        assert message.real_queue_id == int(said["properties"]["REAL_QID"])
        assert message.producer_group == said["properties"]["PGROUP"]
    else:
        assert message.transaction_type == ("none", "prepared", "commit", "rollback")[said["sysFlag"] >> 2 & 3]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_of_every_queue(golden: Unpacked, name: str) -> None:
    manifest = golden[name].manifest
    said = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in manifest["messages"]}
    with opened(golden[name]) as store:
        stat = store.stat()
        assert (stat.min_physical_offset, stat.max_physical_offset) == (manifest["minPhy"], manifest["maxPhyAfterLoad"])
        for queue in manifest["queues"]:
            where = (queue["topic"], queue["queueId"])
            assert store.queue_range(*where) == (queue["minOffset"], queue["maxOffset"])
            messages = read_queue(store, *where)
            assert [m.queue_offset for m in messages] == list(range(queue["minOffset"], queue["maxOffset"]))
            for message in messages:
                assert_equal(message, said.pop((*where, message.queue_offset)))
        ranges = {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"]) for q in manifest["queues"]}
        found = {(topic, queue_id): (first, end) for topic, queue_id, first, end in store.queues() if end > first}
        assert found == ranges
    assert not said


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_the_log_in_order(golden: Unpacked, name: str) -> None:
    """Also the records that are in no queue: the ten of `extras` that are prepared or rolled back."""
    log = list(reader.records(golden[name].store))
    with opened(golden[name]) as store:
        at, found = 0, list[StoredMessage]()
        while True:
            batch, following = store.scan(at, 64)
            found += batch
            if not batch and following <= at:
                break
            at = following
        assert [message.record for message in found] == [record.raw for record in log]
        for record in log[::7]:
            assert store.read_at(record.physical_offset).record == record.raw


@pytest.mark.parametrize("name", NAMES)
def test_every_key_finds_its_message(golden: Unpacked, name: str) -> None:
    asked = 0
    with opened(golden[name]) as store:
        for message in golden[name].manifest["messages"]:
            properties = message["properties"]
            for key in {properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split()} - {None, ""}:
                found = store.query(message["topic"], key, 1000)
                assert message["commitLogOffset"] in {m.physical_offset for m in found}
                offsets = [m.physical_offset for m in found]
                assert offsets == sorted(offsets, reverse=True)
                assert all(key in (m.message_id, m.properties.get("UNIQ_KEY"), *m.keys) for m in found)
                asked += 1
        assert store.query("NoSuchTopic", "no-such-key") == []
    assert asked >= golden[name].manifest["counts"]["keysAsked"] // 2


@pytest.mark.parametrize("name", ["plain", "5.3.3-plain"])
def test_tags_filter(golden: Unpacked, name: str) -> None:
    manifest = golden[name].manifest
    with opened(golden[name]) as store:
        for queue in manifest["queues"]:
            mine = [m for m in manifest["messages"] if (m["topic"], m["queueId"]) == (queue["topic"], queue["queueId"])]
            for tag in {m["tags"] for m in mine if m["tags"]}:
                found, following = store.read(queue["topic"], queue["queueId"], 0, 1000, [tag])
                assert [m.queue_offset for m in found] == [m["queueOffset"] for m in mine if m["tags"] == tag]
                assert following <= queue["maxOffset"]


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_every_transaction(golden: Unpacked, name: str) -> None:
    """Committed, discarded, rolled back and pending exactly as in the manifest; and as in the log, if it shows
    that, too.
    """
    progress = reader.half_progress(golden[name].store)
    folded = reader.transactions(list(reader.records(golden[name].store)))
    named = {half.queue_offset for t in folded for half in t.halves if t.sent_op}
    with opened(golden[name]) as store:
        rows = store.transactions()
        assert {row.transaction_id: row.state for row in rows} == expected.outcomes(golden[name].manifest, named)
        assert len(rows) == len(folded)
        for row, second in zip(rows, folded, strict=True):
            assert row.transaction_id == second.halves[0].properties["UNIQ_KEY"]
            assert row.producer_group == second.halves[0].properties["PGROUP"]
            assert row.topic == second.halves[0].properties["REAL_TOPIC"]
            assert row.state == second.state(progress)
            assert row.halves == [(half.queue_offset, half.physical_offset) for half in second.halves]
            assert row.finals == [record.physical_offset for record in second.finals]
            assert row.discards == [record.physical_offset for record in second.discards]
            assert set(row.ops) == {record.physical_offset for record in second.ops}
            assert row.checks == int(second.halves[-1].properties.get("TRANSACTION_CHECK_TIMES", "0"))
            assert (row.ended_timestamp is None) == (row.state == "pending")
        assert store.stat().pending_transactions == sum(row.state == "pending" for row in rows)
        for row in rows[::5]:
            assert row.transaction_id is not None
            assert store.transaction(row.transaction_id).finals == row.finals


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_messages_that_the_broker_committed_twice(golden: Unpacked, name: str) -> None:
    manifest = golden[name].manifest
    said: dict[str, list[int]] = {}
    for message in manifest["messages"]:
        if message["topic"] not in expected.SYSTEM_TOPICS:
            said.setdefault(message["properties"]["UNIQ_KEY"], []).append(message["commitLogOffset"])
    with opened(golden[name]) as store:
        twice = {row.transaction_id: row.finals for row in store.transactions() if len(row.finals) > 1}
    assert twice == {transaction: sorted(said[transaction]) for transaction in expected.committed_twice(manifest)}
    assert Counter(map(len, twice.values())) == {2: {"tx": 2, "tx-crash": 2, "tx-ipv6": 4, "5.3.3-tx": 10}[name]}
