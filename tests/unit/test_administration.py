"""Guards the administration of a store: embedded, by `txstore.connect` and by `txstore.aio` it has the same calls, the
same results and the same errors.

The owner opens and serves a store. The operator is the owner itself, a blocking or an asyncio connection, or a
connection that must use RocketMQ's own requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.frames import Wire
from tests.waiting import eventually
from txstore import (
    ConsumeFromWhere,
    EmbeddedBroker,
    EmbeddedOnlyError,
    EventKind,
    LocalTransactionState,
    Message,
    QueueExtent,
    Server,
    ServerConfig,
    TransactionState,
    errors,
)
from txstore._native import RequestCode, ResponseCode
from txstore.broker.operations import Operations
from txstore.client.administration import Administration
from txstore.client.broker import EMBEDDED_ONLY, RemoteBroker
from txstore.client.rocketmq_admin import RocketMQAdmin
from txstore.interface import BrokerInterface
from txstore.remoting.administration import decode, decode_error, encode, encode_error
from txstore.server.administration import _CALLS

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)


class AioFacade:
    """An asyncio connection whose coroutines run on a loop of their own, so that tests can call it like the others."""

    def __init__(self, address: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self._opened = txstore.aio.connect(address, **options)
        self._wait(self._opened.__aenter__())

    def _wait(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._opened, name)
        return (lambda *args, **kwargs: self._wait(found(*args, **kwargs))) if inspect.ismethod(found) else found

    def close(self) -> None:
        self._wait(self._opened.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


def connected(kind: str, server: Server) -> Any:
    assert server.address is not None
    if kind == "aio":
        return AioFacade(server.address)
    remote = txstore.connect(server.address)
    if kind == "rocketmq":
        remote._administration._knows_calls = dict.fromkeys(remote._client.brokers(), False)
    return remote


@pytest.fixture(params=["embedded", "connect", "aio"])
def operator(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[Any]:
    """The operator of the owner's store."""
    yield from _operator(request, broker)


@pytest.fixture(params=["embedded", "connect", "aio", "rocketmq"])
def any_operator(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[Any]:
    """As `operator`, also by RocketMQ's own requests."""
    yield from _operator(request, broker)


def _operator(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[Any]:
    if request.param == "embedded":
        yield broker
        return
    found = connected(request.param, request.getfixturevalue("server"))
    yield found
    found.close()


# What each offers


def public(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [RemoteBroker, txstore.aio.RemoteBroker])
def test_remote_broker_offers_what_an_embedded_one_does(kind: type) -> None:
    # Calls of producers, consumers and servers, which users do not make.
    for_parts = public(BrokerInterface) | {
        "append",
        "pull",
        "prepare",
        "end",
        "watch_topics",
        "search_offset",
        "message_type",
        "group_settings",
    }
    for_parts |= {"listen", "listen_if_possible", "local_socket", "outboxes", "postpone_checks"}
    missing = public(EmbeddedBroker) - public(kind) - for_parts
    assert missing - {"read_only"} == set(EMBEDDED_ONLY)
    assert len(EMBEDDED_ONLY) <= 5


def test_embedded_only_call_names_the_alternative(server: Server) -> None:
    assert server.address is not None
    with txstore.connect(server.address) as remote:
        for name, hint in EMBEDDED_ONLY.items():
            with pytest.raises(EmbeddedOnlyError) as caught:
                getattr(remote, name)
            assert hint in str(caught.value)
            with pytest.raises(EmbeddedOnlyError):
                getattr(txstore.aio.connect(server.address), name)


# The server answers these itself, not the broker.
_OF_SERVERS = {
    "group_members",
    "replication_state",
    "replication_status",
    "accept_epoch",
    "promote",
    "forget_replica",
    "note_escaped",
}


@pytest.mark.parametrize("name", sorted(_CALLS.keys() - _OF_SERVERS))
def test_call_has_the_arguments_of_the_broker(name: str) -> None:
    made_by = EmbeddedBroker if hasattr(EmbeddedBroker, name) else Operations
    theirs = set(inspect.signature(getattr(made_by, name)).parameters) - {"self", "producer_group"}
    assert set(_CALLS[name]) == theirs


def test_rocketmq_answers_the_calls_that_are_listed() -> None:
    calls = {name for name, value in vars(RocketMQAdmin).items() if name[0] != "_" and inspect.isfunction(value)}
    assert calls == RocketMQAdmin.CALLS <= set(_CALLS)


def test_blocking_calls_are_those_of_asyncio() -> None:
    for name in public(Administration) - {"end_by_hand"}:
        ours, theirs = getattr(RemoteBroker, name), getattr(Administration, name)
        assert inspect.signature(ours) == inspect.signature(theirs), name
        assert ours.__doc__ == theirs.__doc__, name


# Topics


def test_topics(any_operator: Any, broker: EmbeddedBroker) -> None:
    any_operator.create_topic("orders", 2)
    any_operator.create_topic("orders")
    assert broker.read_queues("orders") == (0, 1)
    producer = broker.producer("p")
    producer.send(Message("orders", b"x"), queue_id=1)
    producer.close()
    with broker.consumer("shipping", "orders") as consumer:
        consumer.poll()
    assert any_operator.has_topic("orders")
    assert not any_operator.has_topic("other")
    assert any_operator.topics() == broker.topics()
    assert any_operator.describe_topic("orders") == broker.describe_topic("orders")
    assert QueueExtent("orders", 1, 0, 1) in any_operator.queues("orders")
    with pytest.raises(errors.InvalidOptionError):
        any_operator.create_topic("orders", 1)
    with pytest.raises(errors.InvalidNameError, match="there is no topic other\nhint: "):
        any_operator.describe_topic("other")
    assert any_operator.delete_topic("orders") == 1
    assert "orders" not in broker.topics()


def test_topic_that_a_connected_client_reads_is_in_use(server: Server, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    assert server.address is not None
    with txstore.connect(server.address) as remote, remote.consumer("shipping", "orders"):
        with pytest.raises(errors.InUseError, match="read by shipping"):
            remote.delete_topic("orders")
        with pytest.raises(errors.InUseError, match="connected consumers"):
            remote.delete_group("shipping")
        assert remote.describe_group("shipping").members == 1
    assert broker.has_topic("orders")


# Groups


def test_groups(any_operator: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    sent = [broker.producer("p").send(Message("orders", b"%d" % number)) for number in range(3)]
    any_operator.create_group("shipping")
    any_operator.create_groups(["shipping", "billing"])
    any_operator.create_group("billing", consume_message_orderly=True, retry_max_times=2)
    settings = broker.group_settings("billing")
    assert (settings.consume_message_orderly, settings.retry_max_times) == (True, 2)
    broker.set_consumer_offset("orders", "shipping", 0, 2)
    assert any_operator.groups() == broker.groups()
    assert {"shipping", "billing"} <= set(any_operator.groups())
    assert any_operator.has_group("billing")
    lag = next(row for row in any_operator.lag("shipping") if row.topic == "orders")
    assert lag == next(row for row in broker.lag("shipping") if row.topic == "orders")
    assert (lag.consumer_offset, lag.end, lag.lag) == (2, 3, 1)
    assert lag in any_operator.lag_by_group()["shipping"]
    described = any_operator.describe_group("shipping")
    assert (described.topics, described.lag, described.dead_letters, described.members) == (("orders",), 1, 0, 0)
    assert any_operator.reset_offsets("shipping", "orders", ConsumeFromWhere.FIRST) == {0: 0}
    assert any_operator.reset_offsets("shipping", "orders", ConsumeFromWhere.LAST) == {0: 3}
    moment = broker.message(sent[0].message_id).store_timestamp
    assert any_operator.reset_offsets("shipping", "orders", moment) == {0: 0}
    with pytest.raises(errors.InvalidNameError, match="unknown consumer group other\nhint: "):
        any_operator.lag("other")
    with pytest.raises(errors.InvalidOptionError, match="applies to one queue only"):
        any_operator.reset_offsets("shipping", "orders", 1)
    assert any_operator.delete_group("shipping") == 0
    assert not broker.has_group("shipping")


def test_one_queue_is_reset(any_operator: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 2)
    for _ in range(3):
        broker.producer("p").send(Message("orders", b"x"), queue_id=1)
    broker.create_group("shipping")
    assert any_operator.reset_offsets("shipping", "orders", 1, queue_id=1) == {1: 1}
    assert broker.consumer_offset("orders", "shipping", 1) == 1
    with pytest.raises(errors.InvalidOptionError, match="offset 4 is outside"):
        any_operator.reset_offsets("shipping", "orders", 4, queue_id=1)
    assert any_operator.reset_offsets("shipping", "orders", ConsumeFromWhere.LAST, queue_id=1) == {1: 3}
    assert any_operator.reset_offsets("shipping", "orders", datetime.now(UTC), queue_id=1) == {1: 3}
    with pytest.raises(errors.InvalidNameError, match="has no queue 7"):
        any_operator.reset_offsets("shipping", "orders", ConsumeFromWhere.LAST, queue_id=7)


def test_connected_consumer_continues_where_it_was_reset(server: Server, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    broker.producer("p").send(Message("orders", b"x"))
    assert server.address is not None
    with txstore.connect(server.address) as remote, remote.consumer("shipping", "orders") as consumer:
        assert [message.body for message in consumer.poll(timeout=20)] == [b"x"]
        consumer.acknowledge()
        remote.reset_offsets("shipping", "orders", ConsumeFromWhere.FIRST)
        assert [message.body for message in consumer.poll(timeout=20)] == [b"x"]


def test_dead_letters(any_operator: Any, broker: EmbeddedBroker, request: pytest.FixtureRequest) -> None:
    broker.create_topic("orders", 1)
    broker.producer("p").send(Message("orders", b"x" * 70, tags="paid", keys=["k"]))
    with broker.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
        for message in consumer.poll():
            message.retry()
    letters = broker.dead_letters("shipping")
    assert len(letters) == 1
    assert any_operator.dead_letters("shipping") == letters
    assert any_operator.dead_letters("shipping", limit=1) == letters
    with pytest.raises(errors.InUseError):
        any_operator.delete_group("shipping")
    if "rocketmq" in request.node.name:
        with pytest.raises(errors.BrokerRefusedError, match="a RocketMQ broker cannot answer resend"):
            any_operator.resend(letters[0])
        return
    sent = any_operator.resend(letters[0])
    assert (sent.topic, sent.queue_offset) == ("%RETRY%shipping", 0)
    with broker.consumer("shipping", "orders") as consumer:
        assert [message.body for message in consumer.poll(timeout=5)] == [b"x" * 70]
    with pytest.raises(errors.MessageNotFoundError):
        any_operator.resend(dataclasses.replace(letters[0], queue_offset=9))
    assert any_operator.delete_group("shipping", force=True) == 1


# Messages


def test_messages(any_operator: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    begin = datetime.now(UTC) - timedelta(seconds=1)
    sent = [broker.producer("p").send(Message("orders", b"%d" % n, keys=[f"k{n % 2}"], tags="t")) for n in range(4)]

    def ids(messages: Any) -> list[str]:
        return [message.message_id for message in messages]

    names = ids(sent)
    for name in (sent[1].message_id, sent[1].offset_message_id):
        found = any_operator.message(name)
        assert (found.record, found.topic, found.body) == (broker.message(name).record, "orders", b"1")
    assert any_operator.message(names[0], topic="orders").message_id == names[0]
    assert sorted(ids(any_operator.query("orders", "k1"))) == sorted([names[1], names[3]])
    assert len(any_operator.query("orders", "k1", 1)) == 1
    assert ids(any_operator.query_by_time("orders", begin)) == names
    assert ids(any_operator.query_by_time("orders", begin, max_messages=2)) == names[:2]
    assert any_operator.query_by_time("orders", begin, begin) == []
    messages, following = any_operator.read("orders", 0, 1, 2)
    assert (ids(messages), following) == (names[1:3], 3)
    assert any_operator.read("orders", 0, 4)[0] == []
    assert any_operator.read("orders", 70_000, 4)[0] == []
    assert any_operator.read("nothing", 0, 0)[0] == []
    with pytest.raises(errors.MessageNotFoundError):
        any_operator.message("7F" * 16)
    with pytest.raises(errors.InvalidNameError):
        any_operator.query("other", "k")
    with pytest.raises(errors.InvalidNameError, match="is a system topic"):
        any_operator.read("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)


def test_what_the_log_has(any_operator: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    sent = broker.producer("p").send(Message("orders", b"1"))
    later = broker.producer("p").send(Message("orders", b"2", delay_level=18))
    is_rocketmq = isinstance(any_operator, RemoteBroker) and False in any_operator._administration._knows_calls.values()
    ids = [sent.message_id, "7F" * 16, later.message_id]
    assert any_operator.has_messages("orders", ids) == [True, False, not is_rocketmq]
    assert any_operator.has_messages("bills", [sent.message_id]) == [False]
    assert any_operator.has_messages("orders", []) == []
    with pytest.raises(errors.InvalidNameError, match="is a system topic"):
        any_operator.has_messages("RMQ_SYS_TRANS_HALF_TOPIC", ids)


# Transactions


def test_states_and_the_oldest_message(operator: Any, broker: EmbeddedBroker) -> None:
    assert operator.oldest_timestamp() is None
    names = [begin(broker, 1)[0] for _ in range(4)]
    for name, state in zip(names, (COMMIT, ROLLBACK), strict=False):
        broker.end_transaction(name, state)
    broker.discard(names[2])
    wanted = [TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.DISCARDED]
    found = operator.transaction_states([*names, "7F" * 16])
    assert found == [*wanted, TransactionState.PENDING, None]
    assert operator.transaction_states([]) == []
    assert operator.oldest_timestamp() == broker.store.read_at(0).store_timestamp


class Unknown(txstore.TransactionListener):
    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def begin(owner: EmbeddedBroker, count: int = 1, topic: str = "orders") -> list[str]:
    """Begins transactions that stay pending, and returns their ids."""
    with owner.transaction_producer("shop", Unknown()) as producer:
        results = [producer.send_in_transaction(Message(topic, b"17", keys=["k"])) for _ in range(count)]
    return [str(result.transaction_id) for result in results]


def test_transactions_are_listed(operator: Any, broker: EmbeddedBroker) -> None:
    ids = begin(broker, 3)
    found = operator.transactions()
    ours = broker.transactions()
    assert [one.transaction_id for one in found] == ids
    assert [
        dataclasses.replace(one, age=timedelta(), stored_age=timedelta(), next_check=None, last_check=None)
        for one in found
    ] == [
        dataclasses.replace(one, age=timedelta(), stored_age=timedelta(), next_check=None, last_check=None)
        for one in ours
    ]
    assert [one.transaction_id for one in operator.transactions(limit=2)] == ids[:2]
    alike = [name for name in ids if name.startswith(ids[1][:31])]
    assert [one.transaction_id for one in operator.transactions(id_prefix=ids[1][:31])] == alike
    assert [one.transaction_id for one in operator.transactions(id_prefix=ids[1])] == [ids[1]]
    assert operator.transactions(id_prefix="x") == []
    assert operator.transactions(group="other") == []
    assert operator.transactions(topic="other") == []
    assert operator.transactions(older_than=3600) == []
    with pytest.raises(errors.InvalidOptionError, match="unknown state 'odd'"):
        operator.transactions("odd")


def test_transactions_are_ended_by_hand(operator: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    committed, rolled_back, discarded = begin(broker, 3)
    end = operator.end_transaction(committed, COMMIT)
    assert (end.outcome, end.already, end.queue_offset) == (TransactionState.COMMITTED, False, 0)
    assert broker.message(committed).physical_offset == end.physical_offset
    assert operator.end_transaction(committed, COMMIT).already
    with pytest.raises(errors.AlreadyEndedError) as caught:
        operator.end_transaction(committed, ROLLBACK)
    assert caught.value.outcome is TransactionState.COMMITTED
    assert operator.end_transaction(rolled_back, ROLLBACK).outcome is TransactionState.ROLLED_BACK
    assert operator.discard(discarded).outcome is TransactionState.DISCARDED
    rows = operator.transactions(None)
    assert [row.state for row in rows] == ["committed", "rolled_back", "discarded"]
    names = "transaction_id producer_group topic state halves finals discards ops checks".split()
    for row, ours in zip(rows, broker.transactions(None), strict=True):
        assert [getattr(row, name) for name in names] == [getattr(ours, name) for name in names]
        assert row.prepared_timestamp == ours.prepared_timestamp
        assert row.ended_timestamp == ours.ended_timestamp
    assert [row.transaction_id for row in operator.transactions("discarded")] == [discarded]
    sent = operator.resume(discarded)
    assert sent.transaction_id == discarded
    assert [(one.transaction_id, one.half_queue_offset) for one in operator.transactions()] == [
        (discarded, sent.queue_offset)
    ]
    with pytest.raises(errors.AlreadyEndedError):
        operator.resume(committed)
    for call in (operator.discard, operator.resume, operator.transaction):
        with pytest.raises(errors.TransactionNotFoundError, match="hint: `txstore tx list --all`"):
            call("0" * 32)


def test_transaction_explains_itself(operator: Any, broker: EmbeddedBroker) -> None:
    (name,) = begin(broker)
    pending = operator.transaction(name)
    assert pending.pending is not None
    assert (pending.state, pending.keys, pending.body_bytes) == (TransactionState.PENDING, ("k",), 2)
    broker.end_transaction(name, COMMIT)
    trace = operator.transaction(name)
    assert trace == broker.transaction(name)
    assert trace.explain() == broker.transaction(name).explain()
    assert [event.kind for event in trace.events][:2] == [EventKind.PREPARED, EventKind.COMMITTED]


def test_transaction_of_this_connection_is_still_ended_by_its_producer(server: Server) -> None:
    assert server.address is not None
    with txstore.connect(server.address) as remote:
        sent = remote.prepare(Message("orders", b"1"), remote.write_queues("orders")[0], "shop", 0)
        assert not remote.end_transaction(sent, COMMIT).already
        assert remote.end_transaction(sent, COMMIT).already


# Statistics


def test_statistics(operator: Any, broker: EmbeddedBroker) -> None:
    broker.producer("p").send(Message("orders", b"x"))
    operator.flush()
    found, ours = operator.stat(), broker.stat()
    assert type(found) is type(ours)
    assert repr(found) == repr(ours)
    assert found.durable_physical_offset == found.max_physical_offset > 0


# RocketMQ's own requests


def test_call_that_rocketmq_cannot_answer_is_reported(server: Server) -> None:
    with connected("rocketmq", server) as remote:
        for call in (remote.transactions, remote.stat, remote.flush, lambda: remote.discard("0" * 32)):
            with pytest.raises(errors.BrokerRefusedError, match="a RocketMQ broker cannot answer") as caught:
                call()
            assert caught.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# Requests


def call(wire: Wire, name: str, arguments: Any = None, body: bytes | None = None) -> Any:
    return wire.call(RequestCode.TXSTORE_ADMIN, {"call": name}, encode(arguments or {}) if body is None else body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("close", b"{}"),
        ("_store", b"{}"),
        ("topics", b""),
        ("topics", b"[]"),
        ("topics", b"7"),
        ("topics", b"[" * 100_000),
        ("topics", encode({"more": 1})),
        ("lag", encode({})),
        ("lag", encode({"group": 7})),
        ("lag", encode({"group": None})),
        ("create_topic", encode({"topic": "t", "queues": True})),
        ("create_groups", encode({"groups": ["a", 7]})),
        ("lag", b'{"class":"Store","value":{}}'),
        ("lag", b'{"class":"dict","value":[["group",{"class":"QueueLag","value":{}}]]}'),
        ("lag", b'{"class":"dict","value":[["group",{"class":"datetime","value":1e400}]]}'),
        ("lag", b'{"class":[],"value":1}'),
        ("query_by_time", b'{"class":"dict","value":[["begin",{"class":"StoredMessage","value":"AAAA"}]]}'),
    ],
)
def test_wrong_call_is_refused(server: Server, name: str, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with Wire(str(server.address)) as wire:
        answer = call(wire, name, body=body)
        assert answer.code != ResponseCode.SUCCESS
        assert call(wire, "topics").code == ResponseCode.SUCCESS
    assert "could not be answered" not in caplog.text


def test_answer_that_does_not_fit_is_refused(
    server: Server, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstore.server.administration._ANSWER_BYTES_MAX", 1_000)
    begin(broker, 10)
    assert server.address is not None
    with txstore.connect(server.address) as remote:
        with pytest.raises(errors.BrokerRefusedError, match="ask for fewer"):
            remote.transactions()
        assert len(remote.transactions(limit=1)) == 1


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_errors_cross_with_their_facts(name: str) -> None:
    kind = getattr(errors, name)
    facts = {"outcome": TransactionState.DISCARDED, "minimum": 7, "file": "a"}
    found = decode_error(encode_error(kind("text\nhint: x", **facts)), "text\nhint: x")
    assert type(found) is kind
    assert (str(found), {key: getattr(found, key) for key in facts}) == ("text\nhint: x", facts)
    assert str(pickle.loads(pickle.dumps(found))) == "text\nhint: x"


def test_unknown_error_of_a_newer_server_is_a_refusal() -> None:
    assert decode_error({"error": "TomorrowError"}, "text") is None
    assert decode_error({"error": "__class__"}, "text") is None


def test_value_of_another_class_is_not_sent() -> None:
    with pytest.raises(TypeError, match="a set cannot be sent"):
        encode({"x": {1}})
    with pytest.raises(errors.ProtocolError, match="does not know"):
        decode(b'{"class":"Path","value":"/"}')


# Accounts

ACCOUNTS = """
[operator]
secret_key = "operator-secret"
admin = true

[shop-app]
secret_key = "shop-app-secret"
default_topic_perm = "PUB|SUB"
default_group_perm = "SUB"
"""


@pytest.mark.parametrize("connect", [txstore.connect, AioFacade])
def test_only_administrators_operate(connect: Callable[..., Any], broker: EmbeddedBroker, tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    broker.create_topic("orders", 1)
    (pending,) = begin(broker)
    config = ServerConfig(listen="127.0.0.1:0", name_server=None, accounts=path)
    with Server(broker, config) as server:
        admin = connect(server.address, access_key="operator", secret_key="operator-secret")
        app = connect(server.address, access_key="shop-app", secret_key="shop-app-secret")
        try:
            calls: list[Callable[[], object]] = [
                app.topics,
                app.transactions,
                app.flush,
                lambda: app.end_transaction(pending, COMMIT),
                lambda: app.discard(pending),
                lambda: app.delete_topic("orders"),
            ]
            for refused in calls:
                with pytest.raises(errors.BrokerRefusedError) as caught:
                    refused()
                assert caught.value.code == ResponseCode.NO_PERMISSION
            assert [one.transaction_id for one in admin.transactions()] == [pending]
            assert admin.end_transaction(pending, COMMIT).outcome is TransactionState.COMMITTED
            assert admin.delete_topic("orders") == 1
        finally:
            admin.close()
            app.close()
    eventually(lambda: not broker.has_topic("orders"))
