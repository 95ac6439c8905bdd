"""Guards producers of RocketMQ's gRPC protocol: routes, settings, messages of all types, transactions and their checks.

Requests as RocketMQ's Python client encodes them, with any content; what is stored is read from the store.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.grpc_wire import GrpcClient, GrpcWire, TelemetryStream, code, codes, message
from tests.programs import ProgramError
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig, errors
from txstore.broker.operations import Operations

UNIMPLEMENTED, INTERNAL = 12, 13
GRPC = ServerConfig(listen=None, name_server=None, grpc="127.0.0.1:0")


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    """A store whose transactions are checked soon and often, and not discarded before a test ends."""
    return open_store(transaction_timeout=0.05, transaction_check_interval=0.1, transaction_check_max=10_000)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, GRPC) as server:
        yield server


@pytest.fixture
def client(grpc_wire: GrpcWire, server: Server) -> GrpcClient:
    return connect(grpc_wire, server)


def connect(grpc_wire: GrpcWire, server: Server, client_id: str | None = None, **options: Any) -> GrpcClient:
    assert server.grpc is not None
    return grpc_wire.client(server.grpc, client_id, **options)


def stored(broker: EmbeddedBroker, topic: str) -> list[Any]:
    """All visible messages of a topic, queue by queue."""
    found: list[Any] = []
    for _, queue_id, first, end in broker.queues(topic):
        if end > first:
            found += broker.read(topic, queue_id, first, 100)[0]
    return found


def listening(client: GrpcClient, *topics: str) -> TelemetryStream:
    """A stream of a producer that has announced its topics."""
    stream = client.telemetry()
    assert code(stream.publish(*topics)) == "OK"
    return stream


# Routes and settings


def test_route_names_queues_at_the_address_that_the_client_used(client: GrpcClient) -> None:
    endpoints = {"scheme": "IPv4", "addresses": [{"host": "10.1.2.3", "port": 8081}]}
    topic = {"resource_namespace": "shop", "name": "orders"}
    answer = client.call("QueryRoute", {"topic": topic, "endpoints": endpoints})
    assert code(answer) == "OK"
    queues = answer["message_queues"]
    assert [queue.get("id", 0) for queue in queues] == list(range(len(queues)))
    for queue in queues:
        assert queue["topic"] == topic
        assert queue["permission"] == "READ_WRITE"
        assert queue["broker"]["endpoints"] == endpoints
        assert queue["accept_message_types"] == ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("a b", "ILLEGAL_TOPIC"), ("", "ILLEGAL_TOPIC"), ("RMQ_SYS_TRANS_HALF_TOPIC", "ILLEGAL_TOPIC")],
)
def test_route_of_a_topic_that_cannot_be(client: GrpcClient, topic: str, expected: str) -> None:
    assert code(client.call("QueryRoute", {"topic": {"name": topic}})) == expected


def test_unknown_topic_is_not_found_unless_clients_may_create_it(grpc_wire: GrpcWire, open_store: OpenStore) -> None:
    with Server(open_store(auto_create_topic_enable=False), GRPC) as server:
        client = connect(grpc_wire, server)
        assert code(client.call("QueryRoute", {"topic": {"name": "orders"}})) == "TOPIC_NOT_FOUND"
        assert code(client.send(message("orders"))) == "TOPIC_NOT_FOUND"


def test_producer_gets_settings(client: GrpcClient) -> None:
    answer = client.telemetry().publish("orders")
    assert code(answer) == "OK"
    settings = answer["settings"]
    assert settings["publishing"]["topics"] == [{"name": "orders"}]
    assert settings["publishing"]["max_body_size"] > 0
    assert settings["publishing"]["validate_message_type"] is True
    assert settings["backoff_policy"]["max_attempts"] == 3
    assert settings["backoff_policy"]["exponential_backoff"]["multiplier"] == 2


def test_stream_begins_before_the_client_sends_anything(client: GrpcClient) -> None:
    assert client.telemetry().headers() is not None


def test_kind_of_client_that_is_not_served_ends_its_stream(client: GrpcClient) -> None:
    stream = client.telemetry()
    stream.send({"settings": {"client_type": "LITE_PUSH_CONSUMER", "subscription": {}}})
    ended = stream.read()
    assert ended["ended"] == "INVALID_ARGUMENT", ended
    assert "push consumers" in ended["details"]


def test_newer_stream_of_a_client_replaces_the_older(client: GrpcClient) -> None:
    older = listening(client, "orders")
    newer = listening(client, "orders")
    assert older.read()["ended"] == "OK"
    assert code(newer.publish("orders")) == "OK"


# Messages


def test_message_is_stored_as_it_was_sent(broker: EmbeddedBroker, client: GrpcClient) -> None:
    born = "2026-01-02T03:04:05.678Z"
    said = message("orders", b"body", {"a": "1"}, tag="paid", keys=["k1", "k2"], born_timestamp=born)
    answer = client.send(said)
    assert (code(answer), codes(answer)) == ("OK", ["OK"])
    assert answer["entries"][0]["message_id"] == said["system_properties"]["message_id"]
    (message_of,) = stored(broker, "orders")
    assert (message_of.body, message_of.tags, message_of.keys) == (b"body", "paid", ("k1", "k2"))
    assert message_of.properties["a"] == "1"
    assert message_of.message_id == said["system_properties"]["message_id"]
    assert message_of.born_timestamp == datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


def test_messages_of_a_message_group_go_to_one_queue_in_order(broker: EmbeddedBroker, client: GrpcClient) -> None:
    for number in range(12):
        answer = client.send(message("orders", b"%d" % number, message_type="FIFO", message_group="g"))
        assert code(answer) == "OK"
    assert [one.body for one in stored(broker, "orders")] == [b"%d" % number for number in range(12)]
    assert len({one.queue_id for one in stored(broker, "orders")}) == 1


def test_normal_messages_go_to_all_queues(broker: EmbeddedBroker, client: GrpcClient) -> None:
    for _ in range(8):
        client.send(message("orders"))
    counts = [end - first for _, _, first, end in broker.queues("orders")]
    assert counts == [8 // len(counts)] * len(counts)


def timestamp(seconds_from_now: float) -> str:
    at = time.time() + seconds_from_now
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"


def not_before(delivered: Any, due: str) -> bool:
    return f"{delivered.store_timestamp:%Y-%m-%dT%H:%M:%S.%f}" >= due[:-1]


def test_message_is_delivered_at_its_time(broker: EmbeddedBroker, client: GrpcClient) -> None:
    due = timestamp(1.3)
    assert code(client.send(message("orders", b"late", message_type="DELAY", delivery_timestamp=due))) == "OK"
    assert code(client.send(message("orders", b"past", message_type="DELAY", delivery_timestamp=timestamp(-9)))) == "OK"
    eventually(lambda: {one.body for one in stored(broker, "orders")} == {b"late", b"past"})
    (late,) = (one for one in stored(broker, "orders") if one.body == b"late")
    assert not_before(late, due)


def test_time_too_far_ahead_is_refused(client: GrpcClient) -> None:
    answer = client.send(message("orders", message_type="DELAY", delivery_timestamp=timestamp(4 * 86_400)))
    assert (code(answer), codes(answer)) == ("ILLEGAL_DELIVERY_TIME", ["ILLEGAL_DELIVERY_TIME"])
    said = answer["status"]["message"]
    assert "timer_max_delay_sec allows 259200 s" in said
    assert "hint: " in said


def test_recalled_message_is_never_delivered(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.create_topic("orders")
    answers = [
        client.send(message("orders", body, message_type="DELAY", delivery_timestamp=timestamp(6)))
        for body in (b"recalled", b"kept")
    ]
    recalled, kept = (entry for answer in answers for entry in answer["entries"])
    assert kept["recall_handle"] != recalled["recall_handle"]
    recall = {"topic": {"name": "orders"}, "recall_handle": recalled["recall_handle"]}
    answer = client.call("RecallMessage", recall)
    assert (code(answer), answer["message_id"]) == ("OK", recalled["message_id"])
    again = client.call("RecallMessage", recall)
    assert (code(again), "does not wait" in again["status"]["message"]) == ("BAD_REQUEST", True)
    for handle in ("", "x", kept["recall_handle"][:-8]):
        assert code(client.call("RecallMessage", recall | {"recall_handle": handle})) == "BAD_REQUEST"
    other = {"topic": {"name": "others"}, "recall_handle": kept["recall_handle"]}
    assert code(client.call("RecallMessage", other)) in ("BAD_REQUEST", "TOPIC_NOT_FOUND")
    eventually(lambda: [one.body for one in stored(broker, "orders")] == [b"kept"])
    late = client.call("RecallMessage", recall | {"recall_handle": kept["recall_handle"]})
    assert code(late) == "BAD_REQUEST", "it was delivered"


def test_message_without_a_time_has_no_recall_handle(client: GrpcClient) -> None:
    (entry,) = client.send(message("orders"))["entries"]
    assert not entry.get("recall_handle")


def test_transaction_with_a_time_is_delivered_at_it(broker: EmbeddedBroker, client: GrpcClient) -> None:
    broker.create_topic("orders")
    due = timestamp(1.2)
    sent = client.send(message("orders", b"t", message_type="TRANSACTION", delivery_timestamp=due))
    (entry,) = sent["entries"]
    end = {"topic": {"name": "orders"}, "message_id": entry["message_id"], "transaction_id": entry["transaction_id"]}
    assert code(client.call("EndTransaction", end | {"resolution": "COMMIT", "source": "SOURCE_CLIENT"})) == "OK"
    eventually(lambda: [one.body for one in stored(broker, "orders")] == [b"t"])
    assert not_before(stored(broker, "orders")[0], due)


@pytest.mark.parametrize(
    ("system", "properties", "expected"),
    [
        ({"message_id": ""}, {}, "ILLEGAL_MESSAGE_ID"),
        ({"message_id": "01\x02TAGS\x01forged"}, {}, "ILLEGAL_MESSAGE_ID"),
        ({"message_id": "0" * 256}, {}, "ILLEGAL_MESSAGE_ID"),
        ({"tag": "a|b"}, {}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": " "}, {}, "ILLEGAL_MESSAGE_TAG"),
        ({"keys": ["a\x01"]}, {}, "ILLEGAL_MESSAGE_KEY"),
        ({"message_group": "g" * 64, "message_type": "FIFO"}, {}, "ILLEGAL_MESSAGE_GROUP"),
        ({}, {"TAGS": "x"}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ({}, {f"p{number}": "" for number in range(129)}, "MESSAGE_PROPERTIES_TOO_LARGE"),
        ({}, {"p": "x" * (16 << 10)}, "MESSAGE_PROPERTIES_TOO_LARGE"),
        ({"priority": 1}, {}, "UNSUPPORTED"),
        ({"body_encoding": "GZIP"}, {}, "MESSAGE_CORRUPTED"),
        (
            {"message_type": "TRANSACTION", "orphaned_transaction_recovery_duration": "3601s"},
            {},
            "BAD_REQUEST",
        ),
    ],
)
def test_bad_message_is_refused_by_a_code_of_its_own(
    broker: EmbeddedBroker, client: GrpcClient, system: dict[str, Any], properties: dict[str, str], expected: str
) -> None:
    answer = client.send(message("orders", b"x", properties, **system))
    assert (code(answer), codes(answer)) == (expected, [expected]), answer
    assert stored(broker, "orders") == []


def test_empty_and_too_long_bodies(client: GrpcClient, broker: EmbeddedBroker) -> None:
    assert code(client.send(message("orders", b""))) == "MESSAGE_BODY_EMPTY"
    assert code(client.send(message("orders", b"x" * (broker.config.max_message_size + 1)))) == "MESSAGE_BODY_TOO_LARGE"


def test_requests_without_messages_and_with_two_topics(client: GrpcClient) -> None:
    assert code(client.send()) == "BAD_REQUEST"
    assert code(client.send(message("orders"), message("payments"))) == "MESSAGE_CORRUPTED"


def test_messages_with_different_results_have_a_code_each(broker: EmbeddedBroker, client: GrpcClient) -> None:
    answer = client.send(message("orders"), message("orders", tag="|"))
    assert (code(answer), codes(answer)) == ("MULTIPLE_RESULTS", ["OK", "ILLEGAL_MESSAGE_TAG"])
    assert len(stored(broker, "orders")) == 1


# Transactions


@pytest.mark.parametrize(("resolution", "visible"), [("COMMIT", [b"tx"]), ("ROLLBACK", [])])
def test_transaction_ends_as_the_producer_says(
    broker: EmbeddedBroker, client: GrpcClient, resolution: str, visible: list[bytes]
) -> None:
    entry = client.send_half("orders", b"tx")
    assert stored(broker, "orders") == []
    assert code(client.end("orders", entry, resolution)) == "OK"
    assert [one.body for one in stored(broker, "orders")] == visible
    assert code(client.end("orders", entry, resolution)) == "OK", "a repeated end succeeds"
    other = {"COMMIT": "ROLLBACK", "ROLLBACK": "COMMIT"}[resolution]
    assert code(client.end("orders", entry, other)) == "INVALID_TRANSACTION_ID"
    assert [one.body for one in stored(broker, "orders")] == visible


def test_transaction_ends_also_after_the_server_has_restarted(
    grpc_wire: GrpcWire, open_store: OpenStore, broker: EmbeddedBroker
) -> None:
    with Server(broker, GRPC) as server:
        entry = connect(grpc_wire, server).send_half("orders", b"tx")
    broker.close()
    again = open_store(transaction_check_interval=3600)
    with Server(again, GRPC) as server:
        assert code(connect(grpc_wire, server).end("orders", entry, "COMMIT")) == "OK"
    assert [one.body for one in stored(again, "orders")] == [b"tx"]


@pytest.mark.parametrize(
    "changes",
    [
        {"transaction_id": ""},
        {"transaction_id": "0" * 32},
        {"transaction_id": "f" * 32},
        {"transaction_id": "no id"},
        {"topic": {"name": "payments"}},
        {"message_id": "01" + "0" * 32},
    ],
)
def test_forged_end_changes_nothing(broker: EmbeddedBroker, client: GrpcClient, changes: dict[str, Any]) -> None:
    client.send_half("orders", b"other")
    entry = client.send_half("orders", b"tx")
    assert code(client.end("orders", entry, "COMMIT", changes=changes)) == "INVALID_TRANSACTION_ID"
    assert stored(broker, "orders") == []
    assert stored(broker, "payments") == []


def test_check_comes_down_the_stream_of_the_sender(grpc_wire: GrpcWire, open_store: OpenStore) -> None:
    # The check after one that is not answered in time goes to the other producer.
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=3600)
    with Server(broker, GRPC) as server:
        is_checked_at_the_sender(grpc_wire, broker, server)


def is_checked_at_the_sender(grpc_wire: GrpcWire, broker: EmbeddedBroker, server: Server) -> None:
    sender, other = connect(grpc_wire, server), connect(grpc_wire, server)
    streams = {one.id: listening(one, "orders") for one in (other, sender)}
    half = message("orders", b"tx", {"a": "1"}, message_type="TRANSACTION", tag="t")
    (entry,) = sender.send(half)["entries"]
    asked = streams[sender.id].read()["recover_orphaned_transaction_command"]
    assert asked["transaction_id"] == entry["transaction_id"]
    told = asked["message"]
    assert told["topic"] == {"name": "orders"}
    assert (told["body"], told["user_properties"]) == (half["body"], {"a": "1"})
    system = told["system_properties"]
    assert (system["message_id"], system["tag"]) == (entry["message_id"], "t")
    assert (system["message_type"], system["body_digest"]["type"]) == ("TRANSACTION", "MD5")
    assert streams[other.id].read_if_any(0) is None
    # Several clients send 0 for "unknown".
    assert code(sender.end("orders", entry, "TRANSACTION_RESOLUTION_UNSPECIFIED", "SOURCE_SERVER_CHECK")) == "OK"
    eventually(lambda: broker._parts.pool.is_idle)  # It would ask nobody while a check is sent.
    assert Operations(broker).ask(entry["message_id"])
    assert (
        streams[sender.id].read()["recover_orphaned_transaction_command"]["transaction_id"] == entry["transaction_id"]
    )
    assert code(sender.end("orders", entry, "COMMIT", "SOURCE_SERVER_CHECK")) == "OK"
    assert [one.body for one in stored(broker, "orders")] == [b"tx"]


def test_check_goes_to_another_producer_of_the_topic_if_the_sender_has_gone(
    grpc_wire: GrpcWire, broker: EmbeddedBroker, server: Server
) -> None:
    sender, other = connect(grpc_wire, server), connect(grpc_wire, server)
    stream = listening(other, "orders")
    entry = sender.send_half("orders")
    assert code(sender.call("NotifyClientTermination", {})) == "OK"
    asked = stream.read()["recover_orphaned_transaction_command"]
    assert asked["transaction_id"] == entry["transaction_id"]
    assert code(other.end("orders", entry, "ROLLBACK", "SOURCE_SERVER_CHECK")) == "OK"
    assert broker.transaction(entry["message_id"]).state != "pending"


def test_producer_without_a_stream_is_checked_when_it_opens_one(client: GrpcClient) -> None:
    entry = client.send_half("orders")
    stream = client.telemetry()
    asked = stream.read()["recover_orphaned_transaction_command"]
    assert asked["transaction_id"] == entry["transaction_id"]


# Requests that are wrong as a whole


def test_request_without_a_client_id(grpc_wire: GrpcWire, server: Server) -> None:
    client = connect(grpc_wire, server, "")
    assert code(client.call("QueryRoute", {"topic": {"name": "orders"}})) == "CLIENT_ID_REQUIRED"
    ended = client.telemetry().read()
    assert ended["ended"] == "INVALID_ARGUMENT"
    assert "x-mq-client-id" in ended["details"]


def test_unknown_method_and_malformed_bytes(client: GrpcClient) -> None:
    prefix = "/apache.rocketmq.v2.MessagingService/"
    with pytest.raises(ProgramError) as unknown:
        client.send_bytes(prefix + "Nothing", b"")
    assert unknown.value.code == UNIMPLEMENTED
    with pytest.raises(ProgramError) as malformed:
        client.send_bytes(prefix + "SendMessage", b"\xff\xff\xff")
    assert malformed.value.code == INTERNAL
    assert code(client.send(message("orders"))) == "OK", "the connection continues"


@pytest.mark.parametrize("rpc", ["SyncLiteSubscription", "UpdateOffset", "GetOffset", "QueryOffset"])
def test_requests_that_are_not_served_say_so(client: GrpcClient, rpc: str) -> None:
    assert code(client.call(rpc, {})) == "NOT_IMPLEMENTED"


def test_client_that_leaves_is_forgotten(grpc_wire: GrpcWire, server: Server) -> None:
    client = connect(grpc_wire, server)
    listening(client, "orders")
    assert server.counters()["grpc_clients"] == 1
    assert code(client.call("NotifyClientTermination", {})) == "OK"
    eventually(lambda: server.counters()["grpc_clients"] == 0)


def test_server_stops_with_open_streams(grpc_wire: GrpcWire, broker: EmbeddedBroker) -> None:
    with Server(broker, GRPC) as server:
        stream = listening(connect(grpc_wire, server), "orders")
    assert "ended" in stream.read()


# Message types of topics


TYPES: dict[str, dict[str, Any]] = {
    "NORMAL": {},
    "FIFO": {"message_group": "g"},
    "DELAY": {"delivery_timestamp": "2026-01-01T00:00:00Z"},
    "TRANSACTION": {},
}


def test_topic_with_a_declared_type_accepts_this_type_only(broker: EmbeddedBroker, client: GrpcClient) -> None:
    for declared in TYPES:
        broker.create_topic(declared.lower(), message_type=declared)
        (first, *_) = client.call("QueryRoute", {"topic": {"name": declared.lower()}})["message_queues"]
        assert first["accept_message_types"] == [declared]
        for sent, system in TYPES.items():
            answer = client.send(message(declared.lower(), message_type=sent, **system))
            assert code(answer) == ("OK" if sent == declared else "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"), answer
            if sent != declared:
                assert f"accepts {declared.lower()} messages" in answer["status"]["message"]


def test_declared_type_changes_at_once_and_survives_a_restart(
    grpc_wire: GrpcWire, broker: EmbeddedBroker, open_store: OpenStore
) -> None:
    broker.create_topic("orders", 4, message_type="FIFO")
    with Server(broker, GRPC) as server:
        client = connect(grpc_wire, server)
        assert code(client.send(message("orders"))) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
        broker.create_topic("orders", message_type="MIXED")
        assert code(client.send(message("orders"))) == "OK"
        broker.create_topic("orders", message_type="DELAY")
    broker.close()
    again = open_store()
    assert again.describe_topic("orders").message_type == "DELAY"
    assert len(again.describe_topic("orders").write_queues) == 4
    with pytest.raises(errors.InvalidOptionError, match="NORMAL, FIFO, DELAY, TRANSACTION, MIXED"):
        again.create_topic("orders", message_type="fifo")


def test_option_accepts_any_type(grpc_wire: GrpcWire, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", message_type="FIFO")
    with Server(broker, dataclasses.replace(GRPC, enable_topic_message_type_check=False)) as server:
        client = connect(grpc_wire, server)
        (first, *_) = client.call("QueryRoute", {"topic": {"name": "orders"}})["message_queues"]
        assert first["accept_message_types"] == ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]
        assert code(client.send(message("orders"))) == "OK"
