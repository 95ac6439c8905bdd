"""Compares what RocketMQ finds in a store with what txstore finds, and with what its writer was told.

In:     a dump by the real DefaultMessageStore, a store open read-only, what was told.
Out:    nothing, or an AssertionError that names the difference.
Always: every field that both sides know is compared.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.peer.workload import DELAY_LEVELS_S, RETRY_TOPIC, TOPICS, Told
from txstore._native import Store, StoredMessage

Facts = dict[str, Any]

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
SYSTEM_TOPICS = {HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC, SCHEDULE_TOPIC}
CRC = "__CRC32#"
TRANSACTION_BITS, COMMIT_BITS = 0xC, 0x8


def host(text: str) -> str:
    """An address as Java or as txstore writes it, in one form."""
    address, port = text.rsplit(":", 1)
    return f"{ipaddress.ip_address(address.strip('[]')).exploded}:{port}"


def stored(message: StoredMessage) -> Facts:
    """What txstore finds, with the field names of a dump."""
    body, properties = message.body, message.properties_bytes
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "unique_id": message.properties.get("UNIQ_KEY"),
        "keys": message.properties.get("KEYS"),
        "tags": message.tags,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_host": host(message.born_host),
        "store_host": host(message.store_host),
        "body_crc": message.body_crc,
        "body_length": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "properties": message.properties,
        "has_crc": CRC.encode() in properties,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "reconsume_times": message.reconsume_times,
        "offset_message_id": message.offset_message_id,
        "record_sha256": hashlib.sha256(message.record).hexdigest(),
    }


def dumped(message: Facts) -> Facts:
    """What RocketMQ found, with the same names; it shows a record's CRC as a property of the message."""
    properties = dict(message["properties"])
    has_crc = properties.pop(CRC, None) is not None
    plain = {name: value for name, value in message.items() if not name.startswith("unit_")}
    del plain["message_id"], plain["tags_code"]
    return plain | {
        "unique_id": message["message_id"],
        "born_host": host(message["born_host"]),
        "store_host": host(message["store_host"]),
        "properties": properties,
        "has_crc": has_crc,
    }


def queues(store: Store) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic, queue_id): (first, end) for topic, queue_id, first, end in store.queues() if end > first}


def messages(store: Store) -> list[StoredMessage]:
    """Every message of every queue, in order."""
    found: list[StoredMessage] = []
    for (topic, queue_id), (first, end) in queues(store).items():
        at = first
        while at < end:
            batch, at = store.read(topic, queue_id, at, 1000)
            found += batch
    return found


def keys_of(found: Iterable[StoredMessage]) -> list[tuple[str, str]]:
    """(topic, key) of all that the index knows, without those that occur too often for one answer of a broker."""
    pairs = Counter(
        (message.topic, word)
        for message in found
        for word in {*message.keys, message.properties.get("UNIQ_KEY", "")} - {""}
    )
    return [pair for pair, count in pairs.items() if count <= 64]


def assert_same_store(
    dump: Facts,
    store: Store,
    keys: list[tuple[str, str]],
    offset_ids: list[str],
    delays_s: Sequence[Mapping[int, int]] = (DELAY_LEVELS_S,),
    gaps: Sequence[Sequence[object]] = (),
) -> None:
    """RocketMQ has the same queues, messages, units, and answers by key and id as txstore.

    `gaps`: [topic, queue id, queue offset] of units without a message, in a store that was repaired. `delays_s`: the
    seconds of each delay level; several, if brokers with levels of their own have written it, too.
    """
    assert dump["loaded"], dump["refused"]
    theirs = {(q["topic"], q["queue_id"]): (q["first"], q["end"]) for q in dump["queues"] if q["end"] > q["first"]}
    assert theirs == queues(store)
    ours = {(message.topic, message.queue_id, message.queue_offset): message for message in messages(store)}
    for message in dump["messages"]:
        where = (message["unit_topic"], message["unit_queue_id"], message["unit_queue_offset"])
        mine = stored(ours.pop(where))
        theirs_of_it = dumped(message)
        assert set(theirs_of_it) == set(mine)
        differ = {key: (theirs_of_it[key], mine[key]) for key in mine if theirs_of_it[key] != mine[key]}
        assert differ == {}, f"{where}: {differ}"
        assert (message["unit_physical_offset"], message["unit_size"]) == (mine["physical_offset"], mine["size"])
        assert message["tags_code"] in {tags_code(mine, levels_s) for levels_s in delays_s}
    assert ours == {}
    assert sorted(dump["gaps"]) == sorted(map(list, gaps))
    for (topic, key), offsets in zip(keys, dump["by_key"], strict=True):
        assert sorted(offsets) == sorted(m.physical_offset for m in store.query(topic, key, 1000)), (topic, key)
    for offset_id, offset in zip(offset_ids, dump["by_offset_id"], strict=True):
        assert offset == int(offset_id[-16:], 16)
        assert store.read_at(offset).offset_message_id == offset_id


def tags_code(message: Facts, levels_s: Mapping[int, int]) -> int:
    """The second value of a queue's entry: in the schedule topic the time of delivery."""
    if message["topic"] == SCHEDULE_TOPIC:
        return int(message["store_timestamp_ms"]) + 1000 * levels_s[message["queue_id"] + 1]
    return java_hash(message["tags"] or "")


def java_hash(text: str) -> int:
    """String.hashCode."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def name_of(message: Facts) -> str:
    """The name that a workload gave it: its first key."""
    return str(message["keys"] or "").split(" ")[0]


def assert_as_told(dump: Facts, told: Told) -> None:
    """Acknowledged messages are in RocketMQ's dump as sent, at the acknowledged offset, once; and there are no
    others.
    """
    retries = [message for message in dump["messages"] if "ORIGIN_MESSAGE_ID" in message["properties"]]
    assert_retried(retries, told)
    records = [message for message in dump["messages"] if "ORIGIN_MESSAGE_ID" not in message["properties"]]
    real = [message for message in records if message["topic"] not in SYSTEM_TOPICS]
    halves = [message for message in records if message["topic"] == HALF_TOPIC]
    waiting = {name_of(message): message for message in records if message["topic"] == SCHEDULE_TOPIC}
    by_name = {name_of(message): message for message in real}
    assert len(by_name) == len(real), "a message is there twice"
    assert {*by_name, *waiting, *map(name_of, halves)} <= set(told.begun), "there is a message that was never sent"
    for name, message in by_name.items():
        assert_content(message, told.begun[name])
    for name, where in told.sent.items():
        assert {key: by_name[name][key] for key in where} == where
    for name, where in told.delayed.items():
        assert {key: waiting[name][key] for key in where} == where
        assert_content(waiting[name] | real_queue(waiting[name]), told.begun[name])
    by_physical_offset = {half["physical_offset"]: half for half in halves}
    for name, where in told.prepared.items():
        half = by_physical_offset[where["physical_offset"]]
        assert {key: half[key] for key in where} == where
        assert half["properties"]["REAL_TOPIC"] == told.begun[name]["topic"]
        possible = {told.states[name], told.in_flight.get(name, told.states[name])}
        assert (name in by_name) in {state == "committed" for state in possible}, (name, possible)
        if name in by_name:
            final = by_name[name]
            assert final["sys_flag"] & TRANSACTION_BITS == COMMIT_BITS
            assert name_of(by_physical_offset[final["prepared_transaction_offset"]]) == name
    parked = {name_of(message) for message in records if message["topic"] == DISCARD_TOPIC}
    discarded = {name for name, state in told.states.items() if state == "discarded" and name not in told.in_flight}
    assert discarded <= parked


def assert_retried(retries: list[Facts], told: Told) -> None:
    """A message that a consumer failed to handle waits for its retry, once; it may be in the group's retry topic,
    once.
    """
    waiting = [message for message in retries if message["topic"] == SCHEDULE_TOPIC]
    names = Counter(map(name_of, waiting))
    assert set(names.values()) <= {1}
    assert told.retried <= set(names) <= told.retrying
    come = Counter(name_of(message) for message in retries if message["topic"] == RETRY_TOPIC)
    assert set(come) <= set(names)
    assert set(come.values()) <= {1}
    for message in retries:
        assert message["reconsume_times"] == 1
        assert message["body_sha256"] == told.begun[name_of(message)]["body_sha256"]


def real_queue(message: Facts) -> Facts:
    """The real topic and queue of a hidden message."""
    properties = message["properties"]
    return {"topic": properties["REAL_TOPIC"], "queue_id": int(properties["REAL_QID"])}


def assert_content(message: Facts, sent: Facts) -> None:
    """A message in its real topic equals the one that was sent."""
    same = ("topic", "queue_id", "body_length", "body_sha256", "tags", "keys", "flag")
    assert {key: message[key] for key in same} == {key: sent[key] for key in same}
    own = {name: value for name, value in message["properties"].items() if name in sent["properties"]}
    assert own == sent["properties"]
    assert message["properties"].get("PGROUP") == sent["group"]


def visible(told: Told, states: dict[str, str]) -> set[str]:
    """Names of the messages that a consumer of the ordinary topics gets."""
    names = {*told.sent, *told.delayed} | {name for name, state in states.items() if state == "committed"}
    return {name for name in names if told.begun[name]["topic"] in TOPICS}
