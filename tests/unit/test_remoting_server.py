"""Guards the server against any client: whatever bytes arrive, it answers with a code or closes, and stores nothing.

Also the way of a message over a socket, by hand: sent, ended, pulled, sent back, checked. No Java is needed here.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.frames import Wire, frame, json_header
from tests.remoting_requests import (
    BACK,
    BATCH,
    CHECK,
    COMMIT,
    DELETE_TOPIC,
    END,
    HEARTBEAT,
    LOCK,
    MAX_OFFSET,
    MEMBERS,
    MEMBERS_CHANGED,
    PULL,
    QUERY_OFFSET,
    ROLLBACK,
    ROUTE,
    SEND,
    SEND_V2,
    UNLOCK,
    UNREGISTER,
    UPDATE_OFFSET,
    ending,
    half,
    heartbeat,
    properties,
    pulling,
    sending,
)
from tests.unit.conftest import SMALL, OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig, StoredMessage, errors
from txstore._native import RequestCode, ResponseCode
from txstore.server import server as server_module
from txstore.server.queries import Queries
from txstore.server.request import Reply, Request

ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


def stored(broker: EmbeddedBroker) -> list[StoredMessage]:
    """All records of the log."""
    return broker.store.scan(0, 1000)[0]


# The way of a message -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_message_is_sent_and_pulled(server: Server, broker: EmbeddedBroker, binary: bool) -> None:
    assert server.address is not None
    with Wire(server.address, binary=binary) as wire:
        text = properties(UNIQ_KEY="ABC", TAGS="paid", KEYS="k1 k2", mine="1")
        sent = wire.call(SEND_V2, sending(queue_id=2, text=text, h=7), b"hello")
        assert (sent.code, sent.fields["queueId"], sent.fields["transactionId"]) == (0, "2", "ABC")
        pulled = wire.call(PULL, pulling(queue_id=2))
    assert (pulled.code, pulled.fields["nextBeginOffset"], pulled.fields["maxOffset"]) == (0, "1", "1")
    (message,), _ = broker.read("orders", 2, 0)
    assert pulled.body == message.record
    assert (message.body, message.tags, message.keys, message.flag) == (b"hello", "paid", ("k1", "k2"), 7)
    assert (message.message_id, message.born_timestamp_ms) == ("ABC", 1_700_000_000_000)
    assert message.properties["mine"] == "1"
    assert message.offset_message_id == sent.fields["msgId"]
    assert [found.message_id for found in broker.query("orders", "k2")] == ["ABC"]


def test_long_field_names_of_old_clients_are_read(wire: Wire, broker: EmbeddedBroker) -> None:
    fields = {
        "producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": -1,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "TAGS\x01x",
    }  # fmt: skip
    sent = wire.call(SEND, fields, b"old")
    assert sent.code == 0
    (message,), _ = broker.read("orders", int(sent.fields["queueId"]), 0)
    assert (message.body, message.tags) == (b"old", "x")


def test_batch_is_stored_completely(wire: Wire, broker: EmbeddedBroker) -> None:
    def part(body: bytes, text: str) -> bytes:
        rest = struct.pack(">IIII", 0, 0, 5, len(body)) + body + struct.pack(">H", len(text)) + text.encode()
        return struct.pack(">I", len(rest) + 4) + rest

    body = part(b"one", properties(UNIQ_KEY="A")) + part(b"two", properties(UNIQ_KEY="B"))
    sent = wire.call(BATCH, sending(m="true"), body)
    assert (sent.code, sent.fields["transactionId"]) == (0, "A,B")
    assert len(sent.fields["msgId"].split(",")) == 2
    assert [message.body for message in broker.read("orders", 0, 0)[0]] == [b"one", b"two"]
    before = len(stored(broker))
    for torn in (body[:-1], b"", b"\0" * 8, part(b"x", "TRAN_MSG\x01true"), part(b"", "")):
        assert wire.call(BATCH, sending(m="true"), torn).code == ResponseCode.MESSAGE_ILLEGAL
    assert len(stored(broker)) == before


def test_transaction_is_committed_once(wire: Wire, broker: EmbeddedBroker) -> None:
    sent = wire.call(SEND_V2, half(), b"tx")
    assert (sent.code, sent.fields["transactionId"]) == (0, "ID1")
    assert broker.read("orders", 0, 0)[0] == []
    first = wire.call(END, ending(sent, COMMIT))
    again = wire.call(END, ending(sent, COMMIT))
    contrary = wire.call(END, ending(sent, ROLLBACK))
    assert (first.code, first.fields) == (0, {"outcome": "committed", "already": "false"})
    assert (again.code, again.fields["already"]) == (0, "true")
    assert (contrary.code, contrary.fields) == (ResponseCode.TRANSACTION_FAILED, {"outcome": "committed"})
    assert "committed" in (contrary.remark or "")
    (message,), _ = broker.read("orders", 0, 0)
    assert (message.body, message.transaction_id) == (b"tx", "ID1")


def test_half_that_is_sent_again_is_the_same_transaction(wire: Wire, broker: EmbeddedBroker) -> None:
    first, again = wire.call(SEND_V2, half(), b"tx"), wire.call(SEND_V2, half(), b"tx")
    assert first.fields == again.fields
    assert len(broker.transactions()) == 1


def test_forged_end_changes_nothing(wire: Wire, server: Server, broker: EmbeddedBroker) -> None:
    sent = wire.call(SEND_V2, half(), b"tx")
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    forged: list[dict[str, Any]] = [
        {"group": "other"},
        {"commitLogOffset": physical_offset + 1},
        {"commitLogOffset": 2**63 - 1},
        {"tranStateTableOffset": 7},
        {"tranStateTableOffset": -1},
        {"commitOrRollback": 4},
        {"commitOrRollback": "x"},
        {"transactionId": "someone else's"},
    ]
    for changes in forged:
        answer = wire.call(END, ending(sent, COMMIT, **changes))
        assert answer.code != 0, changes
        if "transactionId" in changes:  # A client that does not know the right value is not told it.
            assert sent.fields["transactionId"] not in str(answer)
    assert len(broker.transactions()) == 1
    assert len(stored(broker)) == 1
    assert server.counters()["ends_committed"] == 0
    refused = {name: server.counters()[f"ends_{name}"] for name in ("wrong_group", "not_found", "contrary", "failed")}
    assert refused == {"wrong_group": 1, "not_found": 4, "contrary": 0, "failed": 0}


def test_oneway_end_is_not_answered(wire: Wire, broker: EmbeddedBroker) -> None:
    sent = wire.call(SEND_V2, half(), b"tx")
    wire.write(END, ending(sent, ROLLBACK), one_way=True)
    assert wire.call(MAX_OFFSET, {"topic": "orders", "queueId": 0}).fields["offset"] == "0"
    assert broker.transaction("ID1").state == "rolled_back"


def test_connection_that_sent_a_half_is_asked_first(open_store: OpenStore) -> None:
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=0.2, transaction_check_max=10_000)
    with Server(broker, ANY) as server:
        assert server.address is not None
        with Wire(server.address) as other, Wire(server.address) as wire:
            assert other.call(HEARTBEAT, {}, heartbeat("other", producers=("g",))).code == 0
            sent = wire.call(SEND_V2, half(), b"tx")
            check = wire.pushed(CHECK)
            assert (check.fields["transactionId"], check.fields["commitLogOffset"]) == (
                "ID1",
                str(int(sent.fields["msgId"][-16:], 16)),
            )
            assert b"orders" in check.body
            eventually(lambda: broker.transactions()[0].checks > 0)
            wire.write(END, ending(sent, COMMIT, fromTransactionCheck="true"), one_way=True)
            eventually(lambda: not broker.transactions())
            assert server.counters()["ends_from_check"] == 1
        assert len(broker.read("orders", 0, 0)[0]) == 1


def test_when_a_producer_disconnects_another_of_its_group_is_asked(open_store: OpenStore) -> None:
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=0.2, transaction_check_max=10_000)
    with Server(broker, ANY) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            sent = wire.call(SEND_V2, half(), b"tx")
        eventually(lambda: server.counters()["producers"] == 0)
        with Wire(server.address) as other:
            other.call(HEARTBEAT, {}, heartbeat("other", producers=("g",)))
            other.pushed(CHECK)
            other.write(END, ending(sent, ROLLBACK, fromTransactionCheck="true"), one_way=True)
            eventually(lambda: not broker.transactions())
    assert broker.read("orders", 0, 0)[0] == []


# Pulling --------------------------------------------------------------------------------------------------------------


def test_held_pull_is_answered_when_a_message_arrives(wire: Wire, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 4)
    opaque = wire.write(PULL, pulling(sysFlag=6, suspendTimeoutMillis=30_000))
    timer = threading.Timer(0.2, lambda: broker.append(txstore.Message("orders", b"late"), 0))
    timer.start()
    began = time.monotonic()
    pulled = wire.read()
    assert (pulled.opaque, pulled.code, pulled.fields["nextBeginOffset"]) == (opaque, 0, "1")
    assert time.monotonic() - began < 20
    timer.join()


def test_held_pull_ends_at_its_time_limit(wire: Wire, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 4)
    assert wire.call(PULL, pulling(sysFlag=6, suspendTimeoutMillis=100)).code == ResponseCode.PULL_NOT_FOUND
    broker.append(txstore.Message("orders", b"x", tags="b"), 0)
    passed = wire.call(PULL, pulling(sysFlag=6, suspendTimeoutMillis=100, subscription="a"))
    assert (passed.code, passed.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def test_tags_select(wire: Wire, broker: EmbeddedBroker) -> None:
    for number, tag in enumerate("abcab"):
        wire.call(SEND_V2, sending(text=properties(TAGS=tag)), b"%d" % number)
    pulled = wire.call(PULL, pulling(subscription="a || c"))
    wanted = [message.record for message in broker.read("orders", 0, 0)[0] if message.tags in ("a", "c")]
    assert len(wanted) == 3
    assert pulled.body == b"".join(wanted)


def test_offset_outside_the_queue_is_corrected(wire: Wire) -> None:
    wire.call(SEND_V2, sending(), b"x")
    for asked, told in ((-1, "0"), (2, "1"), (2**62, "1")):
        pulled = wire.call(PULL, pulling(queue_offset=asked))
        assert (pulled.code, pulled.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, told)


def test_pull_without_a_subscription_uses_the_heartbeat(wire: Wire) -> None:
    wire.call(SEND_V2, sending(), b"x")
    assert wire.call(PULL, pulling(sysFlag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
    assert wire.call(PULL, pulling(sysFlag=0)).code == 0
    assert wire.call(PULL, pulling(sysFlag=0, subVersion=2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_members_that_started_at_different_times_all_read(wire: Wire, server: Server) -> None:
    """RocketMQ's clients name the moment of their start with each pull; an older member's heartbeat does not undo a
    newer subscription.
    """
    wire.call(SEND_V2, sending(), b"x")
    assert server.address is not None
    with Wire(server.address) as newer:
        assert wire.call(HEARTBEAT, {}, heartbeat("one", "c", version=1)).fields["IS_SUB_CHANGE"] == "true"
        assert newer.call(HEARTBEAT, {}, heartbeat("two", "c", version=2)).fields["IS_SUB_CHANGE"] == "true"
        assert wire.call(HEARTBEAT, {}, heartbeat("one", "c", version=1)).fields["IS_SUB_CHANGE"] == "false"
        assert newer.call(PULL, pulling(sysFlag=0, subVersion=2)).code == 0
        assert wire.call(PULL, pulling(sysFlag=0, subVersion=1)).code == 0


def test_pull_acknowledges(wire: Wire, broker: EmbeddedBroker) -> None:
    wire.call(SEND_V2, sending(), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    wire.call(PULL, pulling(queue_offset=1, sysFlag=7, commitOffset=1, suspendTimeoutMillis=1))
    assert broker.consumer_offset("orders", "c", 0) == 1
    assert wire.call(QUERY_OFFSET, {"consumerGroup": "c", "topic": "orders", "queueId": 0}).fields["offset"] == "1"


def test_messages_sent_back_come_again_and_become_dead_letters(wire: Wire, broker: EmbeddedBroker) -> None:
    sent = wire.call(SEND_V2, sending(), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    assert broker.read_queues("%RETRY%c") == (0,)
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    back = {"offset": physical_offset, "group": "c", "delayLevel": 1, "originTopic": "orders", "maxReconsumeTimes": 16}
    assert wire.call(BACK, back).code == 0
    eventually(lambda: broker.queue_range("%RETRY%c", 0)[1] == 1)
    pulled = wire.call(PULL, pulling("%RETRY%c"))
    assert pulled.code == 0
    assert wire.call(BACK, back | {"delayLevel": -1}).code == 0
    assert [letter.body for letter in broker.dead_letters("c")] == [b"x"]
    assert wire.call(BACK, back | {"offset": 2**62}).code == ResponseCode.QUERY_NOT_FOUND


def test_consumed_retries_keep_no_file(wire: Wire, broker: EmbeddedBroker) -> None:
    """Retention uses the smallest offset in a queue, under whatever name it is stored."""
    sent = wire.call(SEND_V2, sending(), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    wire.call(BACK, {"offset": physical_offset, "group": "c", "delayLevel": 1, "originTopic": "orders"})
    eventually(lambda: broker.queue_range("%RETRY%c", 0)[1] == 1)
    assert {offset for topic, _, _, offset in broker.store.consumer_offsets() if topic == "%RETRY%c"} == {0}
    assert (
        wire.call(UPDATE_OFFSET, {"consumerGroup": "c", "topic": "%RETRY%c", "queueId": 0, "commitOffset": 1}).code == 0
    )
    assert {offset for topic, _, _, offset in broker.store.consumer_offsets() if topic == "%RETRY%c"} == {1}


# Groups ---------------------------------------------------------------------------------------------------------------


def test_members_of_a_group_are_notified_of_each_other(server: Server) -> None:
    assert server.address is not None
    with Wire(server.address) as one:
        assert one.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
        assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}
        with Wire(server.address) as two:
            two.call(HEARTBEAT, {}, heartbeat("c2", "c"))
            assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}
            listed = json.loads(two.call(MEMBERS, {"consumerGroup": "c"}).body)
            assert listed == {"consumerIdList": ["c1", "c2"]}
        assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}
        assert json.loads(one.call(MEMBERS, {"consumerGroup": "c"}).body) == {"consumerIdList": ["c1"]}
        one.call(UNREGISTER, {"clientID": "c1", "consumerGroup": "c"})
        assert one.call(MEMBERS, {"consumerGroup": "c"}).code == ResponseCode.SYSTEM_ERROR


def test_queue_is_locked_by_one_member(wire: Wire, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 4)
    broker.create_group("c")

    def asked(client_id: str) -> bytes:
        queue = {"topic": "orders", "brokerName": "txstore", "queueId": 0}
        return json.dumps({"consumerGroup": "c", "clientId": client_id, "mqSet": [queue]}).encode()

    assert len(json.loads(wire.call(LOCK, {}, asked("c1")).body)["lockOKMQSet"]) == 1
    assert json.loads(wire.call(LOCK, {}, asked("c2")).body)["lockOKMQSet"] == []
    assert wire.call(UNLOCK, {}, asked("c1")).code == 0
    assert len(json.loads(wire.call(LOCK, {}, asked("c2")).body)["lockOKMQSet"]) == 1


def test_routes_name_this_broker(wire: Wire, server: Server, broker: EmbeddedBroker) -> None:
    assert wire.call(ROUTE, {"topic": "orders"}).code == ResponseCode.TOPIC_NOT_EXIST
    broker.create_topic("orders", 3)
    route = json.loads(wire.call(ROUTE, {"topic": "orders"}).body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": server.address}
    assert route["queueDatas"][0] | {} == {
        "brokerName": "txstore", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3,
    }  # fmt: skip
    assert json.loads(wire.call(ROUTE, {"topic": "TBW102"}).body)["queueDatas"][0]["perm"] == 7


def test_topic_with_more_queues_here_has_more_queues_for_clients(wire: Wire, broker: EmbeddedBroker) -> None:
    assert wire.call(SEND_V2, sending(queue_id=1), b"x").code == 0
    assert wire.call(SEND_V2, sending(queue_id=4), b"x").code == ResponseCode.INVALID_PARAMETER
    broker.create_topic("orders", 5)
    assert wire.call(SEND_V2, sending(queue_id=4), b"x").code == 0


def test_topic_is_deleted_when_no_group_reads_it(wire: Wire, broker: EmbeddedBroker) -> None:
    assert wire.call(SEND_V2, sending(), b"x").code == 0
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
    assert wire.call(DELETE_TOPIC, {"topic": "orders"}).code == ResponseCode.SYSTEM_ERROR
    assert wire.call(UNREGISTER, {"clientID": "c1", "consumerGroup": "c"}).code == 0
    assert wire.call(DELETE_TOPIC, {"topic": "orders"}).code == 0
    assert broker.topics() == ["%RETRY%c"]
    assert wire.call(PULL, pulling()).code == ResponseCode.TOPIC_NOT_EXIST
    assert wire.call(SEND_V2, sending(), b"again").code == 0
    assert [message.body for message in broker.read("orders", 0, broker.queue_range("orders", 0)[0])[0]] == [b"again"]


# Malformed and refused requests ---------------------------------------------------------------------------------------

MALFORMED = {
    "huge length": struct.pack(">I", 2**31),
    "one byte over the limit": struct.pack(">I", 16_777_217),
    "length below the mark's": struct.pack(">I", 3) + b"abc",
    "header longer than the frame": struct.pack(">II", 8, 9),
    "unknown serialize type": frame(b"{}", kind=7),
    "no JSON": frame(b"not JSON"),
    "no object": frame(b"[]"),
    "no code": frame(b"{}"),
    "code of 33 bits": frame(b'{"code": 4294967296}'),
    "nested JSON": frame(b'{"code":' * 100_000),
    "binary cut off": frame(b"\0\x0b", kind=1),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000001fc0303") + b"\0" * 32,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frame_closes_the_connection(server: Server, broker: EmbeddedBroker, name: str) -> None:
    assert server.address is not None
    with Wire(server.address) as wire:
        wire.socket.sendall(MALFORMED[name])
        assert wire.closed()
    eventually(lambda: server.counters()["connections"] == 0)
    assert (server.counters()["frames_malformed"], server.counters()["connections_dropped"]) == (1, 1)
    with Wire(server.address) as wire:
        assert wire.call(SEND_V2, sending(), b"others continue").code == 0
    assert [message.body for message in stored(broker)] == [b"others continue"]


def test_half_a_frame_stores_nothing(server: Server, broker: EmbeddedBroker) -> None:
    assert server.address is not None
    whole = frame(json_header(SEND_V2, sending(), 1), b"never whole")
    with Wire(server.address) as wire:
        wire.socket.sendall(whole[:-1])
    eventually(lambda: server.counters()["connections"] == 0)
    assert stored(broker) == []
    with Wire(server.address) as wire:
        for byte in whole:  # Split into as many pieces as possible, it is one message.
            wire.socket.sendall(bytes([byte]))
        assert wire.read().code == 0


HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OF_HALVES = {"topic": HALF_TOPIC, "consumerGroup": "c", "queueId": 0, "commitOffset": 1}
REFUSED: dict[str, tuple[int, dict[str, Any], bytes, int]] = {
    "unknown code": (9999, {}, b"", 3),
    "code of the engine's own": (-1, {"topic": "x", "make": "true"}, b"", 3),
    "half topic": (SEND_V2, sending(HALF_TOPIC), b"x", 16),
    "op topic": (SEND_V2, sending("RMQ_SYS_TRANS_OP_HALF_TOPIC"), b"x", 16),
    "schedule topic": (SEND_V2, sending("SCHEDULE_TOPIC_XXXX"), b"x", 16),
    "topic as a path": (SEND_V2, sending("../../etc"), b"x", 13),
    "long topic": (SEND_V2, sending("t" * 128), b"x", 13),
    "group as a path": (SEND_V2, half(group="../x"), b"x", 13),
    "empty body": (SEND_V2, sending(), b"", 13),
    "long body": (SEND_V2, sending(), b"x" * (SMALL["max_message_size"] + 1), 13),
    "long properties": (SEND_V2, sending(text="a\x01" + "b" * 40_000), b"x", 13),
    "timer that is not a number": (SEND_V2, sending(text=properties(TIMER_DELAY_MS="soon")), b"x", 13),
    "timer too far ahead": (SEND_V2, sending(text=properties(TIMER_DELAY_SEC="259201")), b"x", 13),
    "recall of nothing": (370, {"producerGroup": "g", "topic": "orders", "recallHandle": "x"}, b"", 604),
    "recall without a handle": (370, {"producerGroup": "g", "topic": "orders"}, b"", 29),
    "no topic": (SEND_V2, {"a": "g"}, b"x", 29),
    "queue no number": (SEND_V2, sending(e="one"), b"x", 29),
    "queue beyond": (SEND_V2, sending(queue_id=99), b"x", 29),
    "pull of the half topic": (PULL, pulling(HALF_TOPIC), b"", 16),
    "pull of no topic": (PULL, pulling("nowhere"), b"", 17),
    "pull by SQL": (PULL, pulling(expressionType="SQL92", subscription="a > 1"), b"", 17),
    "no heartbeat": (34, {}, b"nothing", 29),
    "heartbeat of a group as a path": (34, {}, heartbeat("c", "../x"), 29),
    "offset of the half topic": (15, OF_HALVES, b"", 29),
    "view of nowhere": (33, {"offset": 2**62}, b"", 22),
    "the end of a topic that is not there": (215, {"topic": "orders"}, b"", 29),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_request_is_answered_with_an_error(wire: Wire, broker: EmbeddedBroker, name: str) -> None:
    code, fields, body, told = REFUSED[name]
    answer = wire.call(code, fields, body)
    assert answer.code == told
    assert answer.remark
    assert stored(broker) == []
    assert wire.call(ROUTE, {"topic": "TBW102"}).code == 0, "the connection stays open"


def test_fields_of_the_engine_cannot_be_set_by_clients(wire: Wire, broker: EmbeddedBroker) -> None:
    own = {
        "REAL_TOPIC": "other",
        "REAL_QID": "3",
        "__transactionId__": "x",
        "PGROUP": "p",
        "TRANSACTION_CHECK_TIMES": "9",
    }
    text = properties(**own, mine="1")
    assert wire.call(SEND_V2, sending(text=text, f=8 | 16 | 32), b"x").code == 0
    (message,), _ = broker.read("orders", 0, 0)
    assert set(message.properties) - {"UNIQ_KEY"} == {"mine"}
    assert message.sys_flag == 0


def test_unknown_topic_is_not_created_when_that_is_off(open_store: OpenStore) -> None:
    broker = open_store(auto_create_topic_enable=False)
    with Server(broker, ANY) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            answer = wire.call(SEND_V2, sending(), b"x")
            assert (answer.code, "create_topic" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
            assert wire.call(ROUTE, {"topic": "TBW102"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_requests_of_a_client_that_does_not_read_wait(server: Server, broker: EmbeddedBroker) -> None:
    """The responses that wait for it are bounded, and no other client waits."""
    assert server.address is not None
    broker.create_topic("orders", 1)
    for _ in range(8):
        broker.append(txstore.Message("orders", b"x" * 60_000), 0)
    with Wire(server.address) as wire:
        request = frame(json_header(PULL, pulling(), 1))
        wire.socket.settimeout(1)
        with pytest.raises((TimeoutError, ConnectionError)):
            wire.socket.sendall(request * 100_000)
        assert server.counters()["bytes_out"] < 48 << 20
        with Wire(server.address) as other:
            assert other.call(ROUTE, {"topic": "orders"}).code == 0
    eventually(lambda: server.counters()["connections"] == 0)


# Listening ------------------------------------------------------------------------------------------------------------


def test_unix_socket_is_served(broker: EmbeddedBroker, tmp_path: Path) -> None:
    unix = tmp_path / "socket"
    for _ in range(2):
        with Server(broker, ServerConfig(listen=None, name_server=None, unix=unix)) as server:
            assert server.address is None
            assert unix.stat().st_mode & 0o777 == 0o600
            with Wire(str(unix)) as wire:
                assert wire.call(SEND_V2, sending(), b"x").code == 0
            with pytest.raises(errors.StoreIOError, match="in use by another"):
                Server(broker, ServerConfig(listen=None, name_server=None, unix=unix))
    assert not unix.exists()
    unix.write_text("somebody's notes")
    with pytest.raises(errors.StoreIOError, match="is not a socket"):
        Server(broker, ServerConfig(listen=None, name_server=None, unix=unix))
    assert unix.read_text() == "somebody's notes"


def test_unix_socket_is_never_open_to_others(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even before its mode is set, and in a process whose umask would allow it."""
    unix, seen, chmod = tmp_path / "socket", list[int](), Path.chmod

    def looked_at(path: Path, mode: int) -> None:
        seen.append(path.stat().st_mode & 0o077)
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", looked_at)
    before = os.umask(0)
    try:
        Server(broker, ServerConfig(listen=None, name_server=None, unix=unix)).close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert seen == [0]


def test_address_in_use_is_reported(server: Server, broker: EmbeddedBroker) -> None:
    with pytest.raises(errors.StoreIOError, match="another server listens there") as caught:
        Server(broker, ServerConfig(listen=server.address, name_server=None))
    assert caught.value.errno == 98


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["idle_timeout", "first_frame_timeout", "frame_timeout", "unread_timeout"])
def test_invalid_duration_is_reported(broker: EmbeddedBroker, option: str, seconds: float) -> None:
    config = dataclasses.replace(ANY, **{option: seconds})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOptionError, match=f"{option} must be 0 to 1,000,000,000 seconds, got"):
        Server(broker, config)


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig(listen="localhost:1"),
        ServerConfig(listen="nowhere"),
        ServerConfig(listen=None, name_server=None),
        ServerConfig(listen="0.0.0.0:0"),
    ],
)
def test_invalid_address_to_listen_on_is_reported(broker: EmbeddedBroker, config: ServerConfig) -> None:
    with pytest.raises(errors.InvalidOptionError, match="hint:"):
        Server(broker, config)


def test_close_answers_requests_in_flight(broker: EmbeddedBroker) -> None:
    server = Server(broker, ANY)
    assert server.address is not None
    broker.create_topic("orders", 1)
    with Wire(server.address) as wire:
        wire.write(PULL, pulling(sysFlag=6, suspendTimeoutMillis=30_000))
        eventually(lambda: server.counters()["pulls_held"] == 1)
        began = time.monotonic()
        server.close()
        assert wire.read().code == ResponseCode.PULL_NOT_FOUND
        assert wire.closed()
    assert time.monotonic() - began < 20
    server.close()
    assert not broker.closed


def test_close_does_not_wait_for_a_client_that_does_not_read(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_DRAIN_SECONDS", 3_600.0)
    broker.create_topic("orders", 1)
    for _ in range(8):
        broker.append(txstore.Message("orders", b"x" * 60_000), 0)
    server = Server(broker, dataclasses.replace(ANY, unread_timeout=3_600))
    assert server.address is not None
    closing = threading.Thread(target=server.close)
    with Wire(server.address) as deaf:
        deaf.socket.sendall(frame(json_header(PULL, pulling(), 1)) * 100)
        eventually(lambda: server.counters()["bytes_out"] > 1 << 20)
        closing.start()
        closing.join(60)
        closed = not closing.is_alive()
    closing.join()
    assert closed


def test_close_discards_slow_requests_that_wait(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clients are gone, and there may be a thousand of them. It waits for the running ones only."""
    running, released = threading.Semaphore(0), threading.Event()
    ended: list[str] = []

    def by_key(self: Queries, request: Request) -> Reply:
        running.release()
        assert released.wait(60)
        ended.append(request.ext_fields["key"])
        return Reply()

    monkeypatch.setattr(Queries, "by_key", by_key)
    server = Server(broker, ANY)
    assert server.address is not None
    threads = server._slow._max_workers
    with Wire(server.address) as wire:
        for number in range(threads + 5):
            wire.write(RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": number})
        eventually(lambda: server._slow_waiting.total() == threads + 5)
    for _ in range(threads):
        assert running.acquire(timeout=60)
    closing = threading.Thread(target=server.close)
    closing.start()

    def takes_no_more() -> bool:
        try:
            server._slow.submit(int)
        except RuntimeError:
            return True
        return False

    eventually(takes_no_more)
    released.set()
    closing.join(60)
    assert not closing.is_alive()
    assert sorted(ended) == [str(number) for number in range(threads)]


def test_store_is_served_by_its_path(tmp_path: Path) -> None:
    with txstore.serve(tmp_path / "store", config=ANY, **SMALL) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            sent = wire.call(SEND_V2, sending(), b"x")
            assert sent.code == 0
    assert server.broker.closed
    with txstore.open(tmp_path / "store", read_only=True) as broker:
        assert [message.body for message in stored(broker)] == [b"x"]
        with pytest.raises(errors.ReadOnlyError):
            Server(broker, ANY)


def test_sync_flush_answers_when_the_message_is_on_disk(open_store: OpenStore) -> None:
    broker = open_store(flush_disk_type="SYNC_FLUSH")
    with Server(broker, ANY) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            sent = wire.call(SEND_V2, half(), b"tx")
            assert broker.stat().durable_physical_offset > int(sent.fields["msgId"][-16:], 16)
            assert wire.call(END, ending(sent, COMMIT)).code == 0
            assert broker.stat().durable_physical_offset == broker.stat().max_physical_offset
            opaques = [wire.write(SEND_V2, sending(), b"%d" % number) for number in range(200)]
            assert sorted(wire.read().opaque for _ in opaques) == opaques
    assert len(stored(broker)) == 203


def test_health_and_readiness_are_served_over_http(broker: EmbeddedBroker) -> None:
    def get(path: str) -> int:
        line = http.client.HTTPConnection(str(serving.metrics), timeout=5)
        line.request("GET", path)
        return line.getresponse().status

    with Server(broker, ServerConfig("127.0.0.1:0", name_server=None, metrics="127.0.0.1:0")) as serving:
        assert (get("/healthz"), get("/readyz"), get("/")) == (200, 200, 404)
        with pytest.raises(errors.StoreIOError, match="cannot listen"):
            Server(broker, ServerConfig("127.0.0.1:0", name_server=None, metrics=serving.metrics))
        assert not broker.closed


def test_thousand_idle_connections_use_little_memory(server: Server) -> None:
    assert server.address is not None

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with Wire(server.address) as wire:
        wire.call(ROUTE, {"topic": "TBW102"})
    before = resident()
    wires = [Wire(server.address) for _ in range(400)]
    try:
        for wire in wires:
            assert wire.call(ROUTE, {"topic": "TBW102"}).code == 0
        assert (resident() - before) / len(wires) < 64 * 1024
    finally:
        for wire in wires:
            wire.close()
    eventually(lambda: server.counters()["connections"] == 0)
