"""A broker in memory and a clock turned by hand, for the tests of programs that use txstore.

In: the calls of a producer or consumer. Out: what an embedded broker would answer, without a file or a thread. Always:
a half message is invisible until it is committed, each transaction ends once, offsets are counted as in a store. Not
here: the disk, the log's bytes, crashes; checks run when `run_checks()` says so.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from txstore._native import Message, delay_level_ms, unique_id
from txstore.backlog import Backlog
from txstore.consumer import ConsumerGroups
from txstore.errors import (
    AlreadyEndedError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    StoreClosedError,
    TransactionNotFoundError,
    WrongGroupError,
)
from txstore.interface import ConsumerMember, ProducerMember, Pull
from txstore.listener import judged
from txstore.message import (
    HalfMessage,
    LocalTransactionState,
    SentMessage,
    TransactionState,
    transaction_id_of,
)
from txstore.producer import LocalDatabase, Producer, TransactionProducer
from txstore.producer_registry import Producers

__all__ = ["FakeBroker", "FakeEnd", "FakeMessage", "FakeSent", "ManualClock"]

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_RECORD_BYTES = 100  # Each message takes so much of the log that is not there.


class ManualClock:
    """A clock that stands until it is told to go on."""

    def __init__(self, time_ms: int = 1_700_000_000_000) -> None:
        self._time_ms = time_ms
        self._monotonic_ms = 0

    def time_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._time_ms

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return self._monotonic_ms / 1000

    def advance(self, seconds: float) -> None:
        """Both clocks go on. Raises InvalidOptionError for going back; `jump` does that."""
        if seconds < 0:
            raise InvalidOptionError("a monotonic clock does not go back", option="seconds")
        step = round(seconds * 1000)
        self._time_ms += step
        self._monotonic_ms += step

    def jump(self, seconds: float) -> None:
        """The wall clock alone is set, forward or back."""
        self._time_ms += round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class FakeSent:
    """Where a message was stored, as `SendResult`."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    transaction_id: str | None = None

    @property
    def offset_message_id(self) -> str:
        return _offset_id(self.physical_offset)


@dataclass(frozen=True, slots=True)
class FakeEnd:
    """What ending a transaction did, as `EndResult`."""

    outcome: str
    already: bool
    physical_offset: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """A stored message, as `StoredMessage` shows it to consumers and checkers."""

    source: Message
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    transaction_id: str | None
    store_timestamp_ms: int
    producer_group: str | None = None
    reconsume_times: int = 0
    system_properties: dict[str, str] = field(default_factory=dict)
    in_hand: "_InHand | None" = None

    def retry(self, delay_level: int = 0) -> None:
        if not -1 <= delay_level <= 18:
            raise InvalidOptionError(f"delay_level: {delay_level} is none", option="delay_level")
        if self.in_hand is None or self.in_hand.settled:
            why = "no consumer handed it out" if self.in_hand is None else "it was acknowledged already"
            raise InvalidMessageError(f"message {self.message_id} cannot be retried: {why}")
        self.in_hand.asked = delay_level

    def settle(self) -> int | None:
        if self.in_hand is None or self.in_hand.settled:
            return None
        self.in_hand.settled = True
        return self.in_hand.asked

    @property
    def offset_message_id(self) -> str:
        return _offset_id(self.physical_offset)

    @property
    def body(self) -> bytes:
        return self.source.body

    @property
    def tags(self) -> str | None:
        return self.source.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self.source.keys

    @property
    def properties(self) -> dict[str, str]:
        return self.source.properties | self.system_properties

    @property
    def flag(self) -> int:
        return self.source.flag

    @property
    def born_timestamp_ms(self) -> int:
        return self.store_timestamp_ms

    @property
    def real_topic(self) -> str:
        return self.source.topic

    @property
    def real_queue_id(self) -> int:
        return self.queue_id


@dataclass(slots=True)
class _InHand:
    """What a consumer's user asked for."""

    asked: int | None = None
    settled: bool = False


@dataclass(slots=True)
class _Half:
    """One transaction."""

    stored: FakeMessage
    queue_id: int
    group: str
    owner: int
    running: bool
    state: TransactionState = TransactionState.PENDING


class _Log:
    """The messages of a fake broker, what waits, and offsets: what a store would hold."""

    def __init__(self, clock: ManualClock, queues_each: int) -> None:
        self.queues: dict[str, list[list[FakeMessage]]] = {}
        self.queues_each = queues_each
        self._clock = clock
        self._end = 0
        self._at: dict[int, FakeMessage] = {}
        self._offsets: dict[tuple[str, str, int], int] = {}
        self._waiting: list[tuple[int, int, FakeMessage]] = []
        """(due, place in the log, message), the next one first."""

    def place(self) -> int:
        place = self._end
        self._end += _RECORD_BYTES
        return place

    def make_topic(self, topic: str) -> None:
        self.queues.setdefault(topic, [[]])

    def queue_ids(self, topic: str) -> Sequence[int]:
        return range(len(self.queues.get(topic, [])))

    def append(
        self,
        message: Message,
        topic: str,
        queue_id: int,
        message_id: str,
        transaction_id: str | None = None,
        *,
        delay_level: int = 0,
        reconsume_times: int = 0,
        system_properties: dict[str, str] | None = None,
    ) -> FakeMessage:
        self.queues.setdefault(topic, [[] for _ in range(self.queues_each)])
        if queue_id not in self.queue_ids(topic):
            raise InvalidNameError(f"topic {topic} has no queue {queue_id}")
        stored = FakeMessage(
            source=message.replace(delay_level=0) if message.delay_level else message,
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(self.queues[topic][queue_id]),
            physical_offset=self.place(),
            message_id=message_id,
            transaction_id=transaction_id,
            store_timestamp_ms=self._clock.time_ms(),
            reconsume_times=reconsume_times,
            system_properties=system_properties or {},
        )
        if delay_level:
            due = self._clock.time_ms() + delay_level_ms(delay_level)
            heapq.heappush(self._waiting, (due, stored.physical_offset, stored))
        else:
            self._add(stored)
        return stored

    def _add(self, stored: FakeMessage) -> None:
        self.queues[stored.topic][stored.queue_id].append(stored)
        self._at[stored.physical_offset] = stored

    def deliver(self) -> None:
        """What is due stands in its queue when somebody looks."""
        while self._waiting and self._waiting[0][0] <= self._clock.time_ms():
            _, _, waited = heapq.heappop(self._waiting)
            queue_offset = len(self.queues[waited.topic][waited.queue_id])
            now = self._clock.time_ms()
            self._add(replace(waited, queue_offset=queue_offset, physical_offset=self.place(), store_timestamp_ms=now))

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        self.deliver()
        if self._end <= physical_offset:
            until_next = self._waiting[0][0] - self._clock.time_ms() if self._waiting else timeout_ms
            self._clock.advance(max(0, min(timeout_ms, until_next)) / 1000)
            self.deliver()
        return self._end

    def append_copy(
        self,
        physical_offset: int,
        topic: str,
        queue_id: int,
        *,
        delay_level: int = 0,
        reconsume_times: int = 0,
        properties: Sequence[tuple[str, str]] = (),
    ) -> FakeSent:
        source = self._at[physical_offset]
        changed = source.system_properties | dict(properties)
        stored = self.append(
            source.source,
            topic,
            queue_id,
            source.message_id,
            source.transaction_id,
            delay_level=delay_level,
            reconsume_times=reconsume_times,
            system_properties={name: value for name, value in changed.items() if value},
        )
        return _sent(stored)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[list[FakeMessage], int]:
        self.deliver()
        found: list[FakeMessage] = []
        behind = queue_offset
        for message in self._queue(topic, queue_id)[queue_offset:]:
            if len(found) >= max_messages:
                break
            behind += 1
            if tags is None or message.tags in tags:
                found.append(message)
        return found, behind

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        self.deliver()
        return 0, len(self._queue(topic, queue_id))

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        queue = self._queue(topic, queue_id)
        return next((row.queue_offset for row in queue if row.store_timestamp_ms >= timestamp_ms), len(queue))

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group, queue_id))

    def consumer_offsets(self) -> list[tuple[str, str, int, int]]:
        return [(*key, offset) for key, offset in self._offsets.items()]

    def remove_consumer_offsets(self, topic: str, group: str) -> None:
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[:2] != (topic, group)}

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        if not 0 <= queue_offset <= len(self._queue(topic, queue_id)):
            raise InvalidOptionError(f"queue offset {queue_offset} is not in {topic}/{queue_id}", option="queue_offset")
        self._offsets[topic, group, queue_id] = queue_offset

    def _queue(self, topic: str, queue_id: int) -> list[FakeMessage]:
        queues = self.queues.get(topic, [])
        return queues[queue_id] if 0 <= queue_id < len(queues) else []


class FakeBroker(ConsumerGroups):
    """A broker in memory for unit tests: producers and consumers work on it as on a real one. For one thread.

    `run_checks()` asks about every pending transaction whose local transaction has ended, as if its time had come.
    """

    def __init__(self, *, queues: int = 4, clock: ManualClock | None = None) -> None:
        self.clock = clock if clock is not None else ManualClock()
        self._log = _Log(self.clock, queues)
        self._halves: list[_Half] = []
        self._producers = Producers()
        groups: dict[str, None] = {}
        log = self._log
        backlog = Backlog(log, log.make_topic, lambda: log.queues, lambda: groups, log.queue_ids)
        super().__init__(backlog, groups.setdefault, self.clock.monotonic)
        self._closed = False

    def producer(self, group: str) -> Producer:
        return Producer(self, group)

    def transaction_producer(
        self,
        group: str,
        listener: object = None,
        *,
        check_listener: object = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        return TransactionProducer(self, group, listener, check_listener=check_listener, database=database)

    def messages(self, topic: str) -> list[FakeMessage]:
        """All visible messages of a topic, in the order they were stored."""
        self._log.deliver()
        return sorted(itertools.chain(*self._log.queues.get(topic, [])), key=lambda message: message.physical_offset)

    def transaction_state(self, transaction_id: str) -> TransactionState:
        """What became of a transaction. Raises TransactionNotFoundError."""
        return self._find(transaction_id).state

    def pending(self) -> list[str]:
        """Ids of pending transactions, oldest first."""
        return [half.stored.message_id for half in self._halves if half.state is TransactionState.PENDING]

    def run_checks(self) -> int:
        """Asks about what is pending and no longer running, home first; returns how many were asked."""
        asked = 0
        for half in self._halves:
            if half.state is not TransactionState.PENDING or half.running:
                continue
            view = HalfMessage(half.stored)
            for _, member in self._producers.of_group(half.group, half.owner):
                checker = member.checker_for(view.topic, view.tags)
                if checker is None:
                    continue
                asked += 1
                try:
                    state, _ = judged(checker(view), "the check")
                except Exception:
                    state = LocalTransactionState.UNKNOWN
                if state is not LocalTransactionState.UNKNOWN:
                    self._decide(half, state)
                break
        return asked

    def discard(self, transaction_id: str) -> FakeEnd:
        """Parks a pending one. Raises TransactionNotFoundError, AlreadyEndedError."""
        half = self._find(transaction_id)
        if half.state not in (TransactionState.PENDING, TransactionState.DISCARDED):
            raise _ended(half)
        already = half.state is TransactionState.DISCARDED
        half.state = TransactionState.DISCARDED
        return FakeEnd(half.state.value, already)

    def close(self) -> None:
        if self._closed:
            return
        for consumer in self._members.all():
            consumer.close()
        for producer in self._producers.all():
            producer.close()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # interface.BrokerInterface

    def append(self, message: Message, queue_id: int, /) -> FakeSent:
        self._must_be_open()
        stored = self._log.append(message, message.topic, queue_id, unique_id(), delay_level=message.delay_level)
        return _sent(stored)

    def appender(self, producer_group: str) -> Callable[[Message, int], FakeSent]:
        return self.append

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str = ""
    ) -> list[FakeSent]:
        return [self.append(message, queue_id) for message, queue_id in zip(messages, queue_ids, strict=True)]

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int = 0) -> FakeSent:
        self._must_be_open()
        resent = message.transaction_id
        for half in self._halves:
            same = half.stored.message_id == resent and half.group == producer_group
            same = same and half.stored.source.topic == message.topic and half.stored.body == message.body
            if same and half.state is TransactionState.PENDING:
                return replace(_sent(half.stored), transaction_id=resent)
        name = resent or unique_id()
        stored = FakeMessage(
            source=message,
            topic=_HALF_TOPIC,
            queue_id=queue_id,
            queue_offset=len(self._halves),
            physical_offset=self._log.place(),
            message_id=name,
            transaction_id=name,
            store_timestamp_ms=self.clock.time_ms(),
            producer_group=producer_group,
        )
        self._halves.append(_Half(stored, queue_id, producer_group, owner, running=owner != 0))
        return _sent(stored)

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> FakeEnd:
        self._must_be_open()
        if state is LocalTransactionState.UNKNOWN:
            raise InvalidOptionError("UNKNOWN is no end of a transaction", option="state")
        half = self._find(transaction if isinstance(transaction, str) else transaction_id_of(transaction))
        if producer_group is not None and producer_group != half.group:
            raise WrongGroupError(
                f"transaction {half.stored.message_id} belongs to producer group {half.group}, not to {producer_group}"
            )
        return self._decide(half, state)

    def end_half(self, half: SentMessage, /, *, commit: bool, producer_group: str | None = None) -> FakeEnd:
        state = LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK
        return self.end_transaction(half, state, producer_group=producer_group)

    def local_transaction_ended(self, half: SentMessage, /) -> None:
        if 0 <= half.queue_offset < len(self._halves):
            self._halves[half.queue_offset].running = False

    def write_queues(self, topic: str) -> Sequence[int]:
        self._must_be_open()
        return range(len(self._log.queues.setdefault(topic, [[] for _ in range(self._log.queues_each)])))

    def register_producer(self, producer: ProducerMember) -> int:
        self._must_be_open()
        return self._producers.add(producer)

    def unregister_producer(self, producer: ProducerMember) -> None:
        self._producers.remove(producer)

    def read_queues(self, topic: str) -> Sequence[int]:
        return self._log.queue_ids(topic)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[list[FakeMessage], int]:
        self._must_be_open()
        return self._log.read(topic, queue_id, queue_offset, max_messages, tags)

    def pull(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[list[FakeMessage], int]:
        found, behind = self.read(topic, queue_id, queue_offset, max_messages, tags)
        retried = topic.startswith("%RETRY%")

        def handed_out(message: FakeMessage) -> FakeMessage:
            own = message.system_properties.get("RETRY_TOPIC", topic) if retried else topic
            return replace(message, topic=own, in_hand=_InHand())

        return [handed_out(message) for message in found], behind

    def puller(self, consumer: ConsumerMember) -> Pull:
        return self.pull

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return self._log.search_offset(topic, queue_id, timestamp_ms)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._log.queue_range(topic, queue_id)

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Nothing can come while one thread waits, so the clock goes on by itself."""
        self._must_be_open()
        return self._log.wait(physical_offset, timeout_ms)

    def write_offsets(self) -> None:
        """They are where they stay."""

    # Inside

    def _must_write(self, what: str) -> None:
        self._must_be_open()

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")

    def _find(self, transaction_id: str) -> _Half:
        for half in reversed(self._halves):
            if half.stored.message_id == transaction_id:
                return half
        raise TransactionNotFoundError(f"there is no transaction {transaction_id}")

    def _decide(self, half: _Half, state: LocalTransactionState) -> FakeEnd:
        commit = state is LocalTransactionState.COMMIT
        wanted = TransactionState.COMMITTED if commit else TransactionState.ROLLED_BACK
        if half.state is wanted:
            return FakeEnd(wanted.value, True)
        if half.state is not TransactionState.PENDING:
            raise _ended(half)
        half.state, half.running = wanted, False
        if not commit:
            return FakeEnd(wanted.value, False)
        name = half.stored.message_id
        final = self._log.append(half.stored.source, half.stored.source.topic, half.queue_id, name, name)
        return FakeEnd(wanted.value, False, final.physical_offset, final.queue_offset)


def _offset_id(physical_offset: int) -> str:
    return f"7F00000100002A9F{physical_offset:016X}"


def _sent(stored: FakeMessage) -> FakeSent:
    return FakeSent(
        message_id=stored.message_id,
        topic=stored.topic,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        physical_offset=stored.physical_offset,
        transaction_id=stored.transaction_id,
    )


def _ended(half: _Half) -> AlreadyEndedError:
    text = f"transaction {half.stored.message_id} has ended already: {half.state}"
    return AlreadyEndedError(text, outcome=half.state.value)
