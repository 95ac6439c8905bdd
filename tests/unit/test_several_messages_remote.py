"""Guards transactions of several messages from another process: a connection, the loop, a shared store.

All become visible, in their order, or none; a lost answer or a killed writer changes nothing, and an account needs the
permission for every topic.
"""

from __future__ import annotations

import asyncio
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.frames import Wire
from tests.remoting_requests import CHECK, COMMIT, END, ROLLBACK, SEND_V2, ending, half, properties, sending
from tests.unit.conftest import OpenStore
from tests.unit.test_shared import Process, _lose_answers, start, store
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig, TransactionMessage
from txstore._native import RequestCode, ResponseCode

__all__ = ["start", "store"]
PREPARE = RequestCode.TXSTORE_PREPARE
ILLEGAL, DENIED = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION
UNKNOWN = LocalTransactionState.UNKNOWN
TOPICS = ("orders", "payments", "letters")
SOON: dict[str, Any] = {"transaction_timeout": 0.05, "transaction_check_interval": 0.2}
CONFIG = ServerConfig("127.0.0.1:0", name_server="127.0.0.1:0")


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, CONFIG) as server:
        yield server


def order(count: int = 5) -> list[Message]:
    return [Message(TOPICS[at % 3], b"%d" % at, keys=[f"order-{at}"]) for at in range(count)]


def seen(broker: EmbeddedBroker) -> list[bytes]:
    """The bodies of all visible messages, in the order in which they were stored."""
    found = [
        message
        for topic in TOPICS
        for queue in broker.queues(topic)
        for message in broker.read(topic, queue.queue_id, queue.first, 1000)[0]
    ]
    return [message.body for message in sorted(found, key=lambda message: message.physical_offset)]


def address_of(server: Server) -> str:
    assert server.name_server is not None
    return server.name_server


def nothing_known(message: TransactionMessage) -> LocalTransactionState:
    return UNKNOWN


# Producers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_connection_commits_all_in_their_order_or_none(
    server: Server, broker: EmbeddedBroker, is_committed: bool
) -> None:
    with txstore.connect(address_of(server)) as remote:
        producer = remote.transaction_producer("shop", check_listener=nothing_known)
        with producer.transaction(order()) as tx:
            assert seen(broker) == []
            assert [row.transaction_id for row in broker.transactions()] == [tx.transaction_id]
            if not is_committed:
                tx.rollback()
        assert tx.error is None
        assert remote.end_transaction(tx.transaction_id, tx.state, producer_group="shop").already
    assert seen(broker) == ([b"0", b"1", b"2", b"3", b"4"] if is_committed else [])
    assert broker.transactions() == []
    counters = server.counters()
    assert (counters["ends_committed"], counters["ends_rolled_back"]) == (int(is_committed), int(not is_committed))


def test_the_loop_commits_all_over_a_connection(server: Server, broker: EmbeddedBroker) -> None:
    async def work() -> None:
        async with txstore.aio.connect(address_of(server)) as remote:
            producer = remote.transaction_producer("shop", check_listener=nothing_known)
            async with producer.transaction(order()) as tx:
                assert await asyncio.to_thread(seen, broker) == []
            assert tx.state is LocalTransactionState.COMMIT

    asyncio.run(work())
    assert seen(broker) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("state", [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK])
def test_one_check_over_the_connection_settles_all(open_store: OpenStore, state: LocalTransactionState) -> None:
    asked: list[tuple[str | None, bytes]] = []

    def check(message: TransactionMessage) -> LocalTransactionState:
        asked.append((message.transaction_id, message.body))
        return state

    broker = open_store(**SOON)
    with Server(broker, CONFIG) as server, txstore.connect(address_of(server)) as remote:
        producer = remote.transaction_producer("shop", check_listener=check)
        with pytest.raises(KeyError), producer.transaction(order()) as tx:
            raise KeyError("the database")
        eventually(lambda: not broker.transactions())
    # The next check may come before the server has the answer of the first.
    assert set(asked) == {(tx.transaction_id, b"0")}
    assert seen(broker) == ([b"0", b"1", b"2", b"3", b"4"] if state is LocalTransactionState.COMMIT else [])


def test_a_running_block_is_not_checked(open_store: OpenStore) -> None:
    asked: list[TransactionMessage] = []

    def check(message: TransactionMessage) -> LocalTransactionState:
        asked.append(message)
        return LocalTransactionState.ROLLBACK

    broker = open_store(**SOON)
    with Server(broker, CONFIG) as server, txstore.connect(address_of(server)) as remote:
        producer = remote.transaction_producer("shop", check_listener=check)
        with producer.transaction(order()):
            eventually(lambda: broker.transactions()[0].checks >= 2)
    assert (asked, len(seen(broker))) == ([], 5)


def test_message_groups_keep_their_queues_over_a_connection(server: Server, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 4)
    messages = [Message("orders", b"%d" % at, message_group=f"customer-{at % 2}") for at in range(6)]
    with txstore.connect(address_of(server)) as remote:
        producer = remote.transaction_producer("shop", check_listener=nothing_known)
        with producer.transaction(messages):
            pass
        with producer.transaction(Message("orders", b"6", message_group="customer-0")):
            pass
    queues = [[message.body for message in broker.read("orders", number, 0)[0]] for number in range(4)]
    assert sorted(queue for queue in queues if queue) == [[b"0", b"2", b"4", b"6"], [b"1", b"3", b"5"]]


def test_a_thousand_messages_are_one_request_and_more_are_refused(server: Server, broker: EmbeddedBroker) -> None:
    with txstore.connect(address_of(server)) as remote:
        producer = remote.transaction_producer("shop", check_listener=nothing_known)
        with producer.transaction(order(1_000)):
            pass
        many = producer.transaction(order(1_001))
        with pytest.raises(txstore.InvalidMessageError, match="1 to 1000 messages, got 1001"), many:
            pass
        large = producer.transaction([Message("orders", b"x" * 60_000)] * 300)
        with pytest.raises(txstore.InvalidMessageError, match="at most 15728640\nhint"), large:
            pass
        assert not remote._session.sending._running
    assert len(seen(broker)) == 1_000
    assert broker.transactions() == []


# Requests by hand -----------------------------------------------------------------------------------------------------


def part(text: str, body: bytes = b"x", *, flag: int = 0) -> bytes:
    rest = struct.pack(">IIII", 0, 0, flag, len(body)) + body + struct.pack(">H", len(text)) + text.encode()
    return struct.pack(">I", len(rest) + 4) + rest


def one(topic: str, unique_id: str, *, queue_id: Any = 0, body: bytes = b"x", **more: str) -> bytes:
    return part(properties(UNIQ_KEY=unique_id, REAL_TOPIC=topic, REAL_QID=str(queue_id), **more), body)


PAIR = one("orders", "ID1", body=b"paid") + one("payments", "ID2", body=b"12.50")


def stored(broker: EmbeddedBroker) -> int:
    return len(broker.store.scan(0, 100)[0])


def test_halves_that_are_sent_again_are_the_same_transaction(wire: Wire, broker: EmbeddedBroker) -> None:
    first = wire.call(PREPARE, sending(), PAIR)
    assert (first.code, first.fields["transactionId"]) == (0, "ID1")
    again = wire.call(PREPARE, sending(), PAIR)
    assert (again.code, again.fields) == (0, first.fields)
    assert (stored(broker), len(broker.transactions())) == (2, 1)
    assert wire.call(END, ending(first, COMMIT)).fields == {"outcome": "committed", "already": "false"}
    assert wire.call(END, ending(first, COMMIT)).fields["already"] == "true"
    assert wire.call(END, ending(first, ROLLBACK)).fields == {"outcome": "committed"}
    assert wire.call(PREPARE, sending(), PAIR).code == ResponseCode.TRANSACTION_FAILED
    assert seen(broker) == [b"paid", b"12.50"]


HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", ILLEGAL, "cut off"),
    "cut off": (PAIR[:-1], ILLEGAL, "cut off"),
    "no topic": (PAIR + part(properties(UNIQ_KEY="ID3", REAL_QID="0")), ILLEGAL, "message 3 of the transaction has no"),
    "no queue": (part(properties(UNIQ_KEY="ID3", REAL_TOPIC="orders")), ILLEGAL, "message 1 of the transaction has no"),
    "queue no number": (one("orders", "ID1", queue_id="first"), ILLEGAL, "has no REAL_TOPIC, REAL_QID or UNIQ_KEY"),
    "no id": (PAIR + part(properties(REAL_TOPIC="orders", REAL_QID="0")), ILLEGAL, "message 3"),
    "one id twice": (PAIR + one("orders", "ID2"), ILLEGAL, 'two messages of a transaction have the id "ID2"'),
    "half topic": (PAIR + one(HALF_TOPIC, "ID3"), DENIED, "is the system's"),
    "topic as a path": (PAIR + one("../../etc", "ID3"), ILLEGAL, "topic"),
    "queue beyond": (PAIR + one("orders", "ID3", queue_id=99), ResponseCode.INVALID_PARAMETER, "queue 99 is not there"),
    "empty body": (PAIR + one("orders", "ID3", body=b""), ILLEGAL, "body"),
    "delayed": (PAIR + one("orders", "ID3", DELAY="3"), ILLEGAL, "a transactional message cannot be delayed"),
    "too many": (one("orders", "ID") * 1_001, ILLEGAL, "a transaction has 1 to 1000 messages, got 1001"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_halves_are_refused_and_none_is_stored(wire: Wire, broker: EmbeddedBroker, name: str) -> None:
    body, code, told = REFUSED[name]
    answer = wire.call(PREPARE, sending(), body)
    assert (answer.code, told in (answer.remark or "")) == (code, True), answer
    assert (stored(broker), broker.transactions()) == (0, [])


def test_another_transaction_with_an_id_of_a_pending_one_is_refused(wire: Wire, broker: EmbeddedBroker) -> None:
    assert wire.call(PREPARE, sending(), PAIR).code == 0
    assert wire.call(SEND_V2, half(unique_id="alone"), b"x").code == 0
    refused = {
        "not 3": PAIR + one("orders", "ID3"),
        "its body differs": one("orders", "ID1", body=b"paid") + one("payments", "ID2", body=b"13.50"),
        "a transaction of its own": one("orders", "ID4") + one("orders", "alone"),
    }
    for told, body in refused.items():
        answer = wire.call(PREPARE, sending(), body)
        assert (answer.code, told in (answer.remark or "")) == (ILLEGAL, True), answer
    assert wire.call(SEND_V2, half(unique_id="ID1"), b"paid").code == ILLEGAL
    assert (stored(broker), len(broker.transactions())) == (3, 2)


def test_properties_of_the_engine_cannot_be_set_on_halves(wire: Wire, broker: EmbeddedBroker) -> None:
    forged = one("payments", "ID2", TXSTORE_SET="0,0,9", PGROUP="other", TRANSACTION_CHECK_TIMES="9", mine="1")
    sent = wire.call(PREPARE, sending(), one("orders", "ID1") + forged)
    assert wire.call(END, ending(sent, COMMIT)).code == 0
    (message,), _ = broker.read("payments", 0, 0)
    assert message.producer_group == "g"
    assert (message.transaction_id, message.message_id) == ("ID1", "ID2")
    assert {name for name in message.properties if name in ("mine", "TXSTORE_SET")} == {"mine"}


# Accounts -------------------------------------------------------------------------------------------------------------

ACCOUNTS = """
[operator]
secret_key = "secret-of-operator"
admin = true

[shop-app]
secret_key = "secret-of-the-shop"
topics = { orders = "PUB", payments = "PUB|SUB", letters = "SUB" }
"""


@pytest.fixture
def guarded(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    with Server(broker, ServerConfig("127.0.0.1:0", name_server="127.0.0.1:0", accounts=path)) as server:
        yield server


def test_an_account_needs_the_permission_for_each_topic(guarded: Server, broker: EmbeddedBroker) -> None:
    assert guarded.address is not None
    with (
        Wire(guarded.address, account=("shop-app", "secret-of-the-shop")) as shop,
        Wire(guarded.address, account=("operator", "secret-of-operator")) as operator,
    ):
        for topic in ("letters", "elsewhere", HALF_TOPIC):
            # The topic that the request itself names is ignored.
            answer = shop.call(PREPARE, sending("orders"), PAIR + one(topic, "ID3"))
            assert (answer.code, topic in (answer.remark or "")) == (DENIED, True), answer
        assert shop.call(PREPARE, sending("orders"), PAIR[:-1]).code == DENIED, "what cannot be read needs an operator"
        assert stored(broker) == 0
        sent = operator.call(PREPARE, sending("orders"), PAIR + one("letters", "ID3"))
        for how in (COMMIT, ROLLBACK):
            answer = shop.call(END, ending(sent, how))
            assert (answer.code, "letters" in (answer.remark or "")) == (DENIED, True), answer
        assert [row.transaction_id for row in broker.transactions()] == ["ID1"]
        own = shop.call(PREPARE, sending("elsewhere"), PAIR.replace(b"ID1", b"OK1").replace(b"ID2", b"OK2"))
        assert shop.call(END, ending(own, COMMIT)).code == 0
        assert operator.call(END, ending(sent, ROLLBACK)).code == 0
    assert seen(broker) == [b"paid", b"12.50"]


def test_the_answer_to_a_check_needs_the_permission_for_each_topic(open_store: OpenStore, tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    broker = open_store(**SOON)
    with Server(broker, ServerConfig("127.0.0.1:0", None, None, accounts=path)) as server:
        assert server.address is not None
        with Wire(server.address, account=("operator", "secret-of-operator")) as operator:
            sent = operator.call(PREPARE, sending("orders"), PAIR + one("letters", "ID3"))
            check = operator.pushed(CHECK)
            assert (check.fields["transactionId"], b"paid" in check.body) == ("ID1", True)
            with Wire(server.address, account=("shop-app", "secret-of-the-shop")) as shop:
                assert shop.call(END, ending(sent, COMMIT, fromTransactionCheck="true")).code == DENIED
            assert operator.call(END, ending(sent, COMMIT, fromTransactionCheck="true")).code == 0
    assert len(seen(broker)) == 3


# Shared stores --------------------------------------------------------------------------------------------------------


def test_another_process_of_a_shared_store_takes_several(store: Path) -> None:
    with txstore.open(store, shared=True), txstore.open(store, shared=True) as second:
        producer = second.transaction_producer("shop", check_listener=nothing_known)
        with producer.transaction(order()):
            pass
    with txstore.open(store) as broker:
        assert seen(broker) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("code", [PREPARE, RequestCode.END_TRANSACTION])
def test_several_are_committed_once_if_an_answer_is_lost(
    store: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    with txstore.open(store, shared=True) as broker:
        producer = broker.transaction_producer("shop", check_listener=nothing_known)
        lost = _lose_answers(monkeypatch, code)
        with producer.transaction(order()) as tx:
            tx.commit()  # It raises if the end is in doubt.
        assert lost == [0]
        assert broker.transactions() == []
    with txstore.open(store) as embedded:
        assert seen(embedded) == [b"0", b"1", b"2", b"3", b"4"]
        halves = [message for message in embedded.store.scan(0, 100)[0] if message.topic == HALF_TOPIC]
        assert len(halves) == 5


def test_a_block_continues_after_the_death_of_the_writer(store: Path, start: Callable[..., Process]) -> None:
    writer = start()
    with txstore.open(store, shared=True) as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: LocalTransactionState.ROLLBACK)
        with producer.transaction(order()) as tx:
            writer.kill(signal.SIGKILL)
        assert (tx.state, tx.error) == (LocalTransactionState.COMMIT, None)
        with producer.transaction(order(2)):
            pass
    with txstore.open(store) as embedded:
        assert seen(embedded) == [b"0", b"1", b"2", b"3", b"4", b"0", b"1"]
