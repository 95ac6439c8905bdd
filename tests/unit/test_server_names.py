"""Guards names that clients choose: they are valid, bounded, and removed when their owner has gone.

Offsets, locks, subscriptions, groups and topics of clients that invent them, built by hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frames import Wire
from tests.remoting_requests import (
    BACK,
    HEARTBEAT,
    LOCK,
    MEMBERS,
    MEMBERS_CHANGED,
    PULL,
    SEND_V2,
    UNLOCK,
    UNREGISTER,
    UPDATE_OFFSET,
    heartbeat,
    properties,
    pulling,
    sending,
)
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig
from txstore._native import ResponseCode

ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)
NO_PERMISSION, NO_TOPIC, NO_GROUP, INVALID, WAITS_IN_VAIN = (
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


def connect(server: Server) -> Wire:
    assert server.address is not None
    return Wire(server.address)


def update(topic: str = "orders", group: str = "c", queue_id: int = 0, offset: int = 0) -> dict[str, Any]:
    return {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}


def locking(client_id: str = "c1", group: str = "c", topic: str = "orders", queues: int = 1) -> bytes:
    wanted = [{"topic": topic, "brokerName": "txstore", "queueId": number} for number in range(queues)]
    return json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": wanted}).encode()


def rows(broker: EmbeddedBroker) -> set[tuple[str, str]]:
    return {(topic, group) for topic, group, _, _ in broker.store.consumer_offsets()}


# Offsets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param(update(topic="no/such@topic\n"), NO_TOPIC, id="an invalid topic"),
        pytest.param(update(topic="nowhere"), NO_TOPIC, id="a missing topic"),
        pytest.param(update(topic="x" * 100_000), NO_TOPIC, id="a long topic"),
        pytest.param(update(queue_id=4), INVALID, id="a missing queue"),
        pytest.param(update(group="../../etc"), NO_GROUP, id="an invalid group"),
        pytest.param(update(group="nobody"), NO_GROUP, id="a group that never had a member"),
        pytest.param(update(group="c%" + "x" * 10_000), NO_GROUP, id="a long name of a group's offsets"),
        pytest.param(update(group="c%invented"), NO_GROUP, id="a broadcasting member that never joined"),
        pytest.param(update(group="c%\n"), NO_GROUP, id="an invalid name of offsets"),
        pytest.param(update(topic="%RETRY%c", group="c%"), INVALID, id="the base of a retry topic's offsets"),
        pytest.param(update(offset=2), INVALID, id="beyond the queue's end"),
    ],
)
def test_offset_needs_an_existing_queue_and_group(
    wire: Wire, broker: EmbeddedBroker, fields: dict[str, Any], code: int
) -> None:
    assert wire.call(SEND_V2, sending(), b"x").code == 0
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
    before = rows(broker)
    assert wire.call(UPDATE_OFFSET, fields).code == code
    assert rows(broker) == before
    assert wire.call(UPDATE_OFFSET, update(offset=1)).code == 0
    assert broker.consumer_offset("orders", "c", 0) == 1


def test_pull_stores_no_offset_for_a_group_without_members(wire: Wire, broker: EmbeddedBroker) -> None:
    assert wire.call(SEND_V2, sending(), b"x").code == 0
    committing = pulling(sysFlag=7, commitOffset=0, consumerGroup="nobody")
    assert wire.call(PULL, committing).code == 0
    assert rows(broker) == set()


def test_older_of_two_offsets_does_not_win_by_arriving_late(wire: Wire, server: Server, broker: EmbeddedBroker) -> None:
    """A consumer sends its offset in requests of its own and with its pulls: the one it sent last counts."""
    for _ in range(8):
        wire.call(SEND_V2, sending(), b"x")
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
    for offset in range(1, 8):
        wire.write(UPDATE_OFFSET, update(offset=offset - 1), one_way=True)
        committing = pulling(queue_offset=0, sysFlag=7, commitOffset=offset)
        assert wire.call(PULL, committing).code == 0
        assert broker.consumer_offset("orders", "c", 0) == offset
    eventually(lambda: server.native.counters()["requests_waiting"] == 0)
    assert broker.consumer_offset("orders", "c", 0) == 7


def test_waiting_offset_does_not_overwrite_the_offset_of_a_later_pull(
    wire: Wire, server: Server, broker: EmbeddedBroker
) -> None:
    """Python decides updates in retry topics. A waiting update must not replace a later one of its connection."""
    retries = "%RETRY%c"
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
    for _ in range(4):
        assert wire.call(SEND_V2, sending(retries), b"x").code == 0
    committing = pulling(retries, sysFlag=7, commitOffset=4)

    def noted() -> int:
        return broker.store.consumer_offset(retries, "c", 0) or 0

    with connect(server) as other:
        with server.clients._lock:
            other.write(HEARTBEAT, {}, heartbeat("c2", "c"))
            eventually(lambda: server.native.counters()["requests_waiting"] == 0)
            # Python's thread waits for the lock here, so this waits for Python.
            wire.write(UPDATE_OFFSET, update(retries, offset=2), one_way=True)
            assert wire.call(PULL, committing).code == 0
            before = noted()
        eventually(lambda: server.native.counters()["requests_waiting"] == 0)
        assert wire.call(UPDATE_OFFSET, update(retries, group="nobody")).code == NO_GROUP
        assert noted() >= before
    assert wire.call(PULL, committing).code == 0
    assert noted() == 4


def test_message_is_not_sent_back_to_a_missing_group(wire: Wire, broker: EmbeddedBroker) -> None:
    sent = wire.call(SEND_V2, sending(), b"x")
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    for group, code in (("nobody", NO_GROUP), ("no/group", INVALID)):
        assert wire.call(BACK, {"offset": physical_offset, "group": group, "delayLevel": 1}).code == code
    assert broker.topics() == ["orders"]


# Groups and topics ----------------------------------------------------------------------------------------------------


def test_clients_create_a_bounded_number_of_groups_and_topics(open_store: OpenStore) -> None:
    broker = open_store(transaction_check_interval=3600)
    config = ServerConfig("127.0.0.1:0", name_server=None, groups_max=2, topics_max=6)
    with Server(broker, config) as server, connect(server) as wire:
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "a", "b")).code == 0
        refused = wire.call(HEARTBEAT, {}, heartbeat("c1", "a", "b", "c"))
        assert (refused.code, "groups_max" in (refused.remark or "")) == (NO_PERMISSION, True)
        assert broker.groups() == ["a", "b"]
        assert wire.call(HEARTBEAT, {}, heartbeat("c2", "a", "b")).code == 0
        for number in range(4):
            assert wire.call(SEND_V2, sending(f"t{number}"), b"x").code == 0
        refused = wire.call(SEND_V2, sending("t4"), b"x")
        assert (refused.code, "topics_max" in (refused.remark or "")) == (NO_PERMISSION, True)
        assert wire.call(SEND_V2, sending("t0"), b"x").code == 0
        broker.create_topic("t4", 1)
        assert wire.call(SEND_V2, sending("t4"), b"x").code == 0, "the limit applies to clients only"


def test_only_an_operator_may_create_groups(open_store: OpenStore) -> None:
    broker = open_store(transaction_check_interval=3600)
    config = ServerConfig("127.0.0.1:0", name_server=None, auto_create_subscription_group=False)
    with Server(broker, config) as server, connect(server) as wire:
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "a")).code == NO_GROUP
        broker.create_group("a")
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "a")).code == 0


def test_connection_has_a_bounded_number_of_producer_groups(wire: Wire, server: Server) -> None:
    groups = tuple(f"g{number}" for number in range(1_000))
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", producers=groups)).code == 0
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", producers=("another",))).code == NO_PERMISSION
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", producers=groups)).code == 0
    assert server.counters()["producers"] == 1_000


def test_subscriptions_are_removed_with_their_group(wire: Wire) -> None:
    wire.call(SEND_V2, sending(), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    assert wire.call(PULL, pulling(sysFlag=0)).code == 0
    wire.call(UNREGISTER, {"clientID": "c1", "consumerGroup": "c"})
    assert wire.call(PULL, pulling(sysFlag=0)).code == WAITS_IN_VAIN


def test_heartbeat_subscribes_to_valid_topics_up_to_a_limit(wire: Wire, server: Server) -> None:
    assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c", topic="no/topic")).code == INVALID
    said = json.loads(heartbeat("c1", "c"))
    said["consumerDataSet"][0]["subscriptionDataSet"] = [{"topic": f"t{number}"} for number in range(10_001)]
    assert wire.call(HEARTBEAT, {}, json.dumps(said).encode()).code == INVALID
    assert server.counters()["consumers"] == 0


def test_another_connection_does_not_unregister_a_member(server: Server) -> None:
    with connect(server) as one, connect(server) as two:
        one.call(HEARTBEAT, {}, heartbeat("c1", "c"))
        two.call(UNREGISTER, {"clientID": "c1", "consumerGroup": "c"})
        assert server.counters()["consumers"] == 1
        one.call(UNREGISTER, {"clientID": "c1", "consumerGroup": "c"})
        assert server.counters()["consumers"] == 0


def test_another_client_with_the_same_id_takes_nothing_from_a_member(server: Server) -> None:
    """Both are notified of changes, and the member stays when the other one leaves."""
    with connect(server) as one, connect(server) as third:
        assert one.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
        with connect(server) as two:
            assert two.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
            assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}  # The notification of its own joining.
            assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}
            assert third.call(HEARTBEAT, {}, heartbeat("c2", "c")).code == 0
            assert one.pushed(MEMBERS_CHANGED).fields == {"consumerGroup": "c"}
        eventually(lambda: server.counters()["consumers"] == 2)
        ids = json.loads(third.call(MEMBERS, {"consumerGroup": "c"}).body)
        assert ids == {"consumerIdList": ["c1", "c2"]}


def test_producer_cannot_set_the_topic_of_a_retry(wire: Wire, broker: EmbeddedBroker) -> None:
    """Otherwise a consumer would take the message for one of a topic that the producer may not write."""
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    sent = wire.call(SEND_V2, sending(text=properties(RETRY_TOPIC="salaries")), b"x")
    back = {"offset": int(sent.fields["msgId"][-16:], 16), "group": "c", "delayLevel": -1}
    assert wire.call(BACK, back).code == 0
    assert [letter.topic for letter in broker.dead_letters("c")] == ["orders"]


@pytest.mark.parametrize("version", [10**30, 4_000_000_000_000, "soon"])
def test_subscription_version_from_the_future_does_not_last_for_ever(server: Server, version: Any) -> None:
    """The subscription of a member with a wrong clock does not replace its group's for ever."""
    with connect(server) as wire:
        wire.call(SEND_V2, sending(), b"x")
        said = json.loads(heartbeat("odd", "c"))
        said["consumerDataSet"][0]["subscriptionDataSet"][0] |= {"subString": "other", "subVersion": version}
        with connect(server) as odd:
            assert odd.call(HEARTBEAT, {}, json.dumps(said).encode()).code == 0
            assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c", version=7)).code == 0
        eventually(lambda: server.counters()["consumers"] == 1)
        assert wire.call(PULL, pulling(sysFlag=0, subVersion=7)).code == 0


def test_subscription_of_a_member_is_removed_with_it(server: Server) -> None:
    with connect(server) as wire:
        wire.call(SEND_V2, sending(), b"x")
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c", version=1)).code == 0
        said = json.loads(heartbeat("c2", "c", version=2))
        said["consumerDataSet"][0]["subscriptionDataSet"][0]["subString"] = "other"
        with connect(server) as newer:
            assert newer.call(HEARTBEAT, {}, json.dumps(said).encode()).code == 0
            assert wire.call(PULL, pulling(sysFlag=0, subVersion=1)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        eventually(lambda: server.counters()["consumers"] == 1)
        assert wire.call(PULL, pulling(sysFlag=0, subVersion=1)).code == 0


# Locks ----------------------------------------------------------------------------------------------------------------


def test_locks_need_existing_members_and_queues(wire: Wire, server: Server, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 4)
    assert wire.call(LOCK, {}, locking(group="x" * 100_000)).code == INVALID
    assert wire.call(LOCK, {}, locking(group="nobody")).code == NO_GROUP
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    for body in (locking(topic="nowhere"), locking(queues=0)):
        assert json.loads(wire.call(LOCK, {}, body).body) == {"lockOKMQSet": []}
    locked = json.loads(wire.call(LOCK, {}, locking(queues=100)).body)["lockOKMQSet"]
    assert [queue["queueId"] for queue in locked] == [0, 1, 2, 3]
    assert server.locks.held == 4


def test_group_is_orderly_while_it_holds_a_lock(wire: Wire, broker: EmbeddedBroker) -> None:
    """Messages that an orderly group sends back become dead letters; those of other groups are retried."""
    broker.create_topic("orders", 4)
    broker.create_topic("%RETRY%c", 1)
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    retry = sending("%RETRY%c", j=1, l=16)
    wire.call(LOCK, {}, locking(queues=0))
    assert wire.call(SEND_V2, retry, b"concurrent").code == 0
    wire.call(LOCK, {}, locking())
    assert wire.call(SEND_V2, retry, b"orderly").code == 0
    wire.call(UNLOCK, {}, locking())
    assert wire.call(SEND_V2, retry, b"concurrent").code == 0
    assert [message.body for message in broker.read("%RETRY%c", 0, 0)[0]] == [b"concurrent"] * 2
    assert [letter.body for letter in broker.dead_letters("c")] == [b"orderly"]


def test_locks_of_a_client_that_crashed_expire(wire: Wire, server: Server) -> None:
    """A lock lasts for a minute unless the client renews it. Then the queue is free and the group no longer orderly."""
    wire.call(SEND_V2, sending(), b"x")
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    assert len(json.loads(wire.call(LOCK, {}, locking("crashed")).body)["lockOKMQSet"]) == 1
    assert json.loads(wire.call(LOCK, {}, locking("c1")).body) == {"lockOKMQSet": []}
    server._locks.expire()
    assert server.locks.held == 1
    server._locks._monotonic = lambda: time.monotonic() + 61
    server._locks.expire()
    assert server.locks.held == 0
    server._locks._monotonic = time.monotonic
    assert len(json.loads(wire.call(LOCK, {}, locking("c1")).body)["lockOKMQSet"]) == 1
