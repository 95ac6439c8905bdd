"""Guards consumer groups: each message goes to one member, and none is skipped when members join or leave, offsets are
reset, or a queue is found later.
"""

import gc
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.copies import killed_copy
from tests.waiting import eventually
from txstore import (
    ConsumeFromWhere,
    ConsumeResult,
    EmbeddedBroker,
    InvalidNameError,
    InvalidOptionError,
    Message,
    MessageModel,
    StoreClosedError,
)
from txstore.consumer.allocation import allocate_averagely
from txstore.testing import FakeBroker


@pytest.fixture(params=["fake", "store"])
def any_broker(request: pytest.FixtureRequest) -> Any:
    """The same rules hold on the embedded broker and on the fake one."""
    if request.param == "fake":
        return FakeBroker()
    return request.getfixturevalue("broker")


def fill(broker: Any, count: int, queues: int = 4, begin: int = 0) -> None:
    producer = broker.producer("p")
    for number in range(begin, begin + count):
        producer.send(Message("t", str(number).encode()), queue_id=number % queues)


def numbers(messages: Any) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.mark.parametrize(
    ("queues", "members", "shares"),
    [(4, 1, [4]), (4, 2, [2, 2]), (4, 3, [2, 1, 1]), (5, 3, [2, 2, 1]), (2, 3, [1, 1, 0]), (0, 2, [0, 0])],
)
def test_queues_are_assigned_evenly(queues: int, members: int, shares: list[int]) -> None:
    every = range(members)
    found = [list(allocate_averagely(range(queues), every, member)) for member in every]
    assert [len(share) for share in found] == shares
    assert [queue for share in found for queue in share] == list(range(queues)), (
        "in contiguous ranges, as RocketMQ assigns them"
    )
    assert list(allocate_averagely(range(queues), every, 99)) == []


def test_members_rebalance_over_a_connection(any_broker: Any) -> None:
    fill(any_broker, 40)
    first = any_broker.consumer("c", "t")
    assert numbers(first.poll(4)) == [0, 4, 8, 12]
    second = any_broker.consumer("c", "t")
    seen = numbers(second.poll(99))
    assert len(second.queue_ids) == 2
    first.acknowledge()
    seen += numbers(first.poll(99))
    assert sorted(seen) == sorted(set(range(40)) - {0, 4, 8, 12}), "each message has one reader"
    assert sorted(first.queue_ids + second.queue_ids) == [0, 1, 2, 3]
    second.close()
    assert len(numbers(first.poll(99))) == 20, "what the other had not acknowledged"
    assert first.queue_ids == (0, 1, 2, 3)
    first.close()


def test_queue_moves_when_its_messages_are_acknowledged(any_broker: Any) -> None:
    fill(any_broker, 8, queues=1)
    last = any_broker.consumer("c", "t")
    assert numbers(last.poll(2)) == [0, 1]
    others = [any_broker.consumer("c", "t") for _ in range(3)]
    last.close()
    last = any_broker.consumer("c", "t")
    assert [numbers(member.poll(2)) for member in others] == [[0, 1], [], []]
    others[0].acknowledge()
    others[0].close()
    assert [numbers(member.poll(2)) for member in others[1:]] == [[2, 3], []]
    first = any_broker.consumer("c", "t")
    assert numbers(first.poll(2)) == []
    for member in (*others[1:], last, first):
        member.close()


def test_forgotten_consumer_keeps_no_queue(any_broker: Any) -> None:
    fill(any_broker, 8)
    any_broker.consumer("c", "t").poll(8)
    gc.collect()
    with any_broker.consumer("c", "t") as consumer:
        assert sorted(numbers(consumer.poll(99))) == list(range(8))


def test_members_with_other_subscriptions_are_refused(any_broker: Any) -> None:
    with any_broker.consumer("c", "t", tags="a || b"):
        with pytest.raises(InvalidOptionError, match=r"has the tags 'a \|\| b'"):
            any_broker.consumer("c", "t", tags="a")
        with pytest.raises(InvalidOptionError, match="is CLUSTERING"):
            any_broker.consumer("c", "t", tags="a || b", message_model=MessageModel.BROADCASTING, instance_name="m")
        any_broker.consumer("c", "u", tags="a").close()
    any_broker.consumer("c", "t", tags="a").close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tags": "||"}, "contain no tag"),
        ({"tags": 7}, "must be a str"),
        ({"start": "first!"}, "ConsumeFromWhere.FIRST"),
        ({"instance_name": "m"}, "BROADCASTING"),
        ({"message_model": MessageModel.BROADCASTING}, 'instance_name="worker-1"'),
    ],
)
def test_error_for_a_wrong_option_says_what_is_accepted(any_broker: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        any_broker.consumer("c", "t", **options)
    for topic in ("SCHEDULE_TOPIC_XXXX", "a/b"):
        with pytest.raises(InvalidNameError):
            any_broker.consumer("c", topic)


def test_broadcasting_gives_every_member_every_message(any_broker: Any) -> None:
    fill(any_broker, 8)
    model = MessageModel.BROADCASTING
    members = [any_broker.consumer("c", "t", message_model=model, instance_name=name) for name in ("a", "b")]
    for member in members:
        assert sorted(numbers(member.poll(99))) == list(range(8))
    with pytest.raises(InvalidOptionError, match="the instance name 'a'"):
        any_broker.consumer("c", "t", message_model=model, instance_name="a")
    members[0].acknowledge()
    for member in members:
        member.close()
    with any_broker.consumer("c", "t", message_model=model, instance_name="a") as member:
        assert member.poll(99) == []
    with any_broker.consumer("c", "t", message_model=model, instance_name="b") as member:
        (message, *_) = member.poll(99)
        message.retry()
    assert {row.group for row in any_broker.lag("c")} >= {"c%a", "c%b"}


def test_start_at_the_last_skips_nothing_that_comes_later(any_broker: Any) -> None:
    fill(any_broker, 4)
    first = any_broker.consumer("c", "t", start=ConsumeFromWhere.LAST)
    fill(any_broker, 4, begin=10)
    second = any_broker.consumer("c", "t", start=ConsumeFromWhere.LAST)
    assert sorted(numbers(first.poll(99)) + numbers(second.poll(99))) == [10, 11, 12, 13]
    first.close()
    second.close()


def test_queue_found_later_is_read_from_its_first_message(open_store: Any) -> None:
    broker = open_store()
    with broker.consumer("early", "t", start=ConsumeFromWhere.LAST) as early:
        broker.create_topic("t", 2)
        fill(broker, 2, queues=2)
        assert sorted(numbers(early.poll(9))) == [0, 1]
    with broker.consumer("c", "t", start=ConsumeFromWhere.LAST) as consumer:
        broker.create_topic("t", 4)
        fill(broker, 4)
        assert sorted(numbers(consumer.poll(9))) == [0, 1, 2, 3]
    broker.create_topic("t", 6)
    broker.producer("p").send(Message("t", b"5"), queue_id=5)
    broker.close()
    broker = open_store()
    with broker.consumer("c", "t", start=ConsumeFromWhere.LAST) as consumer:
        assert numbers(consumer.poll(9)) == [5]


def test_start_at_the_last_survives_a_crash(open_store: Any, tmp_path: Any) -> None:

    import txstore

    broker = open_store()
    fill(broker, 4)
    consumer = broker.consumer("c", "t", start=ConsumeFromWhere.LAST)
    fill(broker, 2, begin=10)
    assert len(consumer.poll(9)) == 2
    broker.flush()
    killed_copy(tmp_path / "store", tmp_path / "crashed")
    with (
        txstore.open(tmp_path / "crashed") as again,
        again.consumer("c", "t", start=ConsumeFromWhere.LAST) as consumer,
    ):
        assert sorted(numbers(consumer.poll(9))) == [10, 11]


def test_start_at_a_time() -> None:
    broker = FakeBroker()
    fill(broker, 4)
    broker.clock.advance(60)
    middle = datetime.fromtimestamp(broker.clock.time_ms() / 1000, UTC)
    fill(broker, 4, begin=10)
    with broker.consumer("c", "t", start=middle) as consumer:
        assert sorted(numbers(consumer.poll(99))) == [10, 11, 12, 13]


def test_offsets_are_reset_by_offset_and_time(any_broker: Any) -> None:
    fill(any_broker, 8, queues=2)
    now = datetime.now(UTC)
    with any_broker.consumer("c", "t") as consumer:
        polled = consumer.poll(99)
        assert len(polled) == 8
        assert any_broker.reset_offsets("c", "t", 2, queue_id=0) == {0: 2}
        consumer.acknowledge()
        assert any_broker.consumer_offset("t", "c", 0) == 2, "messages delivered before the reset do not move it"
        assert numbers(consumer.poll(99)) == [4, 6]
        any_broker.reset_offsets("c", "t", ConsumeFromWhere.FIRST)
        assert sorted(numbers(consumer.poll(99))) == list(range(8))
        any_broker.reset_offsets("c", "t", ConsumeFromWhere.LAST)
        assert consumer.poll(99) == []
        any_broker.reset_offsets("c", "t", datetime(2001, 1, 1, tzinfo=UTC))
        assert len(consumer.poll(99)) == 8
        any_broker.reset_offsets("c", "t", now.replace(year=now.year + 1))
        assert consumer.poll(99) == []
    for wrong, options, says in [
        (9, {"queue_id": 0}, "outside t/0\nhint: 0 .its first. to 4"),
        (-1, {"queue_id": 0}, "outside"),
        (1, {}, "queue_id=0"),
        ("first", {}, "ConsumeFromWhere.FIRST"),
        (True, {"queue_id": 0}, "cannot reset to"),
    ]:
        with pytest.raises(InvalidOptionError, match=says):
            any_broker.reset_offsets("c", "t", wrong, **options)
    for group, topic, options, says in [
        ("nobody", "t", {}, "unknown consumer group nobody\nhint: the groups are c"),
        ("c", "nowhere", {}, "unknown topic nowhere\nhint: the topics are"),
        ("c", "t", {"queue_id": 77}, "no queue 77"),
        ("c", "RMQ_SYS_TRANS_HALF_TOPIC", {}, "system topic"),
    ]:
        with pytest.raises(InvalidNameError, match=says):
            any_broker.reset_offsets(group, topic, ConsumeFromWhere.FIRST, **options)


def test_lag_by_group_and_queue(any_broker: Any) -> None:
    fill(any_broker, 10, queues=2)
    with pytest.raises(InvalidNameError, match="unknown consumer group c\nhint: there are no groups"):
        any_broker.lag("c")
    with any_broker.consumer("c", "t") as consumer:
        assert sum(row.lag for row in any_broker.lag("c")) == 10
        consumer.poll(3)
        consumer.poll(1)
        rows = {(row.topic, row.queue_id): row.lag for row in any_broker.lag("c")}
        assert (rows["t", 0], rows["t", 1]) == (2, 5)
        assert sum(rows.values()) == 7


def test_lag_of_all_groups_equals_the_lag_of_each(any_broker: Any) -> None:
    """Also when one group's name is a prefix of another's, and when `c%d` is both a group and a member of `c`."""
    fill(any_broker, 9, queues=2)
    model = MessageModel.BROADCASTING
    for group in ("c", "cc", "d"):
        with any_broker.consumer(group, "t") as consumer:
            consumer.poll(len(group))
            consumer.poll(1)[0].retry()
    for group, instance in (("c", "d"), ("c%d", "e"), ("b", "x%y")):
        with any_broker.consumer(group, "t", message_model=model, instance_name=instance) as consumer:
            consumer.poll(3)
    with any_broker.consumer("e", "t"):
        by_group = any_broker.lag_by_group()
        assert by_group == {group: any_broker.lag(group) for group in ("b", "c", "c%d", "cc", "d", "e")}
    assert {row.group for row in by_group["c"]} == {"c", "c%d", "c%d%e"}
    assert {row.topic for row in by_group["e"]} >= {"t"}, "it has read nothing yet"
    assert sum(row.lag for row in by_group["cc"] if row.group == "cc" and row.topic == "t") == 6


def test_lag_of_all_groups_reads_the_offsets_once(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are the offsets of all groups: reading them for each group took 10 s with 10,000 groups."""
    read: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            if name == "consumer_offsets":
                read.append(1)
            return getattr(broker.store, name)

    broker.create_groups([f"g{number}" for number in range(10)])
    monkeypatch.setattr(broker._progress, "_store", Counting())
    assert len(broker.lag_by_group()) == 10
    assert len(read) == 1


def test_handler_in_threads_sees_each_message_once(broker: EmbeddedBroker) -> None:
    fill(broker, 400)
    seen: list[int] = []
    lock = threading.Lock()

    def handle(message: Any) -> None:
        with lock:
            seen.append(int(message.body))

    with broker.consumer("c", "t") as one, broker.consumer("c", "t") as two:
        runs = [
            threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 4, "timeout": 0.5})
            for consumer in (one, two)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
    assert sorted(seen) == list(range(400))
    assert sum(row.lag for row in broker.lag("c")) == 0


def test_slow_message_holds_back_the_offset_not_the_others(broker: EmbeddedBroker) -> None:
    fill(broker, 20, queues=1)
    go, one_at_a_time, seen = threading.Event(), threading.Lock(), []

    def handle(message: Any) -> None:
        if message.body == b"3":
            go.wait(60)
        with one_at_a_time:
            seen.append(int(message.body))
            is_last = len(seen) == 19
        if is_last:
            # The messages before it may be handled, but not yet noted as that.
            eventually(lambda: broker.consumer_offset("t", "c", 0) == 3)
            go.set()

    with broker.consumer("c", "t") as consumer:
        consumer.run(handle, threads=4, timeout=0.3)
    assert seen[-1] == 3
    assert broker.consumer_offset("t", "c", 0) == 20


def test_orderly_keeps_each_queues_order_after_failures(broker: EmbeddedBroker) -> None:
    fill(broker, 24, queues=2)
    seen: dict[int, list[int]] = {0: [], 1: []}
    failed: list[bytes] = []
    running: list[int] = []

    def handle(message: Any) -> ConsumeResult:
        assert message.queue_id not in running, "one message of a queue at a time"
        running.append(message.queue_id)
        time.sleep(0.001)
        running.remove(message.queue_id)
        if message.body == b"4" and not failed:
            failed.append(message.body)
            return ConsumeResult.RECONSUME_LATER
        seen[message.queue_id].append(int(message.body))
        return ConsumeResult.SUCCESS

    with broker.consumer("c", "t") as consumer:
        consumer.run(handle, threads=8, orderly=True, timeout=1.5)
    assert seen == {0: list(range(0, 24, 2)), 1: list(range(1, 24, 2))}
    assert failed == [b"4"]


def test_orderly_stops_after_the_requested_retries(broker: EmbeddedBroker) -> None:
    fill(broker, 3, queues=1)
    seen: list[int] = []

    def handle(message: Any) -> None:
        seen.append(int(message.body))
        if message.body == b"1":
            raise KeyError("never")

    with broker.consumer("c", "t", max_reconsume_times=1) as consumer:
        consumer.run(handle, orderly=True, timeout=1.5)
    assert seen == [0, 1, 1, 2]
    assert [letter.body for letter in broker.dead_letters("c")] == [b"1"]


def test_closing_lets_running_handlers_finish(broker: EmbeddedBroker) -> None:
    fill(broker, 2_000, queues=1)
    begun, finished = threading.Event(), []

    def handle(message: Any) -> None:
        begun.set()
        time.sleep(0.02)
        finished.append(int(message.body))

    consumer = broker.consumer("c", "t")
    run = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2})
    run.start()
    begun.wait(60)
    with pytest.raises(InvalidOptionError, match="run by a handler"):
        consumer.poll()
    consumer.close()
    run.join(60)
    assert not run.is_alive()
    assert broker.consumer_offset("t", "c", 0) == len(finished) < 2_000
    with pytest.raises(StoreClosedError):
        consumer.run(handle)


def test_handler_may_close_its_own_consumer(broker: EmbeddedBroker) -> None:
    fill(broker, 5, queues=1)
    consumer = broker.consumer("c", "t")
    consumer.run(lambda _: consumer.close(), threads=1)
    assert consumer.closed
    assert broker.consumer_offset("t", "c", 0) == 1


def test_exception_that_ends_the_program_ends_the_run(broker: EmbeddedBroker) -> None:
    fill(broker, 5, queues=1)

    def handle(message: Any) -> None:
        raise SystemExit(3)

    with broker.consumer("c", "t") as consumer:
        with pytest.raises(SystemExit):
            consumer.run(handle, threads=2)
        assert broker.consumer_offset("t", "c", 0) is None
        assert numbers(consumer.poll(9)) == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidOptionError, match="must be callable"):
            consumer.run("handler")  # type: ignore[arg-type]
        for threads in (0, True, 2000):
            with pytest.raises(InvalidOptionError, match="threads"):
                consumer.run(handle, threads=threads)
