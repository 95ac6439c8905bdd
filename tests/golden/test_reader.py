"""Guards the plain reader: written from the format page alone, it agrees with a real broker on every golden store.

Each record, unit and transaction is compared with the manifest that RocketMQ's own code made. The reader is then a
second opinion on the engine (test_golden.py, test_continued.py).
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter

import pytest

from tests.golden import expected, reader
from tests.golden.unpack import NAMES, TRANSACTIONAL, Unpacked

pytestmark = pytest.mark.golden

# The content of the four transactional stores; every number counted from the log and from the manifest.
COUNTS = {
    "tx": ({"committed": 155, "rolled_back": 125, "discarded": 20}, 2),
    "tx-crash": ({"committed": 52, "rolled_back": 42, "discarded": 1, "pending": 13}, 2),
    "tx-ipv6": ({"committed": 47, "rolled_back": 37, "discarded": 6}, 4),
    "5.3.3-tx": ({"committed": 155, "rolled_back": 125, "discarded": 20}, 10),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_record_equals_the_manifest(golden: Unpacked, name: str) -> None:
    store, manifest = golden[name].store, golden[name].manifest
    log = {record.physical_offset: record for record in reader.records(store)}
    assert len(log) == (120 if name == "extras" else len(manifest["messages"]))
    last = log[max(log)]
    assert (min(log), last.physical_offset + last.size) == (manifest["minPhy"], manifest["maxPhyAfterLoad"])
    for message in manifest["messages"]:
        record = log[message["commitLogOffset"]]
        found = {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "size": record.size,
            "magic": record.magic - (1 << 32),
            "flag": record.flag,
            "sysFlag": record.sys_flag,
            "bornTimestamp": record.born_timestamp_ms,
            "storeTimestamp": record.store_timestamp_ms,
            "bodyCRC": record.body_crc,
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyLenStored": len(record.body),
            "bodySha256Stored": hashlib.sha256(record.body).hexdigest(),
            "propertiesRawBase64": base64.b64encode(record.properties_bytes).decode(),
            "properties": record.properties,
            "recordSha256": hashlib.sha256(record.raw).hexdigest(),
        }
        assert found == {key: message[key] for key in found}
        assert (record.born_host, record.store_host) == tuple(
            expected.host(message[k]) for k in ("bornHost", "storeHost")
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_unit_equals_the_manifest(golden: Unpacked, name: str) -> None:
    store, manifest = golden[name].store, golden[name].manifest
    for queue in manifest["queues"]:
        where = (queue["topic"], queue["queueId"])
        mine = [m for m in manifest["messages"] if (m["topic"], m["queueId"]) == where]
        assert queue["maxOffset"] - queue["minOffset"] == len(mine)
        assert reader.units(store, *where) == [(m["cqPos"], m["cqSize"], m["cqTagsCode"]) for m in mine]


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_every_outcome_equals_the_manifest(golden: Unpacked, name: str) -> None:
    store, manifest = golden[name].store, golden[name].manifest
    progress = reader.half_progress(store)
    folded = reader.transactions(list(reader.records(store)))
    states = {t.halves[0].properties["UNIQ_KEY"]: t.state(progress) for t in folded}
    twice = {t.halves[0].properties["UNIQ_KEY"] for t in folded if len(t.finals) > 1}
    assert len(states) == len(folded) == len(manifest["plans"])
    assert states == expected.outcomes(manifest, ops_name(golden, name))
    assert twice == expected.committed_twice(manifest)
    assert (dict(Counter(states.values())), len(twice)) == COUNTS[name]
    if manifest["cleanShutdown"]:
        assert states == {transaction: expected.MEANT[plan] for transaction, plan in manifest["plans"].items()}


def ops_name(golden: Unpacked, name: str) -> set[int]:
    """Half queue offsets that ops name: from the manifest, and from the log where the manifest has only a hash."""
    ops = [record for record in reader.records(golden[name].store) if record.topic == reader.OP_TOPIC]
    named = {int(text) for record in ops for text in record.body.decode().split(",") if text}
    assert expected.halves_named_by_ops(golden[name].manifest) <= named
    return named
