"""The blocking interface to a remote broker, for producers and consumers.

In:     the calls of `interface.BrokerInterface`.
Out:    the answers of a RocketMQ broker or of `txstore serve`.
Always: thread-safe. What needs the store in this process raises EmbeddedOnlyError with a hint.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from txstore._native import Message, ResponseCode, is_system_topic, validate_topic
from txstore.client.administration import Administration
from txstore.client.blocking_administration import BlockingAdministration
from txstore.client.caller import Caller, ThreadCaller
from txstore.client.checks import Checks
from txstore.client.client import Client
from txstore.client.consumer_running_info import ConsumerRunningInfo
from txstore.client.dial import Dial
from txstore.client.heartbeat import offset_group, offset_name
from txstore.client.loop import LoopThread, run_on
from txstore.client.offset_store import OffsetStore
from txstore.client.offsets import Offsets
from txstore.client.options import ConnectConfig
from txstore.client.outbox_log import RemoteLog
from txstore.client.pull import Puller
from txstore.client.rebalance import Rebalance, is_clustering
from txstore.client.reset_offset import ResetOffset
from txstore.client.sending import RemoteEnd, RemoteSent, Sending
from txstore.client.topic_list import TopicList
from txstore.config import must_not_be_negative
from txstore.consumer import Consumer, Topics
from txstore.coroutines import run_now
from txstore.errors import (
    BrokerRefusedError,
    EmbeddedOnlyError,
    InvalidNameError,
    StoreClosedError,
    TxStoreError,
)
from txstore.interface import ConsumerMember, ProducerMember, Pull
from txstore.listener import AnyChecker, AnyListener
from txstore.message import (
    ConsumeFromWhere,
    Half,
    LocalTransactionState,
    MessageModel,
    ReceivedMessage,
    SentMessage,
    retry_topic,
    transaction_id_of,
)
from txstore.producer import LocalDatabase, Producer, TransactionProducer
from txstore.producer.outbox import MessageLimits, OutboxDatabase, Outboxes
from txstore.selector import Sql

__all__ = ["EMBEDDED_ONLY", "LIMITS", "MESSAGE_SIZE_MAX", "RemoteBroker", "Session"]

_log = logging.getLogger("txstore.remoting")
_STOP_SECONDS = 30.0
_OUTBOX_STOP_SECONDS = 10.0
MESSAGE_SIZE_MAX = 4 << 20  # RocketMQ's maxMessageSize, of clients and brokers.
LIMITS = MessageLimits(MESSAGE_SIZE_MAX, timer_max_delay=None)
"""The limits of a log in another process, whose options are not known here."""
_ProducerT = TypeVar("_ProducerT")
T = TypeVar("T")

EMBEDDED_ONLY: dict[str, str] = {
    "store": "txstore.open, in the process that has the store",
    "path": "the server's own start, which names the directory",
    "config": "the server's own start; of RocketMQ: mqadmin getBrokerConfig",
    "open_report": "the server's log, which has it",
    "heal": "a server heals its store when it opens it",
}
"""What only the process that has the store open offers, and what to do instead."""


class Session:
    """A client with all its parts, which the blocking and the asyncio interface share."""

    def __init__(self, address: str, options: ConnectConfig, dial: Dial | None = None) -> None:
        self.client: Client = Client(address, options, dial)
        self.offsets: Offsets = Offsets()
        self.sending: Sending = Sending(self.client)
        self.caller: Caller = Caller(self.client)
        self.administration: Administration = Administration(self.client)
        self.checks: Checks = Checks(self.client, self.sending)
        self.rebalance: Rebalance = Rebalance(self.client)
        self.reset_offset: ResetOffset = ResetOffset(self.client, self.offsets)
        self.offset_store: OffsetStore = OffsetStore(self.client, self.offsets, self.reset_offset)
        self.topic_list: TopicList = TopicList(self.client)
        self.running_info: ConsumerRunningInfo = ConsumerRunningInfo(
            self.client, self.rebalance, self.offset_store, self.offsets
        )

    async def end(
        self, transaction: str | SentMessage, state: LocalTransactionState, producer_group: str | None
    ) -> RemoteEnd:
        """Ends a transaction: for its producer if this connection began it, otherwise by hand.

        A RocketMQ broker ends nothing by hand: TransactionNotFoundError.
        """
        name = transaction if isinstance(transaction, str) else transaction_id_of(transaction)
        if producer_group is None and not self.sending.has_begun(name) and state is not LocalTransactionState.UNKNOWN:
            try:
                return await self.administration.end_by_hand(name, state)
            except BrokerRefusedError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
        return await self.sending.end(transaction, state, producer_group, self.caller)

    async def close(self) -> None:
        """Reports acknowledged offsets, unregisters the producer groups and closes the connections."""
        try:
            await self.offset_store.report(self.offsets.unreported())
            for group in {producer.group for producer in self.client.producers.all()}:
                await self.client.leave_group(producer_group=group)
        finally:
            await self.client.close()


class RemoteBroker(BlockingAdministration):
    """A broker in another process. Created by `txstore.connect`; close it, or use it in `with`.

    Producers, consumers and listeners work as with an embedded broker, with three differences: consumers pull ahead, so
    `poll` with a time limit returns a message a moment after it was sent; queue ids of several brokers are made unique
    (the second broker's begin at 65,536). The administrative calls are those of an embedded broker, except
    `EMBEDDED_ONLY`; with accounts, they need an administrator. RocketMQ's own brokers answer some of them.
    """

    def __init__(
        self,
        session: Session,
        loop: asyncio.AbstractEventLoop,
        stop: Callable[[], None],
        limits: MessageLimits = LIMITS,
    ) -> None:
        """Uses an open session. `stop` is called at the end to stop the loop's thread, if this broker owns it.

        `limits`: what is known of the log's limits of messages within database transactions.
        """
        self._closed = False
        self._outboxes = Outboxes(self._outbox_log, self.write_queues, is_remote=True, limits=limits)
        self._use(session, loop, stop)

    def _use(self, session: Session, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """Uses another open session from now on, as in a forked process."""
        self._session = session
        self._client = session.client
        self._administration = session.administration
        self._loop = loop
        self._caller = ThreadCaller(session.client, loop, self._run)
        self._process = os.getpid()
        self._closing = threading.Lock()
        self._pullers: weakref.WeakValueDictionary[int, Puller] = weakref.WeakValueDictionary()
        self._finalizer = weakref.finalize(self, _disconnect, session, loop, os.getpid(), stop)
        self.local_transaction_ended: Callable[[Half], None] = session.sending.local_transaction_ended
        self.share_of: Callable[[ConsumerMember, str], Sequence[int]] = session.rebalance.share_of

    @classmethod
    def connect(cls, address: str, options: ConnectConfig) -> Self:
        """Connects. Raises InvalidOptionError, BrokerUnreachableError, BrokerTimeoutError."""
        session = Session(address, options)
        thread = LoopThread()
        try:
            run_on(thread.loop, os.getpid(), session.client.start())
        except BaseException:
            thread.stop()
            raise
        return cls(session, thread.loop, thread.stop)

    def __repr__(self) -> str:
        return f"RemoteBroker({self.address!r}, {'closed' if self._closed else 'open'})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in EMBEDDED_ONLY:
            raise EmbeddedOnlyError(f"a remote broker does not offer {name}\nhint: {EMBEDDED_ONLY[name]}")
        raise AttributeError(f"RemoteBroker has no attribute {name}")

    @property
    def address(self) -> str:
        """The address that `connect` was given."""
        return self._client.address

    @property
    def client_id(self) -> str:
        """The id of this connection at brokers and in consumer groups."""
        return self._client.client_id

    @property
    def options(self) -> ConnectConfig:
        """The options of the connection."""
        return self._client.options

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def read_only(self) -> bool:
        """False: a remote broker can be written to, as far as its accounts allow."""
        return False

    def close(self) -> None:
        """Waits for running checks, closes producers and consumers, and disconnects.

        Idempotent. In a forked child, only marks the broker as closed.
        """
        if os.getpid() != self._process:
            self._closed = True  # Without the lock: a thread that does not exist in the child may have held it.
            return
        with self._closing:
            if self._closed:
                return
            self._session.checks.stop(self.options.seconds("check_time_limit"))
            members: list[ConsumerMember | ProducerMember] = [
                *self._client.members.all(),
                *self._client.producers.all(),
            ]
            for member in members:
                try:
                    member.close()
                except TxStoreError as error:
                    _log.warning("%r could not be closed cleanly: %s", member, error, extra={"group": member.group})
            self._outboxes.close(_OUTBOX_STOP_SECONDS)
            self._closed = True
        self._finalizer()

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

        Raises InvalidNameError for the group name; with a database TableError. The broker is asked which log it has, so
        a database that was never used with this address raises BrokerUnreachableError and BrokerTimeoutError, too.
        """
        producer = Producer(self, group)
        if database is None:
            return producer
        return database.outbox_producer(producer, self._outboxes)

    def _outbox_log(self, remembered: Callable[[str], str | None]) -> RemoteLog:
        return RemoteLog(self._run_with_session, self.address, remembered)

    @property
    def outboxes(self) -> Outboxes:
        """The forwarders of databases whose rows are messages. For producers."""
        return self._outboxes

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[LocalTransactionState] | None = None,
        *,
        check_listener: AnyChecker[LocalTransactionState] | None = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        """Creates a producer of transactional messages. It answers checks over the connection until it is closed.

        Arguments and errors are those of `txstore.Broker.transaction_producer`: InvalidNameError, InvalidOptionError.
        """
        return TransactionProducer(self, group, listener, check_listener=check_listener, database=database)

    def consumer(
        self,
        group: str,
        topic: Topics,
        tags: str | Sql | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> Consumer:
        """Creates a consumer of `topic`. It shares the queues with all clients of the group, Java clients included.

        All members of a group must read the same topics with the same tags: that is RocketMQ's rule. The other
        arguments are those of `txstore.Consumer`. Raises InvalidNameError, InvalidOptionError.
        """
        return Consumer(
            self,
            group,
            topic,
            tags,
            start=start,
            message_model=message_model,
            instance_name=instance_name,
            max_reconsume_times=max_reconsume_times,
        )

    # interface.BrokerInterface: producers

    def appender(self, producer_group: str) -> "Callable[[Message, int], RemoteSent]":
        """Returns the call that stores the messages of a producer group."""

        def append(message: Message, queue_id: int) -> RemoteSent:
            sending = self._session.sending
            return run_now(sending.send(message, queue_id, producer_group, self._caller))

        return append

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str
    ) -> list[RemoteSent]:
        """Stores several messages in one queue, either all or none, for a producer."""
        sending = self._session.sending
        return run_now(sending.send_batch(messages, queue_ids, producer_group, self._caller))

    def recall(self, handle: str, /) -> str:
        """Ends the wait of a message for its time, so that it is never delivered. Returns its unique id."""
        return run_now(self._session.sending.recall(handle, self._caller))

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int, /) -> RemoteSent:
        """Stores a half message, for a producer."""
        sending = self._session.sending
        return run_now(sending.prepare(message, queue_id, producer_group, self._caller))

    def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int, /
    ) -> RemoteSent:
        """Stores the half messages of one transaction, for a producer. Raises EmbeddedOnlyError if RocketMQ answers."""
        sending = self._session.sending
        return run_now(sending.prepare_many(messages, queue_ids, group, self._caller))

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> RemoteEnd:
        """Commits or rolls back a transaction. Repeating an end returns `already`.

        One that this connection did not begin is ended by hand, if no `producer_group` is given.

        Raises TransactionNotFoundError, AlreadyEndedError, WrongGroupError, InvalidOptionError, and BrokerTimeoutError
        or BrokerUnreachableError if no response arrives: a check then settles it.
        """
        return self._run(self._session.end(transaction, state, producer_group))

    def end(self, half: Half, state: LocalTransactionState, producer_group: str, /) -> RemoteEnd:
        """Commits or rolls back the transaction of a half message, for a producer."""
        sending = self._session.sending
        return run_now(sending.end(half, state, producer_group, self._caller))

    def write_queues(self, topic: str) -> Sequence[int]:
        """Returns the topic's writable queues, also for a topic that the first send creates.

        Raises RouteNotFoundError if no broker has the topic and none may create it.
        """
        route = self._client.routes.get(topic)
        # On the loop, `find_topic` has just asked.
        is_on_loop = asyncio._get_running_loop() is self._loop
        if route is None or not (route.write or is_on_loop):
            validate_topic(topic)
            route = self._run(self._client.write_route(topic))
        return [self._client.numbers.number(queue) for queue in route.write]

    def register_producer(self, producer: ProducerMember) -> int:
        """Registers a producer and returns its id (> 0). Idempotent."""
        self._must_be_open()
        number = self._client.producers.add(producer)
        self._client.notify_membership()
        return number

    def unregister_producer(self, producer: ProducerMember) -> None:
        """Removes a producer from its group."""
        self._client.producers.remove(producer)
        if not self._client.producers.of_group(producer.group):
            self._later(self._client.leave_group(producer_group=producer.group))

    # interface.BrokerInterface: consumers

    def subscribable_topics(self) -> Sequence[str]:
        """Returns the topics that consumers may read, as the name server listed them lately.

        Raises BrokerUnreachableError, BrokerTimeoutError, BrokerRefusedError.
        """
        return self._run(self._session.topic_list.names())

    def read_queues(self, topic: str) -> Sequence[int]:
        """Returns the topic's readable queues; an empty list for an unknown topic."""
        route = self._client.routes.get(topic)
        if route is None and topic not in self._client.wanted_topics():
            route = self._run(self._client.route(topic))
        return [] if route is None else [self._client.numbers.number(queue) for queue in route.read]

    def puller(self, consumer: ConsumerMember) -> Pull:
        """Returns the call that reads for a registered consumer."""
        known, offsets, loop = weakref.ref(consumer), self._session.offsets, self._loop

        def go_back(topic: str, number: int, queue_offset: int) -> None:
            member = known()
            if member is not None:
                offsets.set(topic, offset_name(member, topic), number, queue_offset)
                # In a thread: the consumer waits for its current messages and calls this loop meanwhile.
                loop.run_in_executor(None, member.offsets_reset, topic, [number])

        puller = Puller(self._client, offset_group(consumer), go_back)
        self._pullers[consumer.number] = puller
        return puller

    def send_back(self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int, /) -> None:
        """Delivers a message to a group again after a delay, for a consumer."""
        self._run(self._session.offset_store.send_back(message, group, delay_level, max_reconsume_times))

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first queue offset stored at that time (ms since the epoch) or later, else the queue's end."""
        return self._run(self._session.offset_store.search(topic, queue_id, timestamp_ms))

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the first queue offset that is left, and the one after the last visible message."""
        return self._run(self._session.offset_store.queue_range(topic, queue_id))

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until the count of arrivals is above `physical_offset`, and returns it.

        An embedded broker waits for bytes of its log; a client only counts arrivals.
        """
        self._must_be_open()
        return self._client.arrivals.wait(physical_offset, timeout_ms / 1000)

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns the queue offset that a group reads next; None if it has none."""
        return self._run(self._session.offset_store.consumer_offset(topic, group, queue_id))

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Sets a group's queue offset: at once in this client, later at the broker.

        Raises InvalidNameError for a system topic, InvalidOptionError for an offset out of range.
        """
        self._must_be_open()
        if is_system_topic(topic):
            raise InvalidNameError(f"{topic} is a system topic: no group has offsets in it")
        must_not_be_negative("queue_offset", queue_offset)
        self._session.offsets.set(topic, group, queue_id, queue_offset)

    def write_offsets(self) -> None:
        """Reports all acknowledged offsets to the brokers now."""
        self._client.members.apply_decisions()
        self._run(self._session.offset_store.report(self._session.offsets.unreported()))

    def register_consumer(self, consumer: ConsumerMember) -> int:
        """Registers a consumer and returns its id.

        Raises InvalidNameError, InvalidOptionError, BrokerUnreachableError, BrokerTimeoutError, BrokerRefusedError.
        """
        self._must_be_open()
        validate_topic(consumer.topic)
        number = self._client.members.add(consumer)
        try:
            self._run(self._join(consumer))
        except BaseException:
            self._client.members.forget(number)
            raise
        return number

    async def _join(self, consumer: ConsumerMember) -> None:
        await self._client.refresh_route(consumer.topic)
        await self._client.send_heartbeats()
        if is_clustering(consumer):
            await self._session.rebalance.refresh(consumer.group)
            await self._client.refresh_route(retry_topic(consumer.group))

    def lock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> bool:
        """Locks a queue for a consumer; returns False while another member holds it."""
        if not self._client.members.lock_queue(consumer, topic, queue_id):
            return False
        if not consumer.orderly or self._run(self._session.rebalance.lock(consumer, topic, queue_id)):
            return True
        self._client.members.unlock_queue(consumer, topic, queue_id)
        return False

    def unlock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> None:
        """Stops pulling and reports the queue offset, so that the queue's next reader continues there."""
        puller = self._pullers.get(consumer.number)
        if puller is not None:
            puller.drop(topic, queue_id)
        self._run(self._leave_queue(consumer, topic, queue_id))
        self._client.members.unlock_queue(consumer, topic, queue_id)

    async def _leave_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> None:
        await self._session.offset_store.release(topic, offset_name(consumer, topic), queue_id)
        try:
            await self._session.rebalance.unlock(consumer, topic, queue_id)
        except TxStoreError as error:
            _log.info(
                "a queue could not be unlocked, its lock expires by itself: %s", error, extra={"group": consumer.group}
            )

    def unregister_consumer(self, consumer: ConsumerMember) -> None:
        """Removes a consumer from its group, and reports its offsets."""
        puller = self._pullers.pop(consumer.number, None)
        if puller is not None:
            puller.close()
        self._client.members.remove(consumer)
        if not self._closed:
            self._run(self._leave(consumer))

    async def _leave(self, consumer: ConsumerMember) -> None:
        """Unregisters a consumer. Reports its offsets first, so that the queues' next readers continue there."""
        await self._session.rebalance.unlock_all(consumer)
        rows = self._session.offsets.unreported()
        try:
            await self._session.offset_store.report(rows)
        except TxStoreError as error:
            _log.warning("acknowledged offsets could not be reported yet: %s", error, extra={"group": consumer.group})
        retries = retry_topic(consumer.group)
        self._session.offsets.leave(retries, offset_name(consumer, retries))
        name = offset_group(consumer)
        if any(offset_group(member) == name for member in self._client.members.all()):
            await self._client.send_heartbeats()
        else:
            await self._client.leave_group(consumer_group=name)

    # Internal

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            self._must_be_open()
        return run_on(self._loop, self._process, work)

    def _run_with_session(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            self._must_be_open()
        return self._run(work(self._session))

    def _run_in_thread(self, work: Callable[[Sending, ThreadCaller], Coroutine[Any, Any, T]]) -> T:
        """Runs sends in the calling thread, over a channel of its own."""
        return run_now(work(self._session.sending, self._caller))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Schedules a coroutine on the loop without waiting for it. Does nothing after `close` or in a fork."""
        if self._closed or self._loop.is_closed() or os.getpid() != self._process:
            work.close()
        else:
            self._loop.call_soon_threadsafe(self._client.spawn, work)

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the connection to {self.address} was closed\nhint: txstore.connect again")


def _disconnect(session: Session, loop: asyncio.AbstractEventLoop, process: int, stop: Callable[[], None]) -> None:
    """Disconnects; also called at interpreter exit. Does nothing in a forked child."""
    if os.getpid() != process or loop.is_closed():
        return
    try:
        asyncio.run_coroutine_threadsafe(session.close(), loop).result(_STOP_SECONDS)
    except (TxStoreError, TimeoutError) as error:
        _log.warning("the connection to %s could not be closed cleanly: %s", session.client.address, error)
    finally:
        stop()
