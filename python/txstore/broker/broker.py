"""Broker: an open store with its topics, groups, producers, consumers and checks.

In:     a path and settings.
Out:    producers and consumers, transactions to inspect, and a store that is closed properly.
Always: one broker per store and process. Thread-safe. A topic is on disk before its first message. No client sends to
        or reads a system topic.
Not here: the rules of each part, which are in its own module.
"""

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, overload

from txstore._native import (
    EndResult,
    OpenReport,
    SendResult,
    Store,
    StoredMessage,
    StoreStat,
    TransactionRow,
    WaitingHalf,
)
from txstore.broker.batch_records import BatchRecords
from txstore.broker.database_cleaning import CLEAN_SECONDS, DatabaseCleaning
from txstore.broker.delay import DELAYS_EVERY_SECONDS, Delays
from txstore.broker.deletion import Deletion
from txstore.broker.group_table import GroupTable
from txstore.broker.housekeeping import Housekeeping, Job
from txstore.broker.lifetime import Parts, close_abandoned
from txstore.broker.local_socket import LocalSocket
from txstore.broker.lookups import Lookups
from txstore.broker.outbox_log import StoreLog
from txstore.broker.queries import Queries, QueueExtent, TopicDescription, must_be_positive, must_not_be_system_topic
from txstore.broker.retention import Retention, RetentionRules
from txstore.broker.topics import Groups, Topics
from txstore.config import (
    BrokerConfig,
    Duration,
    as_timedelta,
    milliseconds,
    must_not_be_negative,
)
from txstore.consumer import ConsumerGroups
from txstore.consumer.progress import ConsumerProgress
from txstore.errors import (
    InvalidOptionError,
    ReadOnlyError,
    StoreClosedError,
    StoreForkedError,
    StoreIOError,
    TxStoreError,
)
from txstore.interface import ConsumerMember, ProducerMember, Pull
from txstore.listener import AnyChecker, AnyListener
from txstore.message import (
    Half,
    LocalTransactionState,
    Message,
    SentMessage,
    TransactionState,
    dead_letter_topic,
    retry_topic,
)
from txstore.producer import LocalDatabase, Producer, TransactionProducer
from txstore.producer.outbox import MessageLimits, OutboxDatabase, Outboxes
from txstore.producer.registry import Producers
from txstore.selector import Selector
from txstore.transactions.decision import Action, CheckRules
from txstore.transactions.history import CheckHistory
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.plan import Planner
from txstore.transactions.pool import Pool
from txstore.transactions.rounds import CheckRounds
from txstore.transactions.trace import TransactionTrace
from txstore.transactions.transactions import Outlook, Transactions

__all__ = ["EmbeddedBroker"]

_log = logging.getLogger("txstore.broker")
_DAY_SECONDS = 86_400.0  # For a job that has nothing to do after its first run.
_TOPICS_SECONDS = 5.0  # After a failed write. Otherwise the tables are written when their delay is over.
_HELD_SECONDS = 0.1
_STOP_SECONDS = 60.0  # The longest housekeeping job is a snapshot.

_ProducerT = TypeVar("_ProducerT")
_Pending: TypeAlias = Literal["pending", TransactionState.PENDING]
_Finished: TypeAlias = Literal[
    "committed",
    "rolled_back",
    "discarded",
    "finished_unknown",
    TransactionState.COMMITTED,
    TransactionState.ROLLED_BACK,
    TransactionState.DISCARDED,
    TransactionState.FINISHED_UNKNOWN,
]


class _Prepare(Protocol):
    """Stores a half message; see `BrokerInterface.prepare`."""

    def __call__(self, message: Message, queue_id: int, producer_group: str, owner: int = 0, /) -> SendResult: ...


class EmbeddedBroker(ConsumerGroups, GroupTable, Lookups):
    """An open store. Created by `txstore.open`; close it, or use it in `with`.

    A broker that is not closed is closed when it is garbage-collected or the program exits. In a forked child `close`
    does nothing, and calls that need the store raise StoreForkedError.
    """

    append: Callable[[Message, int], SendResult]
    """Stores one message in one of the queues of `write_queues`. The engine's own call, because each send makes it."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        keep_house: bool = True,
        housekeeping: Housekeeping | None = None,
        pool: Pool | None = None,
    ) -> None:
        """`keep_house` tells whether background jobs run: checks, delayed delivery, retention, offsets, snapshots.

        `housekeeping` runs them, and `pool` asks listeners; by default in threads of their own.
        """
        self._store = store
        self._config = config
        self._lock = threading.RLock()
        self._closed = False
        self._monotonic = monotonic
        self._checks_from = 0.0
        self._producers = Producers()
        self._topic_watchers: tuple[Callable[[Sequence[str]], None], ...] = ()
        keeps_house = keep_house and not store.read_only
        housekeeping = Housekeeping(monotonic) if housekeeping is None else housekeeping
        write_later = functools.partial(housekeeping.wake, "topics") if keeps_house else None
        self._topics = Topics(
            store,
            [(topic, queue_id) for topic, queue_id, _, _ in store.queues()],
            time_ms,
            read_only=store.read_only,
            auto_create=config.auto_create_topic_enable,
            queues_default=config.default_topic_queue_nums,
            monotonic=monotonic,
            write_later=write_later,
        )
        groups = Groups(store, time_ms, read_only=store.read_only, monotonic=monotonic, write_later=write_later)
        topics = self._topics
        progress = ConsumerProgress(store, topics.create_with_one_queue, self.topics, self.groups, self.read_queues)
        ConsumerGroups.__init__(self, progress, groups.add, monotonic)
        GroupTable.__init__(self, groups, topics, self._notify_topics_changed, reads_only=store.read_only)
        Lookups.__init__(self, Queries(store, self.topics), store.path)
        self._batch_records = BatchRecords(store, self.topics, self._queries.by_key)
        self._history = CheckHistory()
        time_limit = milliseconds(config.transaction_check_time_limit) / 1000
        pool = Pool(config.check_threads, time_limit, monotonic) if pool is None else pool
        self._rounds = CheckRounds(store, self._producers, pool, CheckRules.of(config), self._history, time_ms)
        outlook = None if store.read_only else _outlook_of(self._rounds.planner)
        self._transactions = Transactions(store, self._history, outlook, self._owner_name)
        self._delays = Delays(store, monotonic)
        self._retention = Retention(store, RetentionRules.of(config), time_ms)
        self._deletion = Deletion(
            store, topics, groups, progress, self._transactions.is_pending, self._members.all, self._producers.all
        )
        # The engine's own calls, because a Python function around them would cost as much as they do.
        self.append = store.append
        self.prepare: _Prepare = store.prepare
        self.prepare_many: Callable[[Sequence[Message], Sequence[int], str, int], SendResult] = store.prepare_many
        self.end: Callable[[Half, LocalTransactionState, str], EndResult] = self._transactions.end_half
        self.pull: Pull = store.pull
        self.search_offset: Callable[[str, int, int], int] = store.search_offset
        self._time_limit = time_limit
        kept_ms = milliseconds(config.file_reserved_time)
        self._cleaning = DatabaseCleaning(store, self._producers, pool, kept_ms=kept_ms, time_ms=time_ms)
        limits = MessageLimits(
            config.max_message_size, as_timedelta(config.timer_max_delay_sec, "timer_max_delay_sec"), time_ms
        )
        outboxes = Outboxes(lambda _: StoreLog(store), topics.write_queues, is_remote=False, limits=limits)
        self._parts = Parts(store, (topics, groups), housekeeping, pool, outboxes, os.getpid())
        self._finalizer = weakref.finalize(self, close_abandoned, self._parts)
        if keeps_house:
            self._keep_house()
        self._log_opening()

    def __repr__(self) -> str:
        mode = "closed" if self._closed else "read-only" if self._store.read_only else "open"
        return f"EmbeddedBroker({self._store.path!r}, {mode})"

    # Opening and closing

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._store.path

    @property
    def read_only(self) -> bool:
        """Whether the store is open read-only."""
        return self._store.read_only

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def config(self) -> BrokerConfig:
        """The settings of this broker."""
        return self._config

    @property
    def store(self) -> Store:
        """The engine's own handle, for tools that work below topics and groups."""
        return self._store

    @property
    def open_report(self) -> OpenReport:
        """What opening the store found and did."""
        return self._store.open_report

    @property
    def local_socket(self) -> LocalSocket | None:
        """The socket by which other processes of this machine reach this broker; None if it does not listen."""
        return next(iter(self._parts.local_sockets), None)

    def listen(self) -> LocalSocket:
        """Binds the store's own socket, for `txstore.open(path, shared=True)` in other processes. Idempotent.

        Nobody answers there until it is served. Raises ReadOnlyError, StoreIOError.
        """
        if not self._store.replica:  # It answers, although it refuses what writes.
            self._must_write("listening")
        with self._lock:
            if not self._parts.local_sockets:
                self._parts.local_sockets.append(LocalSocket(self.path))
            return self._parts.local_sockets[0]

    def listen_if_possible(self) -> LocalSocket | None:
        """Like `listen`, but only logs a warning if the system refuses: the store can be used without a socket."""
        try:
            return self.listen()
        except StoreIOError as error:
            _log.warning("no other process can connect to this store: %s", error, extra={"path": self.path})
            return None

    def heal(self) -> OpenReport:
        """Returns what healing did at opening; a writer's store is always healed. Raises ReadOnlyError."""
        return self._store.heal()

    def stat(self) -> StoreStat:
        """Returns statistics of the store."""
        return self._store.stat()

    def flush(self) -> None:
        """Makes all messages sent so far, and all changes of topics and groups, durable."""
        self._store.flush()
        self._parts.write_tables()

    def close(self) -> None:
        """Stops checking, waits for running checks up to their time limit, closes producers, consumers and the store.

        Idempotent. Raises the errors of closing the store.
        """
        parts = self._parts
        if os.getpid() != parts.process:
            self._closed = True  # Without the lock, which a thread of the parent may have held at the fork.
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._finalizer.detach()
        try:
            parts.stop_listening()
            parts.housekeeping.stop(_STOP_SECONDS)
            parts.pool.stop(self._time_limit)
            members: list[ConsumerMember | ProducerMember] = [*self._members.all(), *self._producers.all()]
            for member in members:
                try:
                    member.close()
                except TxStoreError as error:
                    _log.warning("%r could not be closed cleanly: %s", member, error, extra={"group": member.group})
            parts.outboxes.close(_STOP_SECONDS)
        finally:
            parts.shut()  # Even if Ctrl-C interrupts the wait, because a second close would do nothing.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Producers and consumers

    @overload
    def producer(self, group: str) -> Producer: ...
    @overload
    def producer(self, group: str, *, database: OutboxDatabase[_ProducerT, object]) -> _ProducerT: ...
    def producer(
        self, group: str, *, database: OutboxDatabase[_ProducerT, object] | None = None
    ) -> "Producer | _ProducerT":
        """Creates a producer of plain messages. With a `database`, it sends them within the user's own transaction.

        Raises InvalidNameError, TableError if the database has no tables of txstore, ReadOnlyError.
        """
        self._must_write("a producer")
        producer = Producer(self, group)
        if database is None:
            return producer
        return database.outbox_producer(producer, self.outboxes)

    @property
    def outboxes(self) -> Outboxes:
        """The forwarders of databases whose rows are messages. For producers."""
        return self._parts.outboxes

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[LocalTransactionState] | None = None,
        *,
        check_listener: AnyChecker[LocalTransactionState] | None = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        """Creates a producer of transactional messages. It answers checks until it is closed.

        `listener` is a TransactionListener or one of RocketMQ's older callbacks. `check_listener` answers checks if the
        listener does not. `database`, a `txstore.database.Database`, replaces both and answers checks from its rows.
        Raises InvalidNameError, InvalidOptionError, ReadOnlyError.
        """
        self._must_write("a producer")
        return TransactionProducer(self, group, listener, check_listener=check_listener, database=database)

    def register_producer(self, producer: ProducerMember) -> int:
        """Registers a producer and returns its id. Transactions that waited for a producer of its group become due."""
        self._must_be_open()
        number = self._producers.add(producer)
        self._rounds.producer_registered(producer.group)
        self._parts.housekeeping.wake("checks")
        return number

    def unregister_producer(self, producer: ProducerMember) -> None:
        """Removes a producer from its group. Unknown producers are ignored."""
        self._producers.remove(producer)

    # Topics

    def topics(self) -> list[str]:
        """Returns the topics of users, sorted."""
        if self._store.read_only:
            self._topics.read_again([(topic, queue_id) for topic, queue_id, _, _ in self._store.queues()])
        return self._topics.names()

    def has_topic(self, topic: str) -> bool:
        """Tells whether the topic exists and is not a system topic."""
        return topic in self.topics() if self._store.read_only else self._topics.has(topic)

    def message_type(self, topic: str) -> str | None:
        """Returns the message type that a topic declares (`create_topic`); None if it declares none."""
        return self._topics.message_type(topic)

    def create_topic(self, topic: str, queues: int | None = None, *, message_type: str | None = None) -> None:
        """Creates a topic, or adds queues to it (default: `default_topic_queue_nums`). Idempotent.

        `message_type`: NORMAL, FIFO, DELAY or TRANSACTION, the only type that gRPC clients may send to it, or MIXED,
        all. None keeps what it declares; a new topic declares nothing, and accepts all.
        Raises InvalidNameError, InvalidOptionError (fewer queues than it has, an unknown type), ReadOnlyError.
        """
        self._must_write("creating a topic")
        self._topics.create(topic, queues, message_type)
        self._notify_topics_changed([topic])

    def watch_topics(self, changed: Callable[[Sequence[str]], None]) -> None:
        """Calls `changed` with topics that are created by hand, get queues or are deleted. For servers.

        A group's retry topic is named, too, when the group's settings change or the group is deleted.
        """
        self._topic_watchers = (*self._topic_watchers, changed)

    def _notify_topics_changed(self, topics: Sequence[str]) -> None:
        for producer in self._producers.all():
            producer.topics_changed()
        for changed in self._topic_watchers:
            changed(topics)

    def delete_topic(self, topic: str) -> int:
        """Deletes a topic durably, with its queues and the groups' offsets in it; returns the number of messages.

        The records stay in the log until retention removes them. If the topic is created again, it is empty and its
        queue offsets continue. Raises InvalidNameError (unknown, a system topic, a group's own topic), InUseError (a
        consumer or producer of this process uses it, or a pending transaction or delayed message needs it),
        ReadOnlyError.
        """
        self._must_write("deleting a topic")
        self._queries.must_know_topic(topic)
        messages = self._deletion.topic(topic)
        self._notify_topics_changed([topic])
        return messages

    def delete_group(self, group: str, *, force: bool = False) -> int:
        """Deletes a consumer group durably, with its offsets, retries and dead letters; returns their number.

        Raises InvalidNameError (unknown), InUseError (it has a consumer in this process, a retry that is not due, or,
        without `force`, dead letters), ReadOnlyError.
        """
        self._must_write("deleting a group")
        letters = self._deletion.group(group, force=force)
        self._notify_topics_changed([retry_topic(group), dead_letter_topic(group)])
        return letters

    def describe_topic(self, topic: str) -> TopicDescription:
        """Returns a topic's queues, their ranges, and the groups that read it. Raises InvalidNameError."""
        self._queries.must_know_topic(topic)
        queues = self._topics.read_queues(topic), self._topics.write_queues(topic)
        return self._queries.topic(topic, *queues, self._topics.message_type(topic))

    def queues(self, topic: str | None = None) -> list[QueueExtent]:
        """Returns all queues in the log, also those of system topics, or one topic's queues, sorted."""
        return [QueueExtent(*row) for row in self._store.queues() if topic is None or row[0] == topic]

    def write_queues(self, topic: str) -> Sequence[int]:
        """Returns the ids of writable queues; creates the topic if that is allowed. Raises InvalidNameError."""
        if self._store.replica:  # Its routes tell clients which queues the source has.
            return self._topics.write_queues(topic) if self._topics.has(topic) else ()
        self._must_write("sending")
        return self._topics.write_queues(topic)

    def subscribable_topics(self) -> Sequence[str]:
        """Returns the topics of users. For consumers."""
        return self._topics.names()

    def read_queues(self, topic: str) -> Sequence[int]:
        """Returns the ids of readable queues; empty for an unknown topic."""
        if self._store.read_only:  # The writer may have created queues since.
            return [queue.queue_id for queue in self.queues(topic)]
        return self._topics.read_queues(topic)

    # Messages

    def appender(self, producer_group: str) -> Callable[[Message, int], SendResult]:
        """Returns the call that stores a group's messages. For producers."""
        return self.append

    def puller(self, consumer: ConsumerMember) -> Pull:
        """Returns the call that reads for a consumer."""
        return self.pull

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str = ""
    ) -> list[SendResult]:
        """Stores several messages in one write, either all or none. Their topics must exist: call `write_queues`."""
        return self._store.append_many(messages, queue_ids)

    def recall(self, handle: str, /) -> str:
        """Ends the wait of a message for its time, so that it is never delivered. Returns its unique id.

        Durable when it returns. Raises InvalidMessageError for text that is not a recall handle, MessageNotFoundError
        if no such message waits, ReadOnlyError.
        """
        return self._store.recall(handle)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[list[StoredMessage], int]:
        """Returns visible messages of a queue in order, and the queue offset to read next.

        There are none at or after its end, and none in an unknown topic or queue. Raises InvalidNameError (a system
        topic), InvalidOptionError (a number out of range), OffsetTooOldError.
        """
        must_not_be_system_topic(topic)
        must_not_be_negative("queue_offset", queue_offset)
        must_not_be_negative("queue_id", queue_id)
        must_be_positive(max_messages)
        return self._store.read(topic, queue_id, queue_offset, max_messages, tags)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the first queue offset left, and the one after the last visible message."""
        return self._store.queue_range(topic, queue_id)

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until the visible end is above `physical_offset`, or for the timeout; returns the visible end."""
        return self._store.wait_for_messages(physical_offset, timeout_ms)

    def write_offsets(self) -> None:
        """Writes consumer offsets now."""
        self._members.apply_decisions()
        self._store.write_offsets()

    # Transactions

    def local_transaction_ended(self, half: Half, /) -> None:
        """Starts the transaction's age now, so that it will be checked. For producers."""
        self._store.local_transaction_ended(half.queue_offset)

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndResult:
        """Commits or rolls back a transaction, given by its id or by what sending its half returned.

        Without `producer_group` it is an end by hand, which is durable when this returns. A producer passes its group:
        its end is as durable as `flush_disk_type` says, because a check would repeat it.

        If it has already ended the same way, nothing is written and the result has `already` set. Raises
        TransactionNotFoundError, AlreadyEndedError, WrongGroupError (another group began it), InvalidOptionError
        (neither COMMIT nor ROLLBACK).
        """
        return self._transactions.end(transaction, state, producer_group=producer_group)

    def discard(self, transaction: str | SentMessage) -> EndResult:
        """Moves a pending transaction to TRANS_CHECK_MAX_TIME_TOPIC. Raises as `end_transaction` does."""
        return self._transactions.discard(transaction)

    def resume(self, transaction_id: str) -> SendResult:
        """Makes a discarded transaction pending again. Raises TransactionNotFoundError, AlreadyEndedError."""
        sent = self._transactions.resume(transaction_id)
        self._topics.create(sent.topic, None)  # Does nothing unless the topic was deleted meanwhile.
        return sent

    def transaction(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of a transaction: `print(….explain())`. Raises TransactionNotFoundError."""
        return self._with_escape(self._transactions.trace(transaction_id))

    @overload
    def transactions(
        self,
        state: _Pending = ...,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction]: ...

    @overload
    def transactions(
        self,
        state: _Finished | None,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[TransactionRow]: ...

    def transactions(
        self,
        state: _Pending | _Finished | None = TransactionState.PENDING,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction] | list[TransactionRow]:
        """Returns transactions by state, oldest first; pending ones with age, checks, owner, next check and reason.

        Any other state, or None for all states, reads the whole log and returns its rows. `id_prefix` is how the
        transaction ids begin. `older_than` applies to pending transactions. Raises InvalidOptionError for an unknown
        state.
        """
        if state is None:
            return self._transactions.finished(None, group=group, topic=topic, id_prefix=id_prefix, limit=limit)
        try:
            wanted = TransactionState(state)
        except ValueError:
            known = ", ".join(TransactionState)
            raise InvalidOptionError(
                f"unknown state {state!r}\nhint: {known}, or None for all", option="state"
            ) from None
        if wanted is not TransactionState.PENDING:
            return self._transactions.finished(wanted, group=group, topic=topic, id_prefix=id_prefix, limit=limit)
        age: timedelta | None = None if older_than is None else as_timedelta(older_than, "older_than")
        return self._transactions.pending(group=group, topic=topic, id_prefix=id_prefix, older_than=age, limit=limit)

    # Inside

    def _owner_name(self, number: int) -> str | None:
        producer = self._producers.get(number)
        return None if producer is None else repr(producer)

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")
        here, owner = os.getpid(), self._parts.process
        if here != owner:  # The engine also detects this, but only at the first call that reaches it.
            raise StoreForkedError(
                f"the store was opened by process {owner}; this is process {here}, a fork of it\n"
                "hint: open the store after forking, in one process only"
            )

    def _must_write(self, what: str) -> None:
        self._must_be_open()
        if self._store.read_only:
            raise ReadOnlyError(f"{what} needs a writer, and the store is open read-only")

    def _keep_house(self) -> None:
        """Starts the background jobs. They refer to the broker weakly, so that it can be garbage-collected."""
        broker_ref = weakref.ref(self)

        def job(run: Callable[[EmbeddedBroker], float | None]) -> Job:
            def call() -> float | None:
                broker = broker_ref()
                return None if broker is None or broker.closed else run(broker)

            return call

        config, house = self._config, self._parts.housekeeping
        seconds = {name: milliseconds(getattr(config, name)) / 1000 for name in _PERIODS}
        # A half that arrives while none is pending is seen at the latest after its own time.
        rounds_every = min(seconds["transaction_check_interval"], max(0.05, seconds["transaction_timeout"]))
        house.add("checks", job(lambda broker: broker._check_round()), rounds_every)
        house.add("check limits", job(lambda broker: broker._parts.pool.expire()), max(0.005, self._time_limit / 2))
        house.add("offsets", job(lambda broker: broker.write_offsets()), seconds["flush_consumer_offset_interval"])
        house.add("databases", job(lambda broker: broker._cleaning.round()), CLEAN_SECONDS)
        house.add("snapshot", job(lambda broker: broker._store.snapshot()), seconds["snapshot_interval"])
        house.add("topics", job(lambda broker: broker._parts.write_tables()), _TOPICS_SECONDS)
        house.add("pending topics", job(lambda broker: broker._add_pending_topics()), _DAY_SECONDS)
        records_every = seconds["transaction_check_interval"]
        house.add("batch records", job(lambda broker: broker._batch_records.settle()), records_every)
        house.add("retention", job(lambda broker: broker._retention.round()), seconds["clean_resource_interval"])
        house.add("delays", job(lambda broker: broker._delays.deliver()), DELAYS_EVERY_SECONDS)
        house.start()
        house.wake("checks")
        house.wake("pending topics")

    def _add_pending_topics(self) -> None:
        """Adds topics that only half messages have: a crash, or the loss of a replica's source, can lose them."""
        self._topics.create_missing({topic for topic, _, _, _ in self._store.pending()})

    def postpone_checks(self, seconds: float) -> None:
        """Sends no check for a while, in which producers of other processes say what still runs there."""
        self._checks_from = self._monotonic() + seconds

    def _check_soon(self, half_queue_offset: int) -> None:
        self._rounds.ask(half_queue_offset)
        self._parts.housekeeping.wake("checks")

    def _check_round(self) -> float | None:
        if self._store.holds_end():  # Until a replica has told what has escaped.
            return _HELD_SECONDS
        left = self._checks_from - self._monotonic()
        return left if left > 0 else self._rounds.round()

    def _log_opening(self) -> None:
        report = self._store.open_report
        fields = {
            "path": self._store.path,
            "clean": report.clean,
            "scanned_bytes": report.scanned_bytes,
            "truncated_bytes": report.truncated_bytes,
            "healed_ops": report.healed_ops,
            "milliseconds": milliseconds(report.duration),
        }
        found = "it was closed cleanly"
        if not report.clean:
            found = f"it was not closed cleanly: {report.scanned_bytes} bytes scanned, {report.truncated_bytes} cut"
        _log.info("store opened: %s in %d ms; %s", self._store.path, fields["milliseconds"], found, extra=fields)
        for warning in report.warnings:
            _log.warning("%s", warning, extra=fields)


_PERIODS = (
    "transaction_check_interval",
    "transaction_timeout",
    "flush_consumer_offset_interval",
    "snapshot_interval",
    "clean_resource_interval",
)


def _outlook_of(planner: Planner) -> Callable[[WaitingHalf], Outlook]:
    """Returns a call that tells what a round would decide now."""

    def outlook(waiting: WaitingHalf) -> Outlook:
        decision = planner.plan(waiting).decision
        return Outlook(decision.look_again_in_ms if decision.action is Action.WAIT else 0, decision.why)

    return outlook
