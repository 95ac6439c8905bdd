"""Guards RocketMQ's Java clients against `txstore serve`: nothing is lost or doubled.

RocketMQ's rocketmq-client 5.4.0 and mqadmin run in a process of their own. Tests that wait for delays and rebalancing
are in the tier `peer`, and so are those of mqadmin. Go's client waits for a retry in the tier `test`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.peer import rocketmq as peer
from tests.remoting.members import queues_of_members
from tests.waiting import eventually
from txstore import Server

Facts = dict[str, Any]


def names_of(server: Server) -> str:
    assert server.name_server is not None
    return server.name_server


def bodies(server: Server, topic: str) -> list[bytes]:
    """All visible messages of a topic."""
    broker = server.broker
    return [
        message.body for queue_id in broker.read_queues(topic) for message in broker.read(topic, queue_id, 0, 10_000)[0]
    ]


def produce(java: peer.Peer, server: Server, count: int, how: str = "sync", **more: Any) -> Facts:
    facts = java.call(
        "remote.produce", names=names_of(server), group="sender", topic="orders", count=count, how=how, **more
    )
    assert isinstance(facts, dict)
    return facts


def push(java: peer.Peer, server: Server, wanted: int, how: str = "concurrent", **more: Any) -> list[Facts]:
    arguments = {"group": "shipping", "topic": "orders", "tags": "*", "how": how, "wanted": wanted} | more
    return list(java.call("remote.push", names=names_of(server), **arguments))


def planned(body: bytes, plan: list[str]) -> Facts:
    """A transaction with its answers. One that its producer ends at once is not checked, however long that takes."""
    ends_at_once = plan in (["COMMIT"], ["ROLLBACK"])
    return peer.message("orders", body, answers=plan, **({"immunity_s": "60"} if ends_at_once else {}))


# Producers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async", "oneway"])
def test_messages_are_sent(java: peer.Peer, server: Server, how: str) -> None:
    answer = produce(java, server, 30, how)
    assert answer["errors"] == []
    assert len(set(answer["ids"])) == (0 if how == "oneway" else 30)
    eventually(lambda: len(bodies(server, "orders")) == 30)
    assert Counter(bodies(server, "orders")) == Counter(b"%d" % number for number in range(30))
    for message_id in answer["ids"][:3]:
        assert server.broker.message(message_id, topic="orders").message_id == message_id


def test_transactions_end_as_their_producer_decides(java: peer.Peer, server: Server) -> None:
    """Committed, rolled back, and three that a check settles: committed, rolled back, discarded."""
    plans = {
        b"committed": ["COMMIT"],
        b"rolled back": ["ROLLBACK"],
        b"checked": ["UNKNOWN", "UNKNOWN", "COMMIT"],
        b"checked, not": ["UNKNOWN", "ROLLBACK"],
        b"thrown": ["THROW", "COMMIT"],
        b"discarded": ["UNKNOWN"],
    }
    with java.producer(names_of(server), "payments") as producer:
        sent = producer.transactions([planned(body, plan) for body, plan in plans.items()])
        assert [answer["status"] for answer in sent] == ["SEND_OK"] * len(plans)
        eventually(lambda: not server.broker.transactions())
        checks = Counter(event["transaction_id"] for event in producer.log() if event["what"] == "check")
    ids = {body: answer["transaction_id"] for body, answer in zip(plans, sent, strict=True)}
    assert sorted(bodies(server, "orders")) == [b"checked", b"committed", b"thrown"]
    states = {body: server.broker.transaction(ids[body]).state for body in plans}
    assert (states[b"rolled back"], states[b"checked, not"], states[b"discarded"]) == (
        "rolled_back",
        "rolled_back",
        "discarded",
    )
    least = dict(zip(plans, [0, 0, 2, 1, 1, 3], strict=True))
    # A check that is not answered in time is sent again.
    assert {body: checks[ids[body]] for body in plans if checks[ids[body]] < least[body]} == {}
    assert [checks[ids[body]] for body in (b"committed", b"rolled back", b"discarded")] == [0, 0, 3]


def test_compressed_bodies_and_batches_arrive(java: peer.Peer, server: Server) -> None:
    with java.producer(names_of(server), "g", compression="LZ4") as producer:
        large = b"compress me " * 1_000
        assert producer.send([peer.message("orders", large)])[0]["status"] == "SEND_OK"
        assert producer.batch([peer.message("orders", b"one"), peer.message("orders", b"two")])["status"] == "SEND_OK"
    assert Counter(bodies(server, "orders")) == Counter([large, b"one", b"two"])
    assert {body["body_length"] for body in java.consume(names_of(server), "c", {"orders": "*"}, at_least=3)} == {
        3,
        len(large),
    }


# Consumers ------------------------------------------------------------------------------------------------------------


def test_push_consumer_gets_all_messages_and_is_listed(java: peer.Peer, server: Server) -> None:
    produce(java, server, 60)
    # The client stores no offset of a message whose handler has returned just before it shuts down.
    received = push(java, server, 40, tags="t0 || t1", linger_ms=2_000)
    assert Counter(int(message["keys"][1:]) for message in received) == Counter(n for n in range(60) if n % 3 != 2)
    assert push(java, server, 1, tags="t0 || t1", timeout_ms=500, linger_ms=0) == []


@pytest.mark.peer
def test_failed_messages_are_retried_and_become_dead_letters(java: peer.Peer, server: Server) -> None:
    produce(java, server, 4)
    received = push(java, server, 6, fail="k2", times=2, max_reconsume_times=5)
    assert [m["reconsume_times"] for m in received if m["keys"] == "k2"] == [0, 1, 2]
    assert {m["topic"] for m in received} == {"orders"}
    produce(java, server, 1)
    received = push(java, server, 2, fail="k0", times=99, max_reconsume_times=1, linger_ms=1500)
    assert [m["reconsume_times"] for m in received] == [0, 1]
    assert [letter.body for letter in server.broker.dead_letters("shipping")] == [b"0"]


def test_lite_pull_consumer_polls_and_commits(java: peer.Peer, server: Server) -> None:
    produce(java, server, 20)
    arguments = {"names": names_of(server), "group": "lite", "topic": "orders", "tags": "*"}
    received = java.call("remote.lite_pull", **arguments, wanted=20)
    assert Counter(message["body"] for message in received) == Counter(str(number) for number in range(20))
    assert sum(row.lag for row in server.broker.lag("lite")) == 0
    assert java.call("remote.lite_pull", **arguments, wanted=1, timeout_ms=1_000) == []


@pytest.mark.peer
def test_members_share_the_queues(java: peer.Peer, server: Server) -> None:
    server.broker.create_topic("orders", 4)
    running = java.begin(
        "remote.push",
        names=names_of(server), group="shipping", topic="orders", tags="*", how="concurrent",
        members=2, wanted=80, linger_ms=500,
    )  # fmt: skip
    eventually(lambda: [len(queues) for queues in queues_of_members(server, "shipping", "orders")] == [2, 2])
    produce(java, server, 80)
    received = running.result(60)
    assert Counter(int(m["keys"][1:]) for m in received) == Counter(range(80))
    assert {m["member"] for m in received} == {0, 1}


@pytest.mark.peer
def test_broadcast_reaches_every_member(java: peer.Peer, server: Server) -> None:
    produce(java, server, 20)
    received = push(java, server, 40, "broadcast", members=2)
    assert Counter(m["member"] for m in received) == {0: 20, 1: 20}


@pytest.mark.peer
def test_orderly_consumer_keeps_the_order_after_failures(java: peer.Peer, server: Server) -> None:
    produce(java, server, 40)
    received = push(java, server, 43, "orderly", members=2, fail="k5", times=3, timeout_ms=60_000)
    done: dict[int, list[int]] = {}
    for message in received:
        if not message["failed"]:
            done.setdefault(message["queue_id"], []).append(message["queue_offset"])
    assert all(offsets == sorted(set(offsets)) for offsets in done.values())
    assert sum(map(len, done.values())) == 40


@pytest.mark.peer
def test_orderly_consumer_moves_failing_messages_to_the_dead_letters(java: peer.Peer, server: Server) -> None:
    produce(java, server, 8)
    received = push(java, server, 10, "orderly", fail="k3", times=99, max_reconsume_times=2, linger_ms=2_000)
    assert [m["reconsume_times"] for m in received if m["keys"] == "k3"] == [0, 1, 2]
    assert [letter.body for letter in server.broker.dead_letters("shipping")] == [b"3"]


# Operators ------------------------------------------------------------------------------------------------------------


def test_discarded_transaction_is_resumed_and_ends(java: peer.Peer, server: Server) -> None:
    """RocketMQ's MQAdminExt finds the parked copy by its offset id and resumes it: its producer is checked again."""
    broker = server.broker
    with java.producer(names_of(server), "payments") as producer:
        answers = [*["UNKNOWN"] * 4, "COMMIT"]  # The producer's own answer, three to the checks, and one more.
        (sent,) = producer.transactions([peer.message("orders", b"paid", answers=answers)])
        name = sent["transaction_id"]
        eventually(lambda: broker.transaction(name).state == "discarded")
        assert bodies(server, "orders") == []
        checks_before = len([event for event in producer.log() if event["what"] == "check"])
        (parked,) = broker.store.read("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0, 10)[0]
        assert java.resume(names_of(server), parked.offset_message_id)
        eventually(lambda: broker.transaction(name).state == "committed")
        assert bodies(server, "orders") == [b"paid"]
        assert len([event for event in producer.log() if event["what"] == "check"]) == checks_before + 1
    assert not java.resume(names_of(server), parked.offset_message_id), "it has ended meanwhile"
    assert bodies(server, "orders") == [b"paid"]


@pytest.mark.peer
def test_mqadmin_asks_a_consumer_through_the_server(java: peer.Peer, server: Server) -> None:
    """Running info, offsets in memory, and direct consumption of a message: the server relays them as a broker does."""
    names = names_of(server)

    def admin(*arguments: str) -> str:
        return str(java.call("remote.admin", names=names, arguments=[*arguments, "-n", names]))

    ids = produce(java, server, 3)["ids"]
    running = java.begin(
        "remote.push",
        names=names, group="shipping", topic="orders", tags="*", how="concurrent", wanted=4, timeout_ms=60_000,
    )  # fmt: skip

    def is_done() -> bool:
        if not server.counters()["consumers"]:
            return False
        rows = [row for row in server.broker.lag("shipping") if row.topic == "orders"]
        return len(rows) > 0 and all(row.lag == 0 for row in rows)

    eventually(is_done, 60)
    ((client_id, _),) = server.clients.members("shipping")
    told = admin("consumerStatus", "-g", "shipping", "-i", client_id)
    assert "PROP_CONSUME_TYPE" in told
    assert told.count("txstore") > len(server.broker.read_queues("orders")), "its queues, and that of retries"
    rows = java.call("status", names=names, group="shipping", topic="orders")
    assert {client for client, _, _ in rows} == {client_id}
    assert sum(offset for _, _, offset in rows) == 3
    offset_id = server.broker.message(ids[1]).offset_message_id
    told = admin("queryMsgById", "-t", "orders", "-i", offset_id, "-g", "shipping", "-d", client_id)
    assert "CR_SUCCESS" in told
    received = running.result(60)
    assert Counter(message["body"] for message in received) == {"0": 1, "1": 2, "2": 1}


@pytest.mark.peer
def test_mqadmin_works(java: peer.Peer, server: Server) -> None:
    names = names_of(server)

    def admin(*arguments: str) -> str:
        return str(java.call("remote.admin", names=names, arguments=[*arguments, "-n", names]))

    assert "success" in admin("updateTopic", "-c", "DefaultCluster", "-t", "orders", "-r", "6", "-w", "6")
    assert server.broker.write_queues("orders") == tuple(range(6))
    ids = produce(java, server, 12)["ids"]
    push(java, server, 12)
    assert "txstore" in admin("clusterList")
    assert "orders" in admin("topicList")
    assert '"readQueueNums":6' in admin("topicRoute", "-t", "orders").replace(" ", "")
    assert admin("topicStatus", "-t", "orders").count("txstore") == 6
    assert "commitLogMaxOffset" in admin("brokerStatus", "-b", str(server.address))
    assert "brokerName" in admin("getBrokerConfig", "-b", str(server.address))
    assert "Consume Diff Total: 0" in admin("consumerProgress", "-g", "shipping")
    assert ids[0] in admin("queryMsgByUniqueKey", "-t", "orders", "-i", ids[0])
    assert ids[1] in admin("queryMsgByKey", "-t", "orders", "-k", "k1")
    offset_id = server.broker.message(ids[2]).offset_message_id
    assert ids[2] in admin("queryMsgById", "-t", "orders", "-i", offset_id)
    assert "success" in admin("updateSubGroup", "-c", "DefaultCluster", "-g", "billing").lower()
    assert "billing" in server.broker.groups()
    admin("resetOffsetByTime", "-t", "orders", "-g", "shipping", "-s", "0")
    assert sum(row.lag for row in server.broker.lag("shipping")) == 12
