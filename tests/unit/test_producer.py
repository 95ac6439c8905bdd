"""Guards the choice of a queue: a message goes to the queue that its sender means, and no queue stays idle."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from txstore import (
    EmbeddedBroker,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    MessageQueue,
    SentMessage,
    StoreClosedError,
    TransactionProducer,
)
from txstore._native import java_hash_code
from txstore.errors import DiskFullError
from txstore.testing import FakeBroker


def test_round_robin_uses_every_queue_separately_for_each_topic() -> None:
    producer = FakeBroker(default_topic_queue_nums=3).producer("g")
    first = [producer.send(Message("a", b"x")).queue_id for _ in range(4)]
    other = [producer.send(Message("b", b"x")).queue_id for _ in range(2)]
    rest = [producer.send(Message("a", b"x")).queue_id for _ in range(2)]
    assert first + rest == [0, 1, 2, 0, 1, 2]
    assert other == [0, 1]


def test_message_group_stays_in_one_queue() -> None:
    fake = FakeBroker(default_topic_queue_nums=4)
    producer = fake.producer("g")
    for group in ("a", "polygenelubricants", "o-17", "\u00e9"):  # The hash of the second is the most negative int.
        queues = {producer.send(Message("t", b"x", message_group=group)).queue_id for _ in range(5)}
        assert queues == {java_hash_code(group) % 4}


def test_selector_chooses_and_gets_the_argument() -> None:
    producer = FakeBroker(default_topic_queue_nums=4).producer("g")

    def by_order(queues: Any, message: Message, arg: Any) -> MessageQueue:
        chosen = queues[arg % len(queues)]
        assert isinstance(chosen, MessageQueue)
        return chosen

    assert producer.send(Message("t", b"x"), selector=by_order, arg=6).queue_id == 2
    assert producer.send(Message("t", b"x"), selector=lambda queues, message, arg: 3).queue_id == 3
    with pytest.raises(InvalidNameError):
        producer.send(Message("t", b"x"), selector=lambda queues, message, arg: 4)
    with pytest.raises(InvalidNameError):
        producer.send(Message("t", b"x"), selector=lambda queues, message, arg: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("queue_id", [-1, 4, 2**40])
def test_P2_missing_queue_is_refused(queue_id: int) -> None:
    with pytest.raises(InvalidNameError, match="its queues are 0, 1, 2, 3"):
        FakeBroker().producer("g").send(Message("t", b"x"), queue_id=queue_id)


def test_batch_keeps_the_order_of_a_topic_in_one_queue() -> None:
    fake = FakeBroker()
    sent = fake.producer("g").send_batch([Message("a", b"1"), Message("b", b"2"), Message("a", b"3")])
    assert sent[0].queue_id == sent[2].queue_id
    assert [message.body for message in fake.messages("a")] == [b"1", b"3"]
    assert fake.producer("g").send_batch([]) == []


def queues_of(sent: Sequence[SentMessage]) -> list[int]:
    return [one.queue_id for one in sent]


def test_batches_take_turns_and_each_stays_in_one_queue() -> None:
    producer = FakeBroker(default_topic_queue_nums=3).producer("g")
    a, b = Message("a", b"x"), Message("b", b"x")
    batches = [queues_of(producer.send_batch([a, a])) for _ in range(4)]
    assert batches == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert producer.send(a).queue_id == 1
    assert queues_of(producer.send_batch([a, b, a, b])) == [2, 0, 2, 0]
    assert queues_of(producer.send_batch([a, b, a, b])) == [0, 1, 0, 1]


def test_batch_goes_to_the_queues_that_its_sender_names() -> None:
    producer = FakeBroker(default_topic_queue_nums=4).producer("g")
    plain = Message("t", b"x")
    grouped = [Message("t", b"x", message_group=group) for group in ("o-17", "o-18", "o-17")]
    own = [java_hash_code(str(message.message_group)) % 4 for message in grouped]
    for _ in range(3):  # The first batch asks the broker for the queues, and the others know them.
        assert queues_of(producer.send_batch([plain, *grouped], queue_id=2)) == [2, 2, 2, 2]
        assert queues_of(producer.send_batch([plain, plain], queue_id=3)) == [3, 3]
        by_body = producer.send_batch(
            [Message("t", body) for body in (b"1", b"3", b"1")],
            selector=lambda queues, message, arg: queues[int(message.body) - arg],
            arg=1,
        )
        assert queues_of(by_body) == [0, 2, 0]
        assert queues_of(producer.send_batch(grouped)) == own
        turn, *others, last = queues_of(producer.send_batch([plain, *grouped, plain]))
        assert (others, last) == (own, turn)


def test_named_queue_outweighs_the_turn_once_the_queues_are_known() -> None:
    producer = FakeBroker(default_topic_queue_nums=4).producer("g")
    message = Message("t", b"x")
    assert producer.send(message).queue_id == 0
    assert producer.send(message, queue_id=3).queue_id == 3
    assert producer.send(message, selector=lambda queues, message, arg: 2).queue_id == 2
    assert producer.send(message).queue_id == 1, "a message with a queue of its own takes nobody's turn"


def test_value_that_is_not_a_message_is_refused() -> None:
    producer = FakeBroker().transaction_producer("g")
    run: Callable[..., Any] = lambda message, arg: LocalTransactionState.COMMIT  # noqa: E731
    for send in (producer.send, functools.partial(producer.send_in_transaction, executer=run)):
        with pytest.raises(InvalidMessageError, match="expected a Message, got bytes"):
            send(b"x")  # type: ignore[arg-type]


def test_broker_is_told_the_group_of_each_message() -> None:
    """A remote broker puts it into its requests."""

    groups: list[str] = []

    class Told(FakeBroker):
        def appender(self, producer_group: str) -> Any:
            groups.append(producer_group)
            return super().appender(producer_group)

        def append_many(self, messages: Any, queue_ids: Any, producer_group: str = "") -> Any:
            groups.append(producer_group)
            return super().append_many(messages, queue_ids, producer_group)

    producer = Told().producer("g")
    for _ in range(2):  # The first time the producer asks the broker for the queues.
        producer.send_batch([Message("t", b"x")])
    assert groups == ["g"] * 3


def test_producer_leaves_its_group_with_its_block() -> None:
    with FakeBroker().producer("g") as producer:
        assert producer.closed is False
        producer.send(Message("t", b"x"))
    assert producer.closed is True


def test_empty_batch_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBroker()
    producer = fake.producer("g")
    monkeypatch.delattr(FakeBroker, "append_many")
    assert producer.send_batch([]) == []


def test_producer_lists_its_topics_and_asks_for_their_queues_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, asked = FakeBroker(), list[str]()
    write_queues = fake.write_queues

    def counted(topic: str) -> Sequence[int]:
        asked.append(topic)
        return write_queues(topic)

    monkeypatch.setattr(fake, "write_queues", counted)
    producer = fake.producer("g")
    assert producer.topics == frozenset()
    for message in (Message("a", b"x"), Message("b", b"x", message_group="o"), Message("a", b"x", message_group="o")):
        producer.send(message)
        producer.send(message, queue_id=1)
    assert producer.topics == {"a", "b"}
    assert asked == ["a", "b"]


def test_topic_without_a_queue_for_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBroker()
    monkeypatch.setattr(fake, "write_queues", lambda topic: [])
    producer = fake.producer("g")
    for message in (Message("t", b"x"), Message("t", b"x", message_group="o")):
        with pytest.raises(InvalidNameError, match="topic t has no queue that accepts messages"):
            producer.send(message)
    assert producer.topics == frozenset()


def test_queue_id_must_be_a_number_and_not_a_truth_value() -> None:
    producer = FakeBroker().producer("g")
    with pytest.raises(InvalidNameError, match="no queue True"):
        producer.send(Message("t", b"x"), queue_id=True)
    chosen = producer.send(Message("t", b"x"), queue_id=3, selector=lambda queues, message, arg: 1)
    assert chosen.queue_id == 3, "a queue that is named outweighs a selector"


@pytest.mark.parametrize("group", ["", "no spaces", "a/b"])
def test_invalid_group_is_refused_before_it_is_joined(group: str) -> None:
    fake = FakeBroker()
    with pytest.raises(InvalidNameError):
        fake.producer(group)
    assert fake._producers.all() == []


def test_closed_producer_asks_its_broker_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, left = FakeBroker(), list[object]()
    monkeypatch.setattr(fake, "unregister_producer", left.append)
    producer = fake.producer("g")
    producer.send(Message("known", b"x"))
    for _ in range(2):
        producer.close()
    assert left == [producer]
    known, new = Message("known", b"x"), Message("new", b"x")
    calls: list[Callable[[], object]] = [
        *(functools.partial(producer.send, message, queue_id=queue) for message in (known, new) for queue in (None, 1)),
        *(functools.partial(producer.send_batch, batch) for batch in ([known], [new], [known, new], [])),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError, match="producer of group g is closed"):
            call()
    assert [len(fake.messages(topic)) for topic in ("known", "new")] == [1, 0]
    assert not fake.has_topic("new")


def test_closed_producer_is_reported() -> None:
    producer = FakeBroker().producer("g")
    producer.send(Message("t", b"x"))
    producer.close()
    producer.close()
    for call in (lambda: producer.send(Message("t", b"x")), lambda: producer.send_batch([Message("u", b"x")])):
        with pytest.raises(StoreClosedError):
            call()


def test_added_queues_are_used_at_once(broker: EmbeddedBroker) -> None:
    producer = broker.producer("g")
    producer.send(Message("t", b"x"))
    broker.create_topic("t", 8)
    assert Counter(producer.send(Message("t", b"x")).queue_id for _ in range(16)) == dict.fromkeys(range(8), 2)


def test_executer_can_be_passed_to_the_call() -> None:
    fake = FakeBroker()
    producer = fake.transaction_producer("g")

    class Old:
        def execute_local_transaction_branch(self, message: Any, arg: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT if arg else LocalTransactionState.ROLLBACK

    first = producer.send_in_transaction(Message("t", b"1"), 1, executer=Old())
    second = producer.send_in_transaction(Message("t", b"2"), 0, executer=Old())
    third = producer.send_in_transaction(Message("t", b"3"), executer=lambda message, arg: LocalTransactionState.COMMIT)
    states = [fake.transaction(sent.transaction_id).state for sent in (first, second, third)]
    assert states == ["committed", "rolled_back", "committed"]
    with pytest.raises(ValueError, match="no listener"):
        producer.send_in_transaction(Message("t", b"4"))


def test_delay_level_is_cleared_with_a_warning() -> None:
    fake = FakeBroker()
    producer = fake.transaction_producer("g")
    run: Callable[..., Any] = lambda message, arg: LocalTransactionState.COMMIT  # noqa: E731
    with pytest.warns(UserWarning, match="delay level is cleared\nhint: .*session=session"):
        sent = producer.send_in_transaction(Message("t", b"x", delay_level=3), executer=run)
    assert sent.message.delay_level == 0
    with pytest.warns(UserWarning, match="delay level"), producer.transaction(Message("t", b"y", delay_level=1)) as tx:
        assert tx.message.delay_level == 0


def test_checkers_are_asked_by_topic_and_tag() -> None:
    fake = FakeBroker()
    producer = fake.transaction_producer("g")
    producer.add_checker(lambda message: LocalTransactionState.COMMIT, topic="orders", tags="paid")
    producer.add_checker(lambda message: LocalTransactionState.ROLLBACK, topic="orders")
    sent = [
        producer.send_in_transaction(message, executer=lambda message, arg: None)  # type: ignore[arg-type]
        for message in (Message("orders", b"1", tags="paid"), Message("orders", b"2"), Message("other", b"3"))
    ]
    fake.clock.advance(6)
    assert fake.run_checks() == 2
    states = [fake.transaction(one.transaction_id).state for one in sent]
    assert states == ["committed", "rolled_back", "pending"]


def test_invalid_listener_is_refused_before_the_group_is_joined() -> None:
    fake = FakeBroker()
    with pytest.raises(ValueError, match="expected a transaction listener"):
        TransactionProducer(fake, "g", object())  # type: ignore[arg-type]
    assert fake._producers.all() == []


def test_failed_rollback_is_not_committed_when_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker()
    producer = broker.transaction_producer("g")
    end, fails = broker.end_transaction, [True]

    def failing(*args: Any, **options: Any) -> Any:
        if fails:
            fails.pop()
            raise DiskFullError("full")
        return end(*args, **options)

    monkeypatch.setattr(broker, "end_transaction", failing)
    with producer.transaction(Message("t", b"x")) as tx, contextlib.suppress(DiskFullError):
        tx.rollback()
    assert broker.transaction(tx.transaction_id).state == "rolled_back"


def test_result_raises_what_left_its_transaction_to_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBroker()
    producer = fake.transaction_producer("g", check_listener=lambda message: LocalTransactionState.COMMIT)
    message = Message("t", b"x")
    committed = producer.send_in_transaction(message, executer=lambda message, arg: LocalTransactionState.COMMIT)
    assert committed.raise_for_error() is committed

    def fails(message: object, arg: object) -> LocalTransactionState:
        raise KeyError("no account")

    with pytest.raises(KeyError, match="no account"):
        producer.send_in_transaction(message, executer=fails).raise_for_error()
    silent = producer.send_in_transaction(message, executer=lambda message, arg: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match=r"returned NoneType.*\nhint: return"):
        silent.raise_for_error()

    def full(*arguments: object, **options: object) -> None:
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(producer, "_end", full)
    unsaid = producer.send_in_transaction(message, executer=lambda message, arg: LocalTransactionState.COMMIT)
    with pytest.raises(DiskFullError):
        unsaid.raise_for_error()


def test_producer_whose_transactions_are_never_checked_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    fake, message = FakeBroker(), Message("t", b"x")
    answers = fake.transaction_producer("g", check_listener=lambda message: LocalTransactionState.COMMIT)
    later = fake.transaction_producer("g")
    later.add_checker(lambda message: LocalTransactionState.COMMIT)
    for producer in (answers, later):
        with producer.transaction(message):
            pass
    assert "answers no checks" not in caplog.text
    nobody = fake.transaction_producer("nobody")
    for _ in range(2):
        with nobody.transaction(message):
            pass
    assert caplog.text.count("a producer of group nobody sends transactions and answers no checks") == 1
