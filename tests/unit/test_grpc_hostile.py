"""Guards a server from consumers of the gRPC protocol that ask for anything, vanish, or read what is being deleted.

Requests as RocketMQ's Python client encodes them, with any content, and bytes by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txstore
from tests.grpc_wire import GrpcClient, GrpcWire, code, message
from tests.pages import Browser
from tests.programs import ProgramError
from tests.unit.conftest import OpenStore, Run
from tests.unit.test_grpc_consumers import (
    GROUP,
    GRPC,
    TOPIC,
    Facts,
    acknowledge,
    attempt_of,
    bodies,
    change,
    connect,
    handle_of,
    named,
    receive,
    received,
)
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig
from txstore.errors import InUseError

SERVICE = "/apache.rocketmq.v2.MessagingService"
RESOURCE_EXHAUSTED = 8
LONG: Facts = {"invisible_duration": "3600s"}
PUSH: Facts = {"invisible_duration": None, "auto_renew": True}
UNICODE = "заказы"


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


def heartbeat(client: GrpcClient, group: str) -> str:
    return code(client.call("Heartbeat", {"group": {"name": group}, "client_type": "PUSH_CONSUMER"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch_size": -(1 << 31)}, "BAD_REQUEST"),
        ({"attempt_id": "a" * 257}, "BAD_REQUEST"),
        ({"filter_expression": {"type": "TAG", "expression": "||".join("a" * 257)}}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"invisible_duration": "-1s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_duration": "0s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_duration": "315576000000s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_duration": None}, "ILLEGAL_INVISIBLE_TIME"),
        ({"group": {"name": UNICODE}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": {"name": "g" * 256}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": None}, "ILLEGAL_CONSUMER_GROUP"),
        ({"message_queue": {"topic": {"name": UNICODE}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": {"topic": {"name": "t" * 256}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": {"topic": {"name": "../escape"}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": {"topic": {"name": "rmq_sys_wheel_timer"}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": None}, "ILLEGAL_TOPIC"),
        ({"long_polling_timeout": "-9s"}, "MESSAGE_NOT_FOUND"),
    ],
)
def test_extreme_receive_is_refused(client: GrpcClient, changes: Facts, expected: str) -> None:
    assert receive(client, **changes) == (expected, [])


def test_largest_batch_is_limited(broker: EmbeddedBroker, client: GrpcClient) -> None:
    for number in range(40):
        broker.append(Message(TOPIC, b"%d" % number), number % 2)
    # Whatever queue it names: messages come from all of them.
    queue = {"topic": {"name": TOPIC}, "id": 1 << 30}
    assert len(received(client, batch_size=(1 << 31) - 1, message_queue=queue)) == 32


@pytest.mark.parametrize("seconds", [-1, 43_201, 315_576_000_000])
def test_extreme_invisible_duration_is_refused_and_the_handle_stays(
    broker: EmbeddedBroker, client: GrpcClient, seconds: int
) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    (one,) = received(client, **LONG)
    refused = change(client, one, seconds)
    assert (code(refused), refused["receipt_handle"]) == ("ILLEGAL_INVISIBLE_TIME", handle_of(one))
    assert code(acknowledge(client, one)) == "OK"


@pytest.mark.parametrize("rpc", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"])
@pytest.mark.parametrize("handle", ["", UNICODE, "A" * 10_000])
def test_made_up_handle_is_refused(client: GrpcClient, rpc: str, handle: str) -> None:
    said: Facts = {"receipt_handle": handle}
    request: Facts = named(topic=UNICODE) | ({"entries": [said]} if rpc == "AckMessage" else said)
    if rpc == "ChangeInvisibleDuration":
        request["invisible_duration"] = "10s"
    assert code(client.call(rpc, request)) == "INVALID_RECEIPT_HANDLE"
    assert code(client.call(rpc, request | {"group": {"name": UNICODE}})) == "ILLEGAL_CONSUMER_GROUP"


@pytest.mark.parametrize(
    ("rpc", "part"),
    [("SendMessage", b"\x0a\x00"), ("AckMessage", b"\x1a\x00"), ("QueryAssignment", b"\x1a\x02\x12\x00")],
)
def test_request_of_very_many_empty_parts_is_refused_before_it_is_decoded(
    client: GrpcClient, rpc: str, part: bytes
) -> None:
    with pytest.raises(ProgramError, match="more than 4096 parts"):
        client.send_bytes(f"{SERVICE}/{rpc}", part * 5_000)
    assert code(client.send(message(TOPIC))) == "OK"


def test_client_is_in_a_limited_number_of_groups(server: Server, client: GrpcClient) -> None:
    for number in range(64):
        assert receive(client, group={"name": f"group-{number}"}) == ("MESSAGE_NOT_FOUND", [])
    assert receive(client, group={"name": "one-more"}) == ("TOO_MANY_REQUESTS", [])
    assert heartbeat(client, "group-0") == "OK"
    assert server.native.grpc_members("one-more") == 0
    assert receive(client, group={"name": "group-0"}) == ("MESSAGE_NOT_FOUND", [])


def test_heartbeat_makes_no_members_of_groups_that_are_not_there(server: Server, client: GrpcClient) -> None:
    for group in ("unknown", UNICODE, "", "g" * 10_000):
        assert heartbeat(client, group) == "OK"
        assert server.native.grpc_members(group) == 0


def test_heartbeat_does_not_stop_consumers_of_the_other_protocol(broker: EmbeddedBroker, grpc_wire: GrpcWire) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0")
    with Server(broker, config) as server, txstore.connect(server.address or "") as classic:
        client = connect(grpc_wire, server)
        with classic.consumer(GROUP, TOPIC) as consumer:
            assert [one.body for one in consumer.poll(timeout=20)] == [b"a"]
            assert receive(client)[0] == "FORBIDDEN"
            assert heartbeat(client, GROUP) == "OK"
            for body in (b"b", b"c"):  # The second one by a pull that began after the heartbeat.
                broker.append(Message(TOPIC, body), 0)
                assert [one.body for one in consumer.poll(timeout=20)] == [body]


def test_receive_of_a_client_that_leaves_meanwhile_keeps_nothing(
    broker: EmbeddedBroker, server: Server, grpc_wire: GrpcWire
) -> None:
    leaving, other = connect(grpc_wire, server), connect(grpc_wire, server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, leaving, 20.0, **PUSH)
        eventually(lambda: server.native.grpc_members(GROUP) == 1)
        assert code(leaving.call("NotifyClientTermination", {"group": {"name": GROUP}})) == "OK"
        broker.append(Message(TOPIC, b"a"), 0)
        assert waiting.result() == ("BAD_REQUEST", [])
    assert bodies(received(other)) == [b"a"]
    assert server.native.grpc_members(GROUP) == 1


def test_unread_answer_is_memory_of_its_connection_and_comes_again_when_it_breaks_off(
    broker: EmbeddedBroker, server: Server, grpc_wire: GrpcWire
) -> None:
    for number in range(16):
        broker.append(Message(TOPIC, bytes(60_000)), number % 2)
    slow, other = grpc_wire.client(server.grpc or "", reads_ahead=False), connect(grpc_wire, server)
    answer = slow.receive_unread(
        {
            "group": {"name": GROUP},
            "message_queue": {"topic": {"name": TOPIC}},
            "batch_size": 32,
            "auto_renew": True,
            "long_polling_timeout": "1s",
        }
    )
    eventually(lambda: server.counters()["memory_held"] > 16 * 60_000, 20)
    assert receive(other) == ("MESSAGE_NOT_FOUND", [])
    answer.cancel()
    # What HTTP/2 had taken may have arrived; the rest is visible at once.
    assert len(received(other)) >= 8
    eventually(lambda: server.counters()["memory_held"] < 16 * 60_000)


def test_topic_or_group_with_consumers_is_not_deleted(broker: EmbeddedBroker, grpc_wire: GrpcWire) -> None:
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0")
    with Server(broker, config) as server, txstore.connect(server.address or "") as remote:
        client = connect(grpc_wire, server)
        assert receive(client) == ("MESSAGE_NOT_FOUND", [])
        with pytest.raises(InUseError, match=f"read by {GROUP}"):
            remote.delete_topic(TOPIC)
        with pytest.raises(InUseError, match="connected consumers"):
            remote.delete_group(GROUP)
        assert code(client.call("NotifyClientTermination", {"group": {"name": GROUP}})) == "OK"
        remote.delete_topic(TOPIC)
        remote.delete_group(GROUP)
        assert receive(client)[0] == "TOPIC_NOT_FOUND"


def test_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(
    broker: EmbeddedBroker, server: Server, client: GrpcClient
) -> None:
    for number in range(4):
        broker.append(Message(TOPIC, b"old"), number % 2)
    old = received(client, **LONG)
    assert code(acknowledge(client, *old[:3])) == "OK"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, client, 20.0, **LONG)
        # It waits for messages when it has taken a look.
        eventually(lambda: server.counters()["commands_in"] >= 3)
        broker.delete_topic(TOPIC)
        broker.create_topic(TOPIC, 1)
        broker.append(Message(TOPIC, b"new"), 0)
        answered, new = waiting.result()
    if answered == "TOPIC_NOT_FOUND":  # It looked while there was no topic.
        new = received(client, **LONG)
    assert bodies(new) == [b"new"]
    acknowledge(client, old[3])  # It is refused, or repeated: what it names is no longer there.
    assert code(acknowledge(client, *new)) == "OK"
    assert [(row.queue_id, row.lag) for row in broker.lag(GROUP) if row.topic == TOPIC] == [(0, 0)]


def test_group_that_is_deleted_begins_again(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    (old,) = received(client, **LONG)
    broker.delete_group(GROUP)
    assert code(acknowledge(client, old)) == "INVALID_RECEIPT_HANDLE"
    (new,) = received(client, **LONG)
    assert (bodies([new]), attempt_of(new)) == ([b"a"], 1)
    assert code(acknowledge(client, new)) == "OK"


def test_group_is_described_with_what_its_consumers_have(broker: EmbeddedBroker, grpc_wire: GrpcWire) -> None:
    for body in (b"a", b"b", b"c", b"d"):
        broker.append(Message(TOPIC, body), 0)
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0")
    with Server(broker, config) as server, txstore.connect(server.address or "") as remote:
        client = connect(grpc_wire, server)
        first, second, third, _ = received(client, **LONG)
        assert code(acknowledge(client, second)) == "OK"
        assert code(change(client, third)) == "OK"
        found = remote.describe_group(GROUP)
        assert (found.members, found.protocol, found.lag) == (1, "grpc", 4)
        assert (found.in_flight, found.to_redeliver) == (2, 1)
        assert server.counters()["consumers"] == 1
        assert code(acknowledge(client, first)) == "OK"
        assert remote.describe_group(GROUP).lag == 2
        assert code(client.call("NotifyClientTermination", {"group": {"name": GROUP}})) == "OK"
        eventually(lambda: remote.describe_group(GROUP).to_redeliver == 2)
        found = remote.describe_group(GROUP)
        assert (found.members, found.protocol, found.in_flight) == (0, None, 0)


def test_command_line_and_console_show_consumers_of_grpc(broker: EmbeddedBroker, grpc_wire: GrpcWire, run: Run) -> None:
    broker.append(Message(TOPIC, b"a"), 0)
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0", console="127.0.0.1:0")
    with Server(broker, config) as server:
        client = connect(grpc_wire, server)
        assert len(received(client, **LONG)) == 1
        code, out, _ = run("group", "list", "--server", server.address or "")
        assert (code, "1 by grpc" in out) == (0, True)
        _, out, _ = run("group", "describe", "--server", server.address or "", GROUP, "--json")
        found = json.loads(out)
        assert (found["consumers"], found["protocol"], found["in_flight"], found["to_redeliver"]) == (1, "grpc", 1, 0)
        assert [queue["in_flight"] for queue in found["queues"] if queue["topic"] == TOPIC] == [1, 0]
        page = Browser(server.console or "").get(f"/group?group={GROUP}")
        assert all(text in page.text for text in (client.id, "PYTHON", "1, by gRPC", "In flight"))


def test_calls_that_are_not_served_have_a_code(client: GrpcClient) -> None:
    sync: dict[str, Any] = {"topic": {"name": TOPIC}, "group": {"name": GROUP}}
    assert code(client.call("SyncLiteSubscription", sync)) == "NOT_IMPLEMENTED"
