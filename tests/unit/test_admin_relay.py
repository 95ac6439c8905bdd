"""Guards requests that the server relays: an operator asks what only a consumer knows and gets its answer or an error.

The consumer's answers are written by hand here; RocketMQ's own mqadmin and consumer do the same in tests/remoting.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

import txstore.server.admin_relay as admin_relay
from tests.frames import Response, Wire, frame
from tests.remoting_requests import (
    DIRECTLY,
    HEARTBEAT,
    MAX_OFFSET,
    RUNNING_INFO,
    SEND_V2,
    STATUS,
    STATUS_ASKED,
    heartbeat,
    sending,
)
from tests.unit.test_remoting_server import ANY
from txstore import EmbeddedBroker, Server
from txstore._native import ResponseCode

OFFLINE, TIMEOUT, NOT_FOUND, INVALID = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.CONSUME_MSG_TIMEOUT,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER,
)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


@pytest.fixture
def operator(server: Server) -> Iterator[Wire]:
    with Wire(str(server.address)) as wire:
        yield wire


@pytest.fixture
def consumer(server: Server) -> Iterator[Wire]:
    """Client c1 of group g."""
    with Wire(str(server.address)) as wire:
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "g")).code == 0
        yield wire


def answer(wire: Wire, asked: Response, body: bytes, code: int = 0, remark: str | None = None) -> None:
    header = {"code": code, "language": "PYTHON", "version": 479, "opaque": asked.opaque, "flag": 1, "remark": remark}
    wire.socket.sendall(frame(json.dumps(header).encode(), body))


def asked_of(client_id: str = "c1", group: str = "g", **more: Any) -> dict[str, Any]:
    return {"consumerGroup": group, "clientId": client_id} | more


def test_answer_of_a_consumer_is_returned_unchanged(operator: Wire, consumer: Wire) -> None:
    number = operator.write(RUNNING_INFO, asked_of(jstackEnable="true", AccessKey="mine", Signature="mine"))
    asked = consumer.pushed(RUNNING_INFO)
    assert asked.flag == 0, "a response is expected"
    assert asked.fields == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true", "brokerName": "txstore"}
    assert operator.call(MAX_OFFSET, {"topic": "none", "queueId": 0}).code >= 0, "other requests are answered meanwhile"
    answer(consumer, asked, b"what only it knows")
    told = operator.read()
    assert (told.opaque, told.code, told.body) == (number, 0, b"what only it knows")
    operator.write(RUNNING_INFO, asked_of())
    answer(consumer, consumer.pushed(RUNNING_INFO), b"", 3, "not by me")
    told = operator.read()
    assert (told.code, told.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not by me")


def test_whole_message_is_given_to_a_consumer(operator: Wire, consumer: Wire, broker: EmbeddedBroker) -> None:
    sent = operator.call(SEND_V2, sending(), b"17")
    operator.write(DIRECTLY, asked_of(msgId=sent.fields["msgId"]))
    asked = consumer.pushed(DIRECTLY)
    assert (asked.body, asked.fields["msgId"]) == (broker.store.read_at(0).record, sent.fields["msgId"])
    answer(consumer, asked, b'{"consumeResult":"CR_SUCCESS"}')
    assert b"CR_SUCCESS" in operator.read().body
    half = "0" * 16 + struct.pack(">q", 1 << 40).hex()
    assert operator.call(DIRECTLY, asked_of(msgId=half)).code == NOT_FOUND
    assert operator.call(DIRECTLY, asked_of(msgId="not an offset")).code == INVALID


def test_progress_of_all_consumers_comes_in_one_response(operator: Wire, consumer: Wire, server: Server) -> None:
    table = b'{{"brokerName":"b","queueId":0,"topic":"orders"}:5,{"brokerName":"b","queueId":1,"topic":"orders"}:7}'
    with Wire(str(server.address)) as other:
        other.call(HEARTBEAT, {}, heartbeat("c2", "g"))
        operator.write(STATUS, {"group": "g", "topic": "orders"})
        answer(other, other.pushed(STATUS_ASKED), b"no table", 1)
        answer(consumer, consumer.pushed(STATUS_ASKED), b'{"consumerTable":{},"messageQueueTable":' + table + b"}")
        told = operator.read()
        assert (told.code, told.body) == (0, b'{"consumerTable":{"c1":' + table + b"}}")
    assert operator.call(STATUS, {"group": "g", "topic": "orders", "clientAddr": "c3"}).code == OFFLINE


def test_absent_or_leaving_consumer_is_reported(operator: Wire, consumer: Wire) -> None:
    for who in (asked_of("c9"), asked_of(group="h")):
        told = operator.call(RUNNING_INFO, who)
        assert (told.code, "connected" in str(told.remark)) == (
            OFFLINE,
            True,
        )
    operator.write(RUNNING_INFO, asked_of())
    consumer.pushed(RUNNING_INFO)
    consumer.close()
    assert operator.read().code == OFFLINE


def test_silent_consumer_times_out(operator: Wire, consumer: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_relay, "_ANSWER_SECONDS", 0.1)
    operator.write(RUNNING_INFO, asked_of())
    asked = consumer.pushed(RUNNING_INFO)
    assert operator.read().code == TIMEOUT
    answer(consumer, asked, b"too late")
    assert operator.call(MAX_OFFSET, {"topic": "none", "queueId": 0}).code >= 0, "no request waits for it"


def test_unsolicited_answers_are_ignored(operator: Wire, consumer: Wire, server: Server) -> None:
    operator.write(RUNNING_INFO, asked_of())
    asked = consumer.pushed(RUNNING_INFO)
    answer(operator, asked, b"forged by another connection")
    answer(consumer, asked, b"true")
    answer(consumer, asked, b"twice")
    assert operator.read().body == b"true"
    assert server.counters()["requests_waiting"] == 0
