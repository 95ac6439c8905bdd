"""A broker in memory and a manual clock, for the tests of programs that use txstore.

In:     the calls of a producer or consumer.
Out:    the answers of an embedded broker, without files and threads.
Always: a half message is invisible until it is committed, each transaction ends once, and offsets count as in a store.
Not here: the disk, the bytes of the log, crashes. Checks run only when `run_checks()` is called.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Literal, Self, TypeVar

from txstore._native import ACKNOWLEDGED, HALF_TOPIC, RETRY_PREFIX, Message, allow_end_again, delay_level_ms, unique_id
from txstore.consumer import ConsumerGroups
from txstore.consumer.progress import ConsumerProgress
from txstore.errors import (
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    StoreClosedError,
    TransactionNotFoundError,
    WrongGroupError,
)
from txstore.interface import ConsumerMember, ProducerMember, Pull
from txstore.listener import AnyChecker, AnyListener, parse_answer
from txstore.message import (
    Half,
    HalfMessage,
    LocalTransactionState,
    SentMessage,
    TransactionState,
    transaction_id_of,
    utc,
)
from txstore.producer import LocalDatabase, Producer, TransactionProducer
from txstore.producer.registry import Producers
from txstore.serialization import Serializer, decode

__all__ = ["FakeBroker", "FakeEnd", "FakeMessage", "FakeSent", "ManualClock"]

T = TypeVar("T")
_RECORD_BYTES = 100  # Each message advances the physical offset by this much.


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, time_ms: int = 1_700_000_000_000) -> None:
        self._time_ms = time_ms
        self._monotonic_ms = 0

    def time_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._time_ms

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return self._monotonic_ms / 1000

    def advance(self, seconds: float) -> None:
        """Advances both clocks. Raises InvalidOptionError for a negative time; see `jump`."""
        if seconds < 0:
            raise InvalidOptionError(f"seconds must be 0 or more, got {seconds}\nhint: jump()", option="seconds")
        step = round(seconds * 1000)
        self._time_ms += step
        self._monotonic_ms += step

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, forward or back."""
        self._time_ms += round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class FakeSent:
    """Where a message was stored, like `SendResult`."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    transaction_id: str | None = None

    @property
    def offset_message_id(self) -> str:
        """The offset id: the broker's address and the physical offset, in hex."""
        return _offset_id(self.physical_offset)


@dataclass(frozen=True, slots=True)
class FakeEnd:
    """The result of ending a transaction, like `EndResult`."""

    outcome: TransactionState
    already: bool
    physical_offset: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """A stored message as consumers and checkers see it, like `StoredMessage`."""

    source: Message
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    transaction_id: str | None
    store_timestamp: datetime
    producer_group: str | None = None
    reconsume_times: int = 0
    system_properties: dict[str, str] = field(default_factory=dict)
    delivery: "_Delivery | None" = None

    def ack(self) -> None:
        """Acknowledges this message alone, as `StoredMessage.ack`."""
        delivery = self._decide("acknowledged")
        if delivery.state == "settled" and delivery.delay_level is None:
            return
        if delivery.state not in ("unacknowledged", "acked") or delivery.delay_level is not None:
            raise self._refused("acknowledged", delivery)
        delivery.state = "acked"

    def nack(self, delay_level: int = 0) -> None:
        """Has this message delivered again later, as `StoredMessage.nack`."""
        _check_delay_level(delay_level)
        delivery = self._decide("retried")
        if delivery.state == "nacked" or (delivery.state == "settled" and delivery.delay_level is not None):
            return
        if delivery.state != "unacknowledged":
            raise self._refused("retried", delivery)
        delivery.state, delivery.delay_level = "nacked", delay_level

    def retry(self, delay_level: int = 0) -> None:
        """Asks for delivery again later, as `StoredMessage.retry`."""
        _check_delay_level(delay_level)
        delivery = self._decide("retried")
        if delivery.state != "unacknowledged":
            raise self._refused("retried", delivery)
        delivery.delay_level = delay_level

    @property
    def decision(self) -> int | None:
        """What `ack` or `nack` decided; None before. For consumers."""
        if self.delivery is None or self.delivery.state not in ("acked", "nacked"):
            return None
        return ACKNOWLEDGED if self.delivery.state == "acked" else self.delivery.delay_level

    def give_back(self) -> bool:
        """Closes the message after its return to its queue. Returns False after `ack` or `nack`. For consumers."""
        if self.delivery is None or self.delivery.state == "unacknowledged":
            if self.delivery is not None:
                self.delivery.state = "given back"
            return True
        return self.decision is None

    def settle(self) -> int | None:
        """Closes the message. Returns the delay level that `retry` or `nack` asked for, or None. For consumers."""
        if self.delivery is None or self.delivery.state == "settled":
            return None
        self.delivery.state = "settled"
        return self.delivery.delay_level

    def _decide(self, done: str) -> "_Delivery":
        if self.delivery is None:
            raise InvalidMessageError(f"message {self.message_id} cannot be {done}: no consumer handed it out")
        return self.delivery

    def _refused(self, done: str, delivery: "_Delivery") -> InvalidMessageError:
        if delivery.state == "given back":
            why = "it was returned to its queue and will be delivered again"
        elif delivery.delay_level is None:
            why = "it was already acknowledged"
        else:
            said = {"unacknowledged": "retry was called", "nacked": "nack was called"}
            why = said.get(delivery.state, "it was already sent back")
        return InvalidMessageError(f"message {self.message_id} cannot be {done}: {why}")

    @property
    def offset_message_id(self) -> str:
        """The offset id: the broker's address and the physical offset, in hex."""
        return _offset_id(self.physical_offset)

    @property
    def body(self) -> bytes:
        """The body, as the application sent it."""
        return self.source.body

    def value(self, kind: type[T], *, serializer: Serializer | None = None) -> T:
        """Returns the body's value as a `kind`; from JSON or by the `serializer`. Raises DecodeError."""
        return decode(self, kind, serializer)

    @property
    def tags(self) -> str | None:
        """The tag; None without one."""
        return self.source.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without any."""
        return self.source.keys

    @property
    def properties(self) -> dict[str, str]:
        """The properties (a fresh dict)."""
        return self.source.properties | self.system_properties

    @property
    def flag(self) -> int:
        """The application's own number."""
        return self.source.flag

    @property
    def born_timestamp(self) -> datetime:
        """When it was stored, in UTC: a fake broker's clients have its clock."""
        return self.store_timestamp

    @property
    def real_topic(self) -> str:
        """The destination topic of a half message, otherwise `topic`."""
        return self.source.topic

    @property
    def real_queue_id(self) -> int:
        """The destination queue of a half message, otherwise `queue_id`."""
        return self.queue_id


@dataclass(slots=True)
class _Delivery:
    """What the program asked for with a delivered message."""

    delay_level: int | None = None
    state: Literal["unacknowledged", "acked", "nacked", "given back", "settled"] = "unacknowledged"


def _check_delay_level(delay_level: int) -> None:
    if not -1 <= delay_level <= 18:
        raise InvalidOptionError(f"delay_level must be between -1 and 18, got {delay_level}", option="delay_level")


@dataclass(slots=True)
class _Half:
    """One transaction and its state."""

    stored: FakeMessage
    queue_id: int
    group: str
    owner: int
    running: bool
    state: TransactionState = TransactionState.PENDING


class _Log:
    """The state of a fake broker: messages, delayed messages and offsets."""

    def __init__(self, clock: ManualClock, queues_each: int) -> None:
        self.queues: dict[str, list[list[FakeMessage]]] = {}
        self.queues_each = queues_each
        self._clock = clock
        self._end = 0
        self._at: dict[int, FakeMessage] = {}
        self._offsets: dict[tuple[str, str, int], int] = {}
        self._waiting: list[tuple[int, int, FakeMessage]] = []
        """(due, physical offset, message), the next one first."""

    def next_physical_offset(self) -> int:
        offset = self._end
        self._end += _RECORD_BYTES
        return offset

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
            physical_offset=self.next_physical_offset(),
            message_id=message_id,
            transaction_id=transaction_id,
            store_timestamp=utc(self._clock.time_ms()),
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
        """Moves delayed messages that are due to their queues."""
        while self._waiting and self._waiting[0][0] <= self._clock.time_ms():
            _, _, waited = heapq.heappop(self._waiting)
            queue_offset = len(self.queues[waited.topic][waited.queue_id])
            self._add(
                replace(
                    waited,
                    queue_offset=queue_offset,
                    physical_offset=self.next_physical_offset(),
                    store_timestamp=utc(self._clock.time_ms()),
                )
            )

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
        next_offset = queue_offset
        for message in self._queue(topic, queue_id)[queue_offset:]:
            if len(found) >= max_messages:
                break
            next_offset += 1
            if tags is None or message.tags in tags:
                found.append(message)
        return found, next_offset

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        self.deliver()
        return 0, len(self._queue(topic, queue_id))

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        queue, time = self._queue(topic, queue_id), utc(timestamp_ms)
        return next((row.queue_offset for row in queue if row.store_timestamp >= time), len(queue))

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group, queue_id))

    def consumer_offsets(self) -> list[tuple[str, str, int, int]]:
        return [(*key, offset) for key, offset in self._offsets.items()]

    def remove_consumer_offsets(self, topic: str, group: str) -> None:
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[:2] != (topic, group)}

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        if not 0 <= queue_offset <= len(self._queue(topic, queue_id)):
            raise InvalidOptionError(
                f"queue offset {queue_offset} is outside {topic}/{queue_id}", option="queue_offset"
            )
        self._offsets[topic, group, queue_id] = queue_offset

    def _queue(self, topic: str, queue_id: int) -> list[FakeMessage]:
        queues = self.queues.get(topic, [])
        return queues[queue_id] if 0 <= queue_id < len(queues) else []


class FakeBroker(ConsumerGroups):
    """A broker in memory for unit tests: producers and consumers use it like a real one. For one thread.

    `run_checks()` checks every pending transaction whose local transaction has ended, as if it were due.
    """

    def __init__(self, *, queues: int = 4, clock: ManualClock | None = None) -> None:
        self.clock: ManualClock = clock if clock is not None else ManualClock()
        self._log = _Log(self.clock, queues)
        self._halves: list[_Half] = []
        self._producers = Producers()
        groups: dict[str, None] = {}
        log = self._log
        progress = ConsumerProgress(log, log.make_topic, lambda: log.queues, lambda: groups, log.queue_ids)
        super().__init__(progress, groups.setdefault, self.clock.monotonic)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def producer(self, group: str) -> Producer:
        """Creates a producer of plain messages."""
        return Producer(self, group)

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[LocalTransactionState] | None = None,
        *,
        check_listener: AnyChecker[LocalTransactionState] | None = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        """Creates a producer of transactional messages, as `txstore.Broker.transaction_producer`."""
        return TransactionProducer(self, group, listener, check_listener=check_listener, database=database)

    def messages(self, topic: str) -> list[FakeMessage]:
        """Returns all visible messages of a topic, in the order they were stored."""
        self._log.deliver()
        return sorted(itertools.chain(*self._log.queues.get(topic, [])), key=lambda message: message.physical_offset)

    def transaction_state(self, transaction_id: str) -> TransactionState:
        """Returns the state of a transaction. Raises TransactionNotFoundError."""
        return self._find(transaction_id).state

    def pending(self) -> list[str]:
        """Returns the ids of pending transactions, oldest first."""
        return [half.stored.message_id for half in self._halves if half.state is TransactionState.PENDING]

    def run_checks(self) -> int:
        """Checks pending transactions that no longer run, asking their owner first; returns the number of checks."""
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
                    state, _ = parse_answer(checker(view), "the check")
                except Exception:
                    state = LocalTransactionState.UNKNOWN
                if state is not LocalTransactionState.UNKNOWN:
                    self._decide(half, state)
                break
        return asked

    def discard(self, transaction_id: str) -> FakeEnd:
        """Discards a pending transaction. Raises TransactionNotFoundError, AlreadyEndedError."""
        half = self._find(transaction_id)
        if already := self._has_ended(half, TransactionState.DISCARDED):
            return already
        half.state = TransactionState.DISCARDED
        return FakeEnd(half.state, False)

    def close(self) -> None:
        """Closes the broker. Idempotent."""
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
        """Stores one message, for a producer."""
        self._must_be_open()
        stored = self._log.append(message, message.topic, queue_id, unique_id(), delay_level=message.delay_level)
        return _sent(stored)

    def appender(self, producer_group: str) -> Callable[[Message, int], FakeSent]:
        """Returns the call that stores the messages of a producer group."""
        return self.append

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str = ""
    ) -> list[FakeSent]:
        """Stores several messages in one queue, either all or none, for a producer."""
        return [self.append(message, queue_id) for message, queue_id in zip(messages, queue_ids, strict=True)]

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int = 0) -> FakeSent:
        """Stores a half message, for a producer."""
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
            topic=HALF_TOPIC,
            queue_id=queue_id,
            queue_offset=len(self._halves),
            physical_offset=self._log.next_physical_offset(),
            message_id=name,
            transaction_id=name,
            store_timestamp=utc(self.clock.time_ms()),
            producer_group=producer_group,
        )
        self._halves.append(_Half(stored, queue_id, producer_group, owner, running=owner != 0))
        return _sent(stored)

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> FakeEnd:
        """Commits or rolls back a transaction, as `txstore.Broker.end_transaction`."""
        self._must_be_open()
        if state is LocalTransactionState.UNKNOWN:
            raise InvalidOptionError(
                "state must be LocalTransactionState.COMMIT or ROLLBACK, got UNKNOWN", option="state"
            )
        half = self._find(transaction if isinstance(transaction, str) else transaction_id_of(transaction))
        if producer_group is not None and producer_group != half.group:
            raise WrongGroupError(
                f"transaction {half.stored.message_id} belongs to producer group {half.group}, not to {producer_group}"
            )
        return self._decide(half, state)

    def end(self, half: Half, state: LocalTransactionState, producer_group: str, /) -> FakeEnd:
        """Commits or rolls back the transaction of a half message, for a producer."""
        return self.end_transaction(half, state, producer_group=producer_group)

    def local_transaction_ended(self, half: Half, /) -> None:
        """Lets `run_checks` ask about a transaction whose local transaction has ended."""
        if 0 <= half.queue_offset < len(self._halves):
            self._halves[half.queue_offset].running = False

    def write_queues(self, topic: str) -> Sequence[int]:
        """Returns the queues of a topic, which it creates if necessary."""
        self._must_be_open()
        return range(len(self._log.queues.setdefault(topic, [[] for _ in range(self._log.queues_each)])))

    def register_producer(self, producer: ProducerMember) -> int:
        """Registers a producer and returns its id (> 0). Idempotent."""
        self._must_be_open()
        return self._producers.add(producer)

    def unregister_producer(self, producer: ProducerMember) -> None:
        """Removes a producer from its group."""
        self._producers.remove(producer)

    def read_queues(self, topic: str) -> Sequence[int]:
        """Returns the queues of a topic; empty for an unknown one."""
        return self._log.queue_ids(topic)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[list[FakeMessage], int]:
        """Returns messages of a queue in order, and the queue offset to read next."""
        self._must_be_open()
        return self._log.read(topic, queue_id, queue_offset, max_messages, tags)

    def pull(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[list[FakeMessage], int]:
        """Reads a queue for a consumer, whose messages support `retry`."""
        found, next_offset = self.read(topic, queue_id, queue_offset, max_messages, tags)
        retried = topic.startswith(RETRY_PREFIX)

        def delivered(message: FakeMessage) -> FakeMessage:
            own = message.system_properties.get("RETRY_TOPIC", topic) if retried else topic
            return replace(message, topic=own, delivery=_Delivery())

        return [delivered(message) for message in found], next_offset

    def puller(self, consumer: ConsumerMember) -> Pull:
        """Returns the call that reads for a registered consumer."""
        return self.pull

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first queue offset stored at that time (ms since the epoch) or later, else the queue's end."""
        return self._log.search_offset(topic, queue_id, timestamp_ms)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the first queue offset that is left, and the one after the last visible message."""
        return self._log.queue_range(topic, queue_id)

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Advances the clock, because nothing can arrive while the only thread waits."""
        self._must_be_open()
        return self._log.wait(physical_offset, timeout_ms)

    def write_offsets(self) -> None:
        """Does nothing: the offsets are only in memory."""

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
        raise TransactionNotFoundError(f"unknown transaction {transaction_id}")

    def _has_ended(self, half: _Half, wanted: TransactionState) -> FakeEnd | None:
        """Returns the result of an end that repeats an earlier one; None for a pending transaction."""
        if half.state is TransactionState.PENDING:
            return None
        allow_end_again(half.stored.message_id, half.state, wanted)
        return FakeEnd(wanted, True)

    def _decide(self, half: _Half, state: LocalTransactionState) -> FakeEnd:
        commit = state is LocalTransactionState.COMMIT
        wanted = TransactionState.COMMITTED if commit else TransactionState.ROLLED_BACK
        if already := self._has_ended(half, wanted):
            return already
        half.state, half.running = wanted, False
        if not commit:
            return FakeEnd(wanted, False)
        name = half.stored.message_id
        final = self._log.append(half.stored.source, half.stored.source.topic, half.queue_id, name, name)
        return FakeEnd(wanted, False, final.physical_offset, final.queue_offset)


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
