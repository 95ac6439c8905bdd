"""Guards consumers of RocketMQ's gRPC protocol: what is received, acknowledged, delivered again, and buried.

Requests as RocketMQ's Python client encodes them, with any content.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.grpc_wire import GrpcClient, GrpcWire, code, codes
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig

GROUP, TOPIC = "shipping", "orders"
GRPC = ServerConfig(listen=None, name_server=None, grpc="127.0.0.1:0")
Facts = dict[str, Any]


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    broker = open_store()
    broker.create_topic(TOPIC, 2)
    return broker


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, GRPC) as server:
        yield server


@pytest.fixture
def client(grpc_wire: GrpcWire, server: Server) -> GrpcClient:
    return connect(grpc_wire, server)


def connect(grpc_wire: GrpcWire, server: Server) -> GrpcClient:
    assert server.grpc is not None
    return grpc_wire.client(server.grpc)


def named(group: str = GROUP, topic: str = TOPIC) -> Facts:
    return {"group": {"name": group}, "topic": {"name": topic}}


def receive(client: GrpcClient, wait: float = 0.0, **changes: Any) -> tuple[str, list[Facts]]:
    """The code, and the messages."""
    request: Facts = {
        "group": {"name": GROUP},
        "message_queue": {"topic": {"name": TOPIC}, "id": 0},
        "filter_expression": {"type": "TAG", "expression": "*"},
        "batch_size": 32,
        "invisible_duration": "10s",
        "long_polling_timeout": f"{wait}s",
    }
    frames = client.call("ReceiveMessage", request | changes)
    messages = [frame["message"] for frame in frames if "message" in frame]
    assert ("delivery_timestamp" in frames[-1]) == bool(messages)
    return code(frames[0]), messages


def received(client: GrpcClient, wait: float = 20.0, **changes: Any) -> list[Facts]:
    answered, messages = receive(client, wait, **changes)
    assert answered == "OK"
    return messages


def bodies(messages: list[Facts]) -> list[bytes]:
    return sorted(base64.b64decode(one["body"]) for one in messages)


def handle_of(message: Facts) -> str:
    return str(message["system_properties"]["receipt_handle"])


def attempt_of(message: Facts) -> int:
    return int(message["system_properties"]["delivery_attempt"])


def acknowledge(client: GrpcClient, *messages: Facts, **changes: Any) -> Facts:
    entries = [
        {"message_id": one["system_properties"]["message_id"], "receipt_handle": handle_of(one)} for one in messages
    ]
    answer: Facts = client.call("AckMessage", named() | {"entries": entries} | changes)
    return answer


def change(client: GrpcClient, message: Facts, seconds: float = 0.0) -> Facts:
    request = named() | {"receipt_handle": handle_of(message), "invisible_duration": f"{seconds}s"}
    answer: Facts = client.call("ChangeInvisibleDuration", request)
    return answer


def lag(broker: EmbeddedBroker) -> int:
    return sum(queue.lag for queue in broker.lag(GROUP))


def test_messages_of_all_queues_are_received_and_acknowledged(broker: EmbeddedBroker, client: GrpcClient) -> None:
    for queue_id, body in ((0, b"a"), (1, b"b"), (1, b"c")):
        broker.append(Message(TOPIC, body, tags="t", keys=["k1", "k2"], properties={"own": "1"}), queue_id)
    messages = received(client)
    assert bodies(messages) == [b"a", b"b", b"c"]
    system = messages[0]["system_properties"]
    assert (system["tag"], system["keys"], attempt_of(messages[0])) == ("t", ["k1", "k2"], 1)
    assert messages[0]["user_properties"] == {"own": "1"}
    assert system["body_digest"]["type"] == "MD5"
    assert receive(client) == ("MESSAGE_NOT_FOUND", [])
    assert lag(broker) == 3
    answer = acknowledge(client, *messages)
    assert (code(answer), codes(answer)) == ("OK", ["OK"] * 3)
    assert lag(broker) == 0


def test_receipt_handle_is_for_one_delivery(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    (first,) = received(client)
    changed = change(client, first)
    assert code(changed) == "OK"
    (second,) = received(client)
    assert attempt_of(second) == 2
    for stale in (first, first | {"system_properties": first["system_properties"] | {"receipt_handle": "x"}}):
        answer = acknowledge(client, stale)
        assert (code(answer), codes(answer)) == ("INVALID_RECEIPT_HANDLE", ["INVALID_RECEIPT_HANDLE"])
        again = change(client, stale)
        assert (code(again), again["receipt_handle"]) == ("INVALID_RECEIPT_HANDLE", handle_of(stale))
    for _ in range(2):  # A client that has lost the answer repeats its request.
        assert code(acknowledge(client, second)) == "OK"
    assert lag(broker) == 0


def test_handle_is_valid_for_its_group_and_topic_only(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    (message,) = received(client)
    for wrong in (named("billing"), named(topic="payments")):
        assert code(acknowledge(client, message, **wrong)) == "INVALID_RECEIPT_HANDLE"
    assert code(acknowledge(client, message)) == "OK"


def test_message_that_is_never_acknowledged_becomes_a_dead_letter(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.create_group(GROUP, retry_max_times=3)
    sent = broker.append(Message(TOPIC, b"poison", keys=["k"]), 0)
    attempts = []
    for _ in range(4):
        (message,) = received(client)
        attempts.append(attempt_of(message))
        assert message["topic"]["name"] == TOPIC
        assert message["system_properties"]["message_id"] == sent.message_id
        assert code(change(client, message)) == "OK"
    assert attempts == [1, 2, 3, 4]
    assert receive(client, 0.2) == ("MESSAGE_NOT_FOUND", [])
    (letter,) = broker.dead_letters(GROUP)
    assert (letter.body, letter.topic, letter.message_id) == (b"poison", TOPIC, sent.message_id)
    assert lag(broker) == 0
    broker.resend(letter)
    (message,) = received(client)
    assert (bodies([message]), attempt_of(message)) == ([b"poison"], 1)
    assert code(acknowledge(client, message)) == "OK"


def test_client_may_bury_a_message(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    (message,) = received(client)
    request = named() | {"receipt_handle": handle_of(message), "delivery_attempt": 1, "max_delivery_attempts": 1}
    assert code(client.call("ForwardMessageToDeadLetterQueue", request)) == "OK"
    assert code(client.call("ForwardMessageToDeadLetterQueue", request)) == "INVALID_RECEIPT_HANDLE"
    assert [letter.body for letter in broker.dead_letters(GROUP)] == [b"a"]
    assert (receive(client), lag(broker)) == (("MESSAGE_NOT_FOUND", []), 0)


def test_receive_waits_for_a_message(broker: EmbeddedBroker, server: Server, grpc_wire: GrpcWire) -> None:
    clients = [connect(grpc_wire, server) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(received, client, batch_size=1) for client in clients]
        eventually(lambda: server.native.grpc_members(GROUP) == 4)
        for number in range(4):
            assert sum(one.done() for one in waiting) <= number
            broker.append(Message(TOPIC, b"%d" % number), number % 2)
        found = [one.result() for one in waiting]
    assert sorted(body for messages in found for body in bodies(messages)) == [b"0", b"1", b"2", b"3"]


def test_receive_waits_until_a_message_comes_back(broker: EmbeddedBroker, server: Server, grpc_wire: GrpcWire) -> None:
    holder, other = connect(grpc_wire, server), connect(grpc_wire, server)
    broker.append(Message(TOPIC, b"a"), 0)
    (message,) = received(holder)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(received, other)
        eventually(lambda: server.native.grpc_members(GROUP) == 2)
        assert code(change(holder, message)) == "OK"
        assert attempt_of(waiting.result()[0]) == 2


def test_messages_of_a_client_that_leaves_come_again_soon(
    broker: EmbeddedBroker, server: Server, grpc_wire: GrpcWire
) -> None:
    leaving, other = connect(grpc_wire, server), connect(grpc_wire, server)
    broker.append(Message(TOPIC, b"a"), 0)
    received(leaving, invisible_duration=None, auto_renew=True)
    assert receive(other) == ("MESSAGE_NOT_FOUND", [])
    assert code(leaving.call("NotifyClientTermination", {"group": {"name": GROUP}})) == "OK"
    assert attempt_of(received(other)[0]) == 2


def test_only_wanted_tags_are_received_and_the_rest_counts_as_acknowledged(
    broker: EmbeddedBroker, client: GrpcClient
) -> None:
    for tag in ("a", "b", "c"):
        broker.append(Message(TOPIC, tag.encode(), tags=tag), 0)
    messages = received(client, filter_expression={"type": "TAG", "expression": "a || c"})
    assert bodies(messages) == [b"a", b"c"]
    assert code(acknowledge(client, *messages)) == "OK"
    assert lag(broker) == 0


def test_fifo_group_receives_a_queue_in_order(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.create_group(GROUP, consume_message_orderly=True)
    for body in (b"a", b"b", b"c"):
        broker.append(Message(TOPIC, body), 0)
    (first,) = received(client, batch_size=1, attempt_id="1")
    assert receive(client, batch_size=1, attempt_id="2") == ("MESSAGE_NOT_FOUND", [])
    (again,) = received(client, batch_size=1, attempt_id="1")  # The client has lost the answer.
    assert (bodies([again]), attempt_of(again)) == ([b"a"], 1)
    assert code(acknowledge(client, first)) == "INVALID_RECEIPT_HANDLE"
    assert code(acknowledge(client, again)) == "OK"
    assert bodies(received(client, batch_size=1)) == [b"b"]
    queues = client.call("QueryAssignment", named())["assignments"]
    assert [one["message_queue"].get("id", 0) for one in queues] == [0, 1]


def test_settings_of_a_consumer_are_those_of_its_group(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.create_group(GROUP, consume_message_orderly=True, retry_max_times=2)
    stream = client.telemetry()
    stream.send({"settings": {"client_type": "PUSH_CONSUMER", "subscription": {"group": {"name": GROUP}}}})
    settings = stream.read()["settings"]
    assert (settings["subscription"]["fifo"], settings["backoff_policy"]["max_attempts"]) == (True, 3)


def test_all_members_are_assigned_all_queues(client: GrpcClient) -> None:
    endpoints = {"scheme": "IPv4", "addresses": [{"host": "10.1.2.3", "port": 8081}]}
    answer = client.call("QueryAssignment", named() | {"endpoints": endpoints})
    (assignment,) = answer["assignments"]
    queue = assignment["message_queue"]
    assert (queue["id"], queue["topic"], queue["permission"]) == (-1, {"name": TOPIC}, "READ_WRITE")
    assert queue["broker"]["endpoints"] == endpoints


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": {"name": "a b"}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": {"name": ""}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": {"name": "CID_RMQ_SYS_TRANS"}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"message_queue": {"topic": {"name": "a b"}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": {"topic": {"name": "unknown"}}}, "TOPIC_NOT_FOUND"),
        ({"batch_size": 0}, "BAD_REQUEST"),
        ({"batch_size": -1}, "BAD_REQUEST"),
        ({"invisible_duration": "9s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_duration": "50000s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"filter_expression": {"type": "SQL", "expression": "a >"}}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"filter_expression": {"type": "TAG", "expression": "||"}}, "ILLEGAL_FILTER_EXPRESSION"),
    ],
)
def test_wrong_receive_is_refused(client: GrpcClient, changes: Facts, expected: str) -> None:
    assert receive(client, **changes) == (expected, [])


def test_unacknowledged_messages_come_again_after_a_restart(tmp_path: Path, grpc_wire: GrpcWire) -> None:
    with txstore.open(tmp_path / "store") as broker, Server(broker, GRPC) as server:
        broker.create_topic(TOPIC, 2)
        client = connect(grpc_wire, server)
        for body in (b"a", b"b", b"c"):
            broker.append(Message(TOPIC, body), 0)
        messages = {base64.b64decode(one["body"]): one for one in received(client)}
        assert codes(acknowledge(client, messages[b"a"], messages[b"c"])) == ["OK", "OK"]
    with txstore.open(tmp_path / "store") as broker, Server(broker, GRPC) as server:
        client = connect(grpc_wire, server)
        # What is acknowledged above the lowest unacknowledged message comes again. Each comes alone.
        assert [bodies(received(client)) for _ in range(2)] == [[b"b"], [b"c"]]
        assert code(acknowledge(client, messages[b"b"])) == "INVALID_RECEIPT_HANDLE"


def test_group_has_one_kind_of_consumers_at_a_time(
    broker: EmbeddedBroker, grpc_wire: GrpcWire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker.append(Message(TOPIC, b"a"), 0)
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0")
    with Server(broker, config) as server, txstore.connect(server.address or "") as classic:
        client = connect(grpc_wire, server)
        (message,) = received(client)
        with classic.consumer(GROUP, TOPIC) as consumer:
            eventually(lambda: not consumer.poll() and "consumers of the gRPC protocol" in caplog.text)
        assert code(acknowledge(client, message)) == "OK"
        assert code(client.call("NotifyClientTermination", {"group": {"name": GROUP}})) == "OK"
        broker.append(Message(TOPIC, b"b"), 0)
        with classic.consumer(GROUP, TOPIC) as consumer:
            assert [one.body for one in consumer.poll(timeout=20)] == [b"b"]
            assert receive(client)[0] == "FORBIDDEN"
