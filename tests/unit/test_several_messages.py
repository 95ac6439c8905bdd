"""Guards transactions of several messages: all become visible, in their order, or none."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import txstore
from txstore import (
    EmbeddedBroker,
    InvalidMessageError,
    LocalTransactionState,
    Message,
    StoreClosedError,
    TransactionMessage,
)
from txstore.testing import CrashPoint, FakeBroker, SimulatedCrash
from txstore.testing.aio import FakeBroker as AsyncFakeBroker

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
TOPICS = ("orders", "payments", "letters")
MESSAGE_HINT = "\nhint: send txstore.Message(topic, body)"


def order(count: int = 5) -> list[Message]:
    return [Message(TOPICS[at % 3], b"%d" % at, keys=[f"order-{at}"]) for at in range(count)]


def seen(broker: FakeBroker) -> list[bytes]:
    """The bodies of all visible messages, in the order in which they were stored."""
    found = [message for topic in TOPICS for message in broker.messages(topic)]
    return [message.body for message in sorted(found, key=lambda message: message.physical_offset)]


def test_leaving_the_block_commits_all_in_their_order() -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order()) as tx:
            assert seen(broker) == []
            assert tx.message.transaction_id == tx.transaction_id == tx.send_result.message_id
            assert tx.message.body == b"0"
        assert (tx.state, seen(broker)) == (COMMIT, [b"0", b"1", b"2", b"3", b"4"])
        # Each message names the transaction, and has an id of its own.
        letters = broker.messages("letters")
        assert [letter.transaction_id for letter in letters] == [tx.transaction_id]
        assert letters[0].message_id != tx.transaction_id
        assert "TXSTORE_SET" not in letters[0].properties


def test_rollback_shows_none() -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order()) as tx:
            tx.rollback()
        assert (tx.state, seen(broker), broker.stat().pending_transactions) == (ROLLBACK, [], 0)


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_one_check_settles_all(answer: LocalTransactionState) -> None:
    asked: list[TransactionMessage] = []

    def check(message: TransactionMessage) -> LocalTransactionState:
        asked.append(message)
        return answer

    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=check)
        with pytest.raises(KeyError), producer.transaction(order()) as tx:
            raise KeyError("the database")
        assert (tx.state, broker.stat().pending_transactions) == (UNKNOWN, 1)
        broker.clock.advance(6)
        broker.run_checks()
        assert [(message.transaction_id, message.body) for message in asked] == [(tx.transaction_id, b"0")]
        assert seen(broker) == ([b"0", b"1", b"2", b"3", b"4"] if answer is COMMIT else [])
        assert broker.stat().pending_transactions == 0


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("point", [CrashPoint.BEFORE_HALF, CrashPoint.AFTER_HALF, CrashPoint.BEFORE_END])
def test_crash_leaves_all_or_none_to_the_check(point: CrashPoint, power_loss: bool) -> None:
    orders: set[str | None] = set()

    def check(message: TransactionMessage) -> LocalTransactionState:
        return COMMIT if message.transaction_id in orders else ROLLBACK

    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=check)
        broker.crash_at(point, power_loss=power_loss)
        with pytest.raises(SimulatedCrash), producer.transaction(order()) as tx:
            orders.add(tx.transaction_id)
        with broker.reopen() as again:
            again.transaction_producer("shop", check_listener=check)
            again.clock.advance(6)
            again.run_checks()
            assert seen(again) == ([b"0", b"1", b"2", b"3", b"4"] if orders else [])


def test_message_groups_keep_their_queues() -> None:
    with FakeBroker() as broker:
        broker.create_topic("orders", queues=4)
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        messages = [Message("orders", b"%d" % at, message_group=f"customer-{at % 2}") for at in range(6)]
        for _ in range(2):
            with producer.transaction(messages):
                pass
        queues: dict[int, list[bytes]] = {}
        for message in broker.messages("orders"):
            queues.setdefault(message.queue_id, []).append(message.body)
        assert sorted(queues.values()) == [[b"0", b"2", b"4"] * 2, [b"1", b"3", b"5"] * 2]


def test_a_message_group_has_the_order_of_the_commits() -> None:
    with FakeBroker() as broker:
        broker.create_topic("orders", queues=8)
        asked: list[TransactionMessage] = []

        def check(message: TransactionMessage) -> LocalTransactionState:
            asked.append(message)
            return COMMIT

        def ordered(*bodies: bytes) -> list[Message]:
            return [Message("orders", body, message_group="customer-1") for body in bodies]

        producer = broker.transaction_producer("shop", check_listener=check)
        with pytest.raises(KeyError), producer.transaction(ordered(b"checked")):
            raise KeyError("the database")
        with producer.transaction(ordered(b"outer 1", b"outer 2")):
            with producer.transaction(ordered(b"inner")[0]):
                broker.producer("plain").send(ordered(b"plain")[0])
            sent = producer.send_in_transaction(ordered(b"by a listener")[0], executer=lambda message, arg: COMMIT)
        broker.clock.advance(6)
        broker.run_checks()
        found = broker.messages("orders")
        assert [message.body for message in asked] == [b"checked"]
        assert {message.queue_id for message in found} == {sent.send_result.queue_id}
        bodies = [message.body for message in sorted(found, key=lambda message: message.queue_offset)]
        assert bodies == [b"plain", b"inner", b"by a listener", b"outer 1", b"outer 2", b"checked"]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ([], InvalidMessageError, "a transaction has at least one message, got none"),
        ([Message("orders", b"1"), "no message"], InvalidMessageError, f"expected a Message, got str{MESSAGE_HINT}"),
        ("orders", InvalidMessageError, f"expected a Message, got str{MESSAGE_HINT}"),
        (None, InvalidMessageError, f"expected a Message, got NoneType{MESSAGE_HINT}"),
        (b"orders", InvalidMessageError, f"expected a Message, got bytes{MESSAGE_HINT}"),
        ([Message("orders", b"1")] * 1_001, InvalidMessageError, "a transaction has 1 to 1000 messages, got 1001"),
        (
            [Message("orders", b"1"), Message("orders", b"2").with_transaction_id("A1")],
            InvalidMessageError,
            "message A1 was sent before, so it cannot be one of 2 messages of a transaction\n"
            "hint: create the message again, or send it in a transaction of its own",
        ),
    ],
)
def test_wrong_lists_are_refused_and_nothing_is_stored(given: Any, error: type[Exception], told: str) -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with pytest.raises(error, match=f"^{re.escape(told)}$"), producer.transaction(given):
            pass
        assert broker.stat().pending_transactions == 0


def test_too_large_a_message_stores_none_of_them() -> None:
    with FakeBroker(max_message_size=100) as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with pytest.raises(InvalidMessageError), producer.transaction([*order(2), Message("orders", b"x" * 101)]):
            pass
        assert (broker.stat().pending_transactions, seen(broker)) == (0, [])


def test_a_list_of_one_is_an_ordinary_transaction() -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order(1)) as tx:
            pass
        assert (tx.state, seen(broker)) == (COMMIT, [b"0"])


def test_a_list_of_one_that_was_sent_before_is_the_same_transaction() -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        first = producer.transaction(order(1)).__enter__()
        with producer.transaction([first.message]) as again:
            assert again.transaction_id == first.transaction_id
        assert seen(broker) == [b"0"]


def test_a_closed_producer_refuses() -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order()):
            pass  # The producer knows the queues from now on.
        producer.close()
        with pytest.raises(StoreClosedError), producer.transaction(order()):
            pass
        assert len(seen(broker)) == 5


def test_messages_are_in_the_queues_that_their_sender_chose() -> None:
    with FakeBroker(default_topic_queue_nums=4) as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order(3), queue_id=3):
            pass
        with producer.transaction(order(3), selector=lambda queues, message, arg: queues[arg], arg=2):
            pass
        queues = [[message.queue_id for message in broker.messages(topic)] for topic in TOPICS]
        assert queues == [[3, 2]] * 3


def test_delay_levels_are_cleared_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker() as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        delayed = [message.replace(delay_level=3) for message in order(2)]
        with pytest.warns(UserWarning, match="delay level is cleared") as warned, producer.transaction(delayed):
            pass
        assert {warning.filename for warning in warned} == {__file__}
        assert [record.__dict__["group"] for record in caplog.records] == ["shop", "shop"]
        assert seen(broker) == [b"0", b"1"]


def test_the_loop_commits_all() -> None:
    async def main() -> None:
        async with AsyncFakeBroker() as broker:
            producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
            async with producer.transaction(order()) as tx:
                assert broker.messages("orders") == []
            assert tx.state is COMMIT
            assert [message.body for message in broker.messages("orders")] == [b"0", b"3"]

    asyncio.run(main())


def test_all_survive_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "s.store"
    with txstore.open(path) as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: UNKNOWN)
        with producer.transaction(order(100)):
            pass
        tx = producer.transaction(order(3))
        tx.__enter__()
    with txstore.open(path) as broker:
        assert [row.transaction_id for row in broker.transactions()] == [tx.transaction_id]
        broker.end_transaction(tx.transaction_id, COMMIT)
        assert sum(bodies(broker, topic) for topic in TOPICS) == 103


def bodies(broker: EmbeddedBroker, topic: str) -> int:
    return sum(queue.end - queue.first for queue in broker.queues(topic))
