"""Guards RocketMQ's Go client against `txstore serve`, with headers in JSON and in binary: nothing is lost or
doubled.

rocketmq-client-go v2 runs in a process of its own.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.remoting.go_client import GoClient, NoGoError, build
from tests.remoting.members import queues_of_members
from tests.waiting import eventually
from txstore import Server, TransactionRow, TransactionState

JSON, BINARY = 0, 1
# Java's client in the tier `test` writes JSON, too.
KINDS = [pytest.param(JSON, marks=pytest.mark.peer, id="json"), pytest.param(BINARY, id="binary")]


@pytest.fixture(scope="module", params=KINDS)
def go(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoClient]:
    """A process whose frames have headers of one kind; skips where it cannot be built."""
    try:
        program = build()
    except NoGoError as problem:
        pytest.skip(str(problem))
    with GoClient(program, tmp_path_factory.mktemp("go")) as client:
        client.call("codec", serialization=request.param)
        yield client


def names_of(server: Server) -> str:
    assert server.name_server is not None
    return server.name_server


def bodies(server: Server, topic: str = "orders") -> list[bytes]:
    """All visible messages of a topic."""
    broker = server.broker
    return [
        message.body for queue_id in broker.read_queues(topic) for message in broker.read(topic, queue_id, 0, 10_000)[0]
    ]


def has_ended(transaction: TransactionRow) -> bool:
    return transaction.state is not TransactionState.PENDING


def produce(go: GoClient, server: Server, count: int, how: str = "sync", **more: Any) -> dict[str, Any]:
    facts = go.call("produce", names=names_of(server), group="sender", topic="orders", count=count, how=how, **more)
    assert isinstance(facts, dict)
    return facts


# The client stores no offset of a message whose handler has returned just before it shuts down, and tells of none.
_OFFSETS_ARE_STORED_MS = 2_000


def push(go: GoClient, server: Server, wanted: int, how: str = "concurrent", **more: Any) -> list[dict[str, Any]]:
    arguments = {"group": "shipping", "topic": "orders", "tags": "*", "how": how, "timeout_ms": 60_000} | more
    return list(go.call("push", names=names_of(server), wanted=wanted, **arguments))


def test_frames_have_headers_of_the_tested_kind(go: GoClient, request: pytest.FixtureRequest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        sending = go.begin("produce", names=address, group="sender", topic="orders", count=1)
        listener.settimeout(60)
        connection, _ = listener.accept()
        with connection:
            head = connection.recv(5, socket.MSG_WAITALL)
        assert head[4] == request.node.callspec.params["go"]
    sending.exception(60)  # It got no response.


@pytest.mark.parametrize("how", ["sync", "async", "oneway"])
def test_messages_are_sent(go: GoClient, server: Server, how: str) -> None:
    answer = produce(go, server, 30, how)
    assert answer["errors"] == []
    assert len(set(answer["ids"])) == (0 if how == "oneway" else 30)
    eventually(lambda: len(bodies(server)) == 30)
    assert Counter(bodies(server)) == Counter(b"%d" % number for number in range(30))
    for message_id in answer["ids"][:3]:
        assert server.broker.message(message_id, topic="orders").message_id == message_id


def test_batch_and_compressed_bodies_arrive(go: GoClient, server: Server) -> None:
    assert produce(go, server, 20, "batch")["errors"] == []
    assert Counter(bodies(server)) == Counter(b"%d" % number for number in range(20))
    assert produce(go, server, 1, body_bytes=20_000)["errors"] == []
    assert Counter(map(len, bodies(server)))[20_000] == 1
    received = push(go, server, 21)
    assert sorted(len(message["body"]) for message in received)[-1] == 20_000


def test_transactions_end_as_their_producer_decides(go: GoClient, server: Server) -> None:
    """Committed, rolled back, and those that a check settles."""
    plans = {
        "committed": ["COMMIT"],
        "rolled back": ["ROLLBACK"],
        "checked": ["UNKNOWN", "UNKNOWN", "COMMIT"],
        "checked, not": ["UNKNOWN", "ROLLBACK"],
    }
    transacting = go.begin(
        "transact", names=names_of(server), group="payments", topic="orders", plans=plans, timeout_ms=90_000
    )
    eventually(lambda: transacting.done() or sum(map(has_ended, server.broker.transactions(None))) == len(plans))
    go.call("release")
    facts = transacting.result()
    assert sorted(bodies(server)) == [b"checked", b"committed"]
    assert facts["checked"].keys() == {"checked", "checked, not"}
    # A check that is not answered in time is sent again.
    assert facts["checked"]["checked"] >= 2
    states = {body: server.broker.transaction(name).state.value for body, name in facts["ids"].items()}
    assert states == {
        "committed": "committed",
        "rolled back": "rolled_back",
        "checked": "committed",
        "checked, not": "rolled_back",
    }


def test_push_consumer_gets_matching_tags_once(go: GoClient, server: Server) -> None:
    produce(go, server, 60)
    received = push(go, server, 40, tags="t0 || t1", linger_ms=_OFFSETS_ARE_STORED_MS)
    assert Counter(int(message["body"]) for message in received) == Counter(n for n in range(60) if n % 3 != 2)
    assert push(go, server, 1, tags="t0 || t1", timeout_ms=1_000) == [], "acknowledged messages are delivered again"


def test_failed_messages_are_retried_and_become_dead_letters(go: GoClient, server: Server) -> None:
    produce(go, server, 4)
    received = push(go, server, 6, fail="k2", times=2, max_reconsume_times=5, linger_ms=_OFFSETS_ARE_STORED_MS)
    assert [m["reconsume_times"] for m in received if m["keys"] == "k2"] == [0, 1, 2]
    assert {m["topic"] for m in received} == {"orders"}
    produce(go, server, 1)
    received = push(go, server, 2, fail="k0", times=99, max_reconsume_times=1, linger_ms=2_000)
    assert [m["reconsume_times"] for m in received] == [0, 1]
    eventually(lambda: [letter.body for letter in server.broker.dead_letters("shipping")] == [b"0"])


@pytest.mark.peer
def test_orderly_consumer_keeps_the_order_after_failures(go: GoClient, server: Server) -> None:
    produce(go, server, 40)
    received = push(go, server, 42, "orderly", fail="k5", times=2)
    done: dict[int, list[int]] = {}
    for message in received:
        if not message["failed"]:
            done.setdefault(message["queue_id"], []).append(message["queue_offset"])
    assert all(offsets == sorted(set(offsets)) for offsets in done.values())
    assert sum(map(len, done.values())) == 40


@pytest.mark.peer
def test_members_share_the_queues(go: GoClient, server: Server) -> None:
    server.broker.create_topic("orders", 4)
    running = go.begin(
        "push", names=names_of(server), group="shipping", topic="orders", tags="*", how="concurrent", members=2,
        wanted=80, timeout_ms=60_000, linger_ms=500,
    )  # fmt: skip
    eventually(lambda: [len(queues) for queues in queues_of_members(server, "shipping", "orders")] == [2, 2])
    produce(go, server, 80)
    received = running.result(120)
    assert {int(m["body"]) for m in received} == set(range(80))
    assert {m["member"] for m in received} == {0, 1}


@pytest.mark.peer
def test_broadcast_reaches_every_member(go: GoClient, server: Server) -> None:
    produce(go, server, 20)
    received = push(go, server, 40, "broadcast", members=2)
    assert Counter(m["member"] for m in received) == {0: 20, 1: 20}
