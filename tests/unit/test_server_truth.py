"""Guards what a server reports: half messages stay invisible until committed, and refused requests get an error.

Unusual requests are understood as RocketMQ understands them, and a server at a limit says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frames import Wire, binary_header, frame, json_header
from tests.remoting_requests import (
    BACK,
    END,
    HEARTBEAT,
    PULL,
    RESET,
    ROLLBACK,
    SEND_V2,
    UPDATE_GROUP,
    UPDATE_TOPIC,
    ending,
    half,
    heartbeat,
    properties,
    pulling,
    sending,
)
from txstore import EmbeddedBroker, Server, ServerConfig, errors
from txstore._native import RequestCode, ResponseCode

ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)
ILLEGAL, INVALID, NOT_FOUND = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER, ResponseCode.QUERY_NOT_FOUND


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


@pytest.mark.parametrize("level", [-1, 1])
def test_half_message_cannot_be_sent_back(wire: Wire, broker: EmbeddedBroker, level: int) -> None:
    """Sent back by its offset, a group would read it before it is committed, even if it is rolled back."""
    wire.call(HEARTBEAT, {}, heartbeat("c1", "spy"))
    sent = wire.call(SEND_V2, half(), b"UNCOMMITTED")
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    assert wire.call(BACK, {"offset": physical_offset, "group": "spy", "delayLevel": level}).code == NOT_FOUND
    assert broker.dead_letters("spy") == []
    assert len(broker.store.scan(0, 100)[0]) == 1
    with pytest.raises(errors.MessageNotFoundError):
        broker.store.append_copy(physical_offset, "%RETRY%spy", 0)
    assert wire.call(END, ending(sent, ROLLBACK)).code == 0


@pytest.mark.parametrize("said", ["true", "True", "TRUE"])
def test_half_message_is_recognized_by_flag_or_property(wire: Wire, broker: EmbeddedBroker, said: str) -> None:
    text = properties(TRAN_MSG=said, PGROUP="g", UNIQ_KEY="ID1")
    assert wire.call(SEND_V2, sending(text=text, f=4), b"tx").code == 0
    assert broker.read("orders", 0, 0)[0] == []
    assert len(broker.transactions()) == 1


def test_contradictory_message_is_refused(wire: Wire, broker: EmbeddedBroker) -> None:
    """Its sysFlag says half message, its properties say plain message, which would be visible at once."""
    assert wire.call(SEND_V2, sending(f=4), b"x").code == ILLEGAL
    assert wire.call(SEND_V2, sending(f=4, text=properties(TRAN_MSG="false")), b"x").code == ILLEGAL
    assert broker.store.scan(0, 100)[0] == []


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_property_that_is_not_utf8_keeps_the_connection(wire: Wire, broker: EmbeddedBroker, binary: bool) -> None:
    make = binary_header if binary else json_header
    header = make(SEND_V2, sending(text="mine\x01ABCD\x02"), 7).replace(b"ABCD", b"\xff\xfe\xfd\xfc")
    wire.socket.sendall(frame(header, b"x", kind=int(binary)))
    answer = wire.read()
    assert (answer.opaque, answer.code) == (7, 0)
    (message,), _ = broker.read("orders", 0, 0)
    assert message.properties["mine"] == "\ufffd" * 4
    assert wire.call(PULL, pulling()).code == 0


def test_header_values_are_text_or_numbers(wire: Wire) -> None:
    """Lists and objects would take a hundred times their bytes in memory, before the signature is verified."""
    many = b"[" + b"[]," * 150_000 + b"[]]"
    header = b'{"code":105,"opaque":5,"flag":0,"remark":' + many + b',"extFields":{"topic":' + many + b',"n":7}}'
    wire.socket.sendall(frame(header))
    answer = wire.read()
    assert (answer.opaque, answer.code, "topic" in (answer.remark or "")) == (5, INVALID, True)


@pytest.mark.parametrize("field", ["clientID", "groupName", "topic"])
def test_half_a_surrogate_pair_is_refused_without_a_traceback(
    wire: Wire, server: Server, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    """JSON can escape half of a surrogate pair, which is not text, so no name can contain it."""
    said = json.loads(heartbeat("c1", "g"))
    consumer = said["consumerDataSet"][0]
    where = {"clientID": said, "groupName": consumer, "topic": consumer["subscriptionDataSet"][0]}[field]
    where[field] = "x\ud800"
    assert wire.call(HEARTBEAT, {}, json.dumps(said).encode()).code == INVALID
    assert server.counters()["consumers"] == 0
    assert "Traceback" not in caplog.text
    assert wire.call(HEARTBEAT, {}, heartbeat("\U0001f600", "g")).code == 0


# Operators ------------------------------------------------------------------------------------------------------------


def test_setting_that_is_not_supported_is_refused(wire: Wire, broker: EmbeddedBroker) -> None:
    """mqadmin must not be told that a topic is read-only, or a group disabled, if the server does not do it."""
    made = {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    assert wire.call(UPDATE_TOPIC, made).code == 0
    for perm in (2, 4):
        assert wire.call(UPDATE_TOPIC, made | {"perm": perm}).code == INVALID
    assert wire.call(UPDATE_TOPIC, made | {"readQueueNums": 8}).code == INVALID
    assert len(broker.read_queues("orders")) == 4
    bodies: list[dict[str, Any]] = [
        {},
        {"groupName": ""},
        {"groupName": "c", "consumeEnable": False},
        {"groupName": "c", "retryMaxTimes": -1},
        {"groupName": "c", "retryMaxTimes": True},
        {"groupName": "c", "consumeMessageOrderly": "yes"},
    ]
    for body in bodies:
        assert wire.call(UPDATE_GROUP, {}, json.dumps(body).encode()).code == INVALID, body
    assert broker.groups() == []
    usual = {"groupName": "c", "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1, "brokerId": 0}
    assert wire.call(UPDATE_GROUP, {}, json.dumps(usual).encode()).code == 0
    assert broker.groups() == ["c"]


def test_settings_of_a_group_are_stored(wire: Wire, broker: EmbeddedBroker) -> None:
    for said in ({"retryMaxTimes": 3}, {"consumeMessageOrderly": True}):
        assert wire.call(UPDATE_GROUP, {}, json.dumps({"groupName": "c"} | said).encode()).code == 0
    settings = broker.group_settings("c")
    assert (settings.consume_message_orderly, settings.retry_max_times) == (True, 3)
    told = json.loads(wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "c"}).body)
    assert (told["consumeMessageOrderly"], told["retryMaxTimes"]) == (True, 3)


def test_reset_of_one_queue_leaves_the_others(wire: Wire, broker: EmbeddedBroker) -> None:
    for queue_id in range(4):
        wire.call(SEND_V2, sending(queue_id=queue_id), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    asked = {"topic": "orders", "group": "c", "timestamp": -1, "isForce": "true"}
    assert wire.call(RESET, asked | {"offset": 1}).code == INVALID, "an offset is one of a queue"
    assert wire.call(RESET, asked | {"queueId": 2, "offset": 2}).code == INVALID
    assert wire.call(RESET, asked | {"queueId": 4, "offset": 1}).code == INVALID
    assert broker.store.consumer_offsets() == []
    assert wire.call(RESET, asked | {"queueId": 2, "offset": 1}).code == 0
    assert broker.store.consumer_offsets() == [("orders", "c", 2, 1)]
    assert wire.call(RESET, asked | {"queueId": 2, "timestamp": 0}).code == 0
    assert broker.store.consumer_offsets() == [("orders", "c", 2, 0)]
    assert wire.call(RESET, asked | {"queueId": -1}).code == 0
    assert {offset for _, _, _, offset in broker.store.consumer_offsets()} == {1}
