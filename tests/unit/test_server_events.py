"""Guards the events between the engine's server and Python: each is a value with fields, one class for each kind.

The server is the engine's alone; the test answers in Python's stead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.frames import Wire, frame, json_header
from tests.remoting_requests import SEND_V2, half, heartbeat, sending
from txstore import EmbeddedBroker, ServerConfig
from txstore._native import (
    ClientAnswer,
    ConnectionClosed,
    ConnectionRefused,
    NewProducer,
    RemotingRequest,
    RemotingServer,
    RequestCode,
    RequestDenied,
    ResponseCode,
    UnknownTopic,
)
from txstore.server.secrets import Secrets

Event = TypeVar("Event")


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[RemotingServer]:
    server = RemotingServer.start(broker.store, listen=["127.0.0.1:0"], limits=ServerConfig())
    yield server
    server.stop()


@pytest.fixture
def client(server: RemotingServer) -> Iterator[Wire]:
    with Wire(server.addresses[0]) as client:
        yield client


def next_event(server: RemotingServer, kind: type[Event]) -> Event:
    event = server.next_event(10_000)
    assert isinstance(event, kind), event
    return event


def test_unknown_topic_is_requested_from_python(server: RemotingServer, client: Wire) -> None:
    client.write(SEND_V2, sending("orders"), b"x")
    asked = next_event(server, UnknownTopic)
    assert (asked.name, asked.create) == ("orders", True)
    server.set_topic("orders", 4, 4)
    assert server.answer(asked, ResponseCode.SUCCESS)
    assert client.read().code == ResponseCode.SUCCESS
    assert not server.answer(asked, ResponseCode.SUCCESS), "it is answered once"


def test_topic_that_python_refuses(server: RemotingServer, client: Wire) -> None:
    client.write(SEND_V2, sending("orders"), b"x")
    server.answer(next_event(server, UnknownTopic), ResponseCode.TOPIC_NOT_EXIST, "no topic orders")
    refused = client.read()
    assert (refused.code, refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no topic orders")


def test_new_producer_group_of_a_connection_is_reported(server: RemotingServer, client: Wire) -> None:
    server.set_topic("orders", 4, 4)
    client.write(SEND_V2, half("orders", group="shop"), b"x")
    asked = next_event(server, NewProducer)
    assert (asked.group, asked.account) == ("shop", None)
    assert server.answer_producer(asked, 1)
    assert client.read().code == ResponseCode.SUCCESS
    # The group's number is known from here on.
    assert client.call(SEND_V2, half("orders", group="shop", unique_id="ID2"), b"x").code == ResponseCode.SUCCESS


def test_known_connection_that_ends_is_reported(server: RemotingServer) -> None:
    with Wire(server.addresses[0]) as client:
        client.write(RequestCode.HEART_BEAT, {}, heartbeat("c1"))
        request = next_event(server, RemotingRequest)
        server.answer(request, ResponseCode.SUCCESS)
    closed = next_event(server, ConnectionClosed)
    assert (closed.connection, closed.address) == (request.connection, request.address)


def test_connection_without_a_frame_is_not_reported(server: RemotingServer, client: Wire) -> None:
    client.socket.sendall(b"\xff" * 8)
    assert client.closed()
    refused = next_event(server, ConnectionRefused)
    assert "16777216" in refused.reason.replace(",", "")


def test_unsigned_request_is_refused(server: RemotingServer, client: Wire) -> None:
    server.set_secrets(Secrets(None, [], None))
    assert client.call(SEND_V2, sending("orders"), b"x").code == ResponseCode.NO_PERMISSION
    denied = next_event(server, RequestDenied)
    assert denied.request == str(int(RequestCode.SEND_MESSAGE_V2))
    assert "not signed" in denied.reason


def test_response_of_a_client_is_passed_on(server: RemotingServer, client: Wire) -> None:
    client.write(RequestCode.HEART_BEAT, {}, heartbeat("c1"))
    request = next_event(server, RemotingRequest)
    opaque = server.ask(request.connection, RequestCode.GET_CONSUMER_RUNNING_INFO, {"clientId": "c1"})
    asked = client.pushed(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.opaque == opaque
    client.socket.sendall(frame(json_header(ResponseCode.SYSTEM_ERROR, {}, asked.opaque, flag=1), b"body"))
    answer = next_event(server, ClientAnswer)
    assert (answer.connection, answer.opaque) == (request.connection, opaque)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"body")
