"""Consumer: a member of a group that reads its queues of a topic in order, at least once.

In:     visible messages of the queues assigned to it, and of the group's retry topic.
Out:    messages, and offsets that tell what was acknowledged.
Always: an offset never passes a message that was not acknowledged or sent back, nor the end of its queue. A queue has
        one reader of a group at a time.
Not here: the assignment of queues (`allocation`), the handler's threads (`pool`), redelivery (the broker).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from txstore._native import validate_group
from txstore.config import Duration, as_timedelta, milliseconds
from txstore.consumer.options import checked_instance_name, checked_reconsume_times, checked_start
from txstore.consumer.pool import Handler, HandlerPool
from txstore.consumer.queue import QueueKey, ReadQueue, Source
from txstore.consumer.subscription import Subscription, TopicMember, Topics
from txstore.consumer.unacknowledged import Unacknowledged
from txstore.errors import (
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    OffsetTooOldError,
    StoreClosedError,
)
from txstore.interface import BrokerInterface
from txstore.message import ConsumeFromWhere, MessageModel, MessageQueue, ReceivedMessage, retry_group, retry_topic
from txstore.selector import Selector, Sql

__all__ = ["Consumer"]

_log = logging.getLogger("txstore.consumer")
_PULL_BATCH = 32  # RocketMQ's pullBatchSize.
_WAIT_SLICE_MS = 200  # Ctrl-C and close() cannot interrupt a wait inside the engine, so it is cut into slices.
_SPAN_MAX = 2000  # RocketMQ's consumeConcurrentlyMaxSpan: how far a pool reads beyond a message that still runs.
_RECONSUME_TIMES_MAX = 16
_STOP_SECONDS = 30.0
# A remote broker is down or overloaded, and expected to come back.
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)
_FIND_SECONDS = 1.0  # How often a pattern is compared with the topics.
_REMOVED = "messages were removed before they were consumed"


class Consumer:
    """Reads topics for a group. Created by `broker.consumer(group, topic)`. Used by one thread; any may `close()` it.

    Iterating waits for messages. Asking for the next message acknowledges the last one; `message.retry()` asks for
    delivery again later instead. Leaving `with` normally acknowledges the current message. After an exception or a
    `break` out of the loop it is not acknowledged and will be delivered again: at once if the same consumer continues,
    otherwise at the next start. `message.ack()` and `message.nack()` decide about one message, and hold then, too. (A
    `break` is noticed because CPython closes the loop's iterator there. An iterator in a variable, `it =
    iter(consumer)`, is noticed when it is closed or freed.) Offsets are in memory at once, and on disk every
    `flush_consumer_offset_interval` and at close.

    Several consumers of one group and topic share its queues evenly, and the queues are assigned again when one comes
    or goes. A queue passes to another member once its messages are acknowledged, so a consumer that neither polls nor
    closes keeps its queues.

    `topic` is a name, several names, a dict of names and their tags, or a compiled pattern that matches whole names.
    Topics that are created later and match are found within a second or so, and read from their first message.

    `tags` is `"a || b"`, or `Sql("price > 10")`, an expression over the messages' properties, in which the topic dict's
    values may be, too; None or "*" means all. `start` tells where a group begins in a queue that it has no offset
    for: the first message, the last, or a time. The default is the first, unlike RocketMQ's last, because a program
    that opens its own store expects to skip nothing. A queue that is added later is read from its first message.
    `message_model=BROADCASTING` delivers every message to every member, without retries, and keeps offsets under
    `instance_name`. `max_reconsume_times` is the number of retries before a message goes to the dead letters; None
    means 16, as in RocketMQ, and no limit for orderly consumption.

    Raises InvalidNameError (group, topic), InvalidOptionError (also if another member has a different subscription).
    """

    def __init__(
        self,
        broker: BrokerInterface,
        group: str,
        topic: Topics,
        tags: str | Sql | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        validate_group(group)
        self._broker = broker
        self._group = group
        self._subscription = Subscription(topic, tags)
        self._start = checked_start(start)
        self._model = MessageModel(message_model)
        self._instance = checked_instance_name(self._model, instance_name)
        self._max_reconsume_times = checked_reconsume_times(max_reconsume_times)
        self._monotonic = monotonic
        # The lock guards what the consumer's own thread reads and what other members take from it.
        self._lock = threading.RLock()
        self._members: dict[str, TopicMember] = {}
        self._sources: list[Source] = []
        self._queues: dict[QueueKey, ReadQueue] = {}
        self._turn: deque[ReadQueue] = deque()
        self._unacknowledged = Unacknowledged()
        self._assigned: list[tuple[int, ...]] = []
        self._stale = True
        self._closed = False
        self._pool: HandlerPool | None = None
        self._orderly = False
        self._find_at: float | None = None
        try:
            for name, own_tags in self._subscription.named.items():
                self._add_topic(name, own_tags, begins=True)
                if not broker.read_queues(name):
                    _log.warning(
                        "topic %s does not exist, group %s waits for it\nhint: check its name, or create it",
                        name,
                        group,
                        extra={"topic": name, "group": group},
                    )
            if self._subscription.pattern is not None:
                self._find_topics(begins=True)
                self._find_at = monotonic() + _FIND_SECONDS
        except BaseException:
            self._unregister()
            raise

    def __repr__(self) -> str:
        return f"Consumer(group={self._group!r}, topic={self.topic!r}, number={self.number})"

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._group

    @property
    def topic(self) -> str:
        """The topic that it reads; the names of several, separated by commas; or the pattern."""
        return str(self._subscription)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads now, sorted. With a pattern, those that match it are added as they are found."""
        with self._lock:
            return tuple(sorted(self._members))

    @property
    def tags(self) -> Selector:
        """The tags, or the expression, for topics without tags of their own; None for all."""
        return self._subscription.tags

    @property
    def message_model(self) -> MessageModel:
        """Whether members share the queues or each get every message."""
        return self._model

    @property
    def instance_name(self) -> str | None:
        """The name under which a broadcasting member keeps its offsets."""
        return self._instance

    @property
    def orderly(self) -> bool:
        """Whether `run` handles the messages of a queue in order."""
        return self._orderly

    @property
    def number(self) -> int:
        """Its id at the broker in the first topic that it reads, above 0; 0 while it reads none."""
        return next((member.number for member in self._members.values()), 0)

    @property
    def max_orderly_failures(self) -> int | None:
        """How often an orderly message is tried again before it goes to the dead letters; None for no limit."""
        return self._max_reconsume_times

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def queue_ids(self) -> tuple[int, ...]:
        """The queues of its topic that are assigned to it now, sorted. For several topics, see `queues`."""
        return tuple(sorted(queue.queue_id for queue in self.queues))

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of its topics that are assigned to it now, sorted by topic and queue id."""
        with self._lock:
            return tuple(sorted(MessageQueue(topic, queue_id) for own, topic, queue_id in self._queues if topic == own))

    def poll(self, max_messages: int = _PULL_BATCH, timeout: Duration | None = 0.0) -> list[ReceivedMessage]:
        """Returns up to `max_messages`, from the queues in turn, and acknowledges those of the last call.

        Waits up to `timeout` (seconds or timedelta; None: without limit) for the first message and returns what is
        available then. Raises InvalidOptionError, StoreClosedError.
        """
        if max_messages.__class__ is not int or max_messages < 1:
            raise InvalidOptionError(f"max_messages must be 1 or more, got {max_messages!r}", option="max_messages")
        self._not_in_pool()
        if self._unacknowledged.queues:
            self.acknowledge()
        taken = self._take(max_messages)
        if taken:
            return taken
        span = None if timeout is None else as_timedelta(timeout, "timeout")
        until = None if span is None else self._monotonic() + span.total_seconds()
        while True:
            visible_end = self._broker.wait(0, 0)
            taken = self._take(max_messages)
            left_ms = _WAIT_SLICE_MS if until is None else milliseconds(max(0.0, until - self._monotonic()))
            if taken or left_ms <= 0:
                return taken
            self._broker.wait(visible_end, min(left_ms, _WAIT_SLICE_MS))

    def acknowledge(self) -> None:
        """Acknowledges the messages handed out last, without reading more. Those that asked for a retry go back first.

        Raises the errors of sending a message back. Nothing after it is acknowledged then; call again to continue.
        """
        with self._lock:
            if self._unacknowledged.queues and self._closed:
                raise self._closed_error()
            self._unacknowledged.acknowledge(self)

    def run(
        self, handler: Handler, *, threads: int = 20, orderly: bool = False, timeout: Duration | None = None
    ) -> None:
        """Calls `handler(message)` for each message, in `threads` threads, until the consumer is closed.

        A message is done when its handler returns None or ConsumeResult.SUCCESS. If the handler raises or returns
        RECONSUME_LATER, the message is delivered again later, as after `message.retry()`. With `orderly`, the messages
        of a queue run one at a time, in order; one that fails is tried again after a second, and its queue waits for
        it. `timeout` (seconds or timedelta) makes `run` return when no message came for that long. Raises
        InvalidOptionError, StoreClosedError.
        """
        self._not_in_pool()
        pool = HandlerPool(self, handler, threads, timeout, self._monotonic, orderly=orderly)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            self.acknowledge()
            self._pool = pool
            self._set_orderly(orderly)
        try:
            pool.run()
        finally:
            with self._lock:
                for queue in self._queues.values():
                    if queue.running:  # Handed out and not begun, or interrupted: it is delivered again.
                        queue.rewind()
            self._pool = None
            if not self._closed:
                self._set_orderly(False)
            if pool.stopping:
                self._leave()
            pool.ended.set()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        try:
            while True:
                try:
                    batch = self.poll(1, None)
                except StoreClosedError:
                    if self.closed:
                        return  # Another thread closed the consumer, so the loop ends.
                    raise
                yield batch[0]
        except GeneratorExit:
            # The loop was left by a break or an exception, so its current message is not done.
            self._put_back()
            raise

    def close(self) -> None:
        """Leaves the group and writes the offsets. Unacknowledged messages are delivered again. Idempotent.

        While `run` runs, its handlers finish what they have begun (at most 30 s), and `run` returns.
        """
        pool = self._pool
        if pool is None:
            self._leave()
        elif not pool.stop():
            return  # A handler called it: `run` leaves the group when the handlers are done.
        elif not pool.ended.wait(_STOP_SECONDS):
            _log.warning("a handler of group %s still runs; the consumer closes without it", self._group)
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        try:
            if error is None:
                self.acknowledge()
        finally:
            self.close()

    # Called by the broker

    def members_changed(self) -> None:
        """Has the queues assigned again at the next read."""
        self._stale = True

    def release(self, own_topic: str, topic: str, queue_id: int) -> bool:
        """Releases a queue for another member in `own_topic`, if none of its messages is unacknowledged. Never waits.

        `topic` is that topic or the group's retry topic."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            queue = self._queues.get((own_topic, topic, queue_id))
            if queue is not None:
                if queue.busy:
                    return False
                self._drop(queue)
            return True
        finally:
            self._lock.release()

    def apply_decisions(self) -> None:
        """Acknowledges or sends back the messages for which `ack` or `nack` was called. Never waits for the consumer's
        own thread, which does the same when it continues."""
        if self._unacknowledged.queues and self._lock.acquire(blocking=False):
            try:
                self._unacknowledged.apply_decisions(self)
            finally:
                self._lock.release()

    def offsets_reset(self, own_topic: str, topic: str, queue_ids: Sequence[int]) -> None:
        """Continues at the group's new offsets in these queues, which it reads as a member in `own_topic`."""
        with self._lock:
            for queue_id in queue_ids:
                queue = self._queues.get((own_topic, topic, queue_id))
                if queue is not None:
                    self._release(queue)

    # For the pool

    def take_running(self, count: int, *, orderly: bool) -> list[tuple[ReadQueue, ReceivedMessage]]:
        """Returns up to `count` messages, which count as running until `finish` is called for each."""
        now = self._monotonic()

        def room(queue: ReadQueue) -> int:
            if orderly:
                return 0 if queue.running or now < queue.not_before else 1
            return count if queue.next_offset - queue.done < _SPAN_MAX else 0

        with self._lock:
            taken = self._from_queues(count, room)
            for queue, messages in taken:
                queue.running.update((message.queue_offset, None) for message in messages)
        return [(queue, message) for queue, messages in taken for message in messages]

    def finish(self, queue: ReadQueue, message: ReceivedMessage) -> None:
        """Marks a running message as done; its queue's offset advances up to the first message that is not."""
        with self._lock:
            if queue.dropped:
                return
            queue.running.pop(message.queue_offset, None)
            queue.failures = 0
            self.note(queue, queue.done)

    def suspend(self, queue: ReadQueue, seconds: float) -> None:
        """Delays an orderly queue after its message failed. That message is delivered first afterwards."""
        with self._lock:
            if not queue.dropped:
                queue.failures += 1
                queue.not_before = self._monotonic() + seconds
                queue.rewind()

    def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Has a message delivered again later, or moved to the dead letters."""
        if self._model is MessageModel.BROADCASTING:
            _log.warning(
                "message %s is dropped: a broadcasting consumer has no retries",
                message.message_id,
                extra={"topic": message.topic, "group": self._group, "message_id": message.message_id},
            )
            return
        most = _RECONSUME_TIMES_MAX if self._max_reconsume_times is None else self._max_reconsume_times
        self._broker.send_back(message, self._group, delay_level, most)

    def note(self, queue: ReadQueue, queue_offset: int) -> None:
        """Acknowledges the messages of a queue before an offset."""
        if queue_offset > queue.acknowledged:
            source = queue.source
            self._broker.set_consumer_offset(source.topic, source.offset_group, queue.queue_id, queue_offset)
            queue.acknowledged = queue_offset
            if queue.decided:
                queue.decided = {offset for offset in queue.decided if offset >= queue_offset}

    def wait(self, visible_end: int, seconds: float) -> int:
        """Waits until something new is visible, for one slice at most; returns the visible end."""
        return self._broker.wait(visible_end, min(_WAIT_SLICE_MS, max(0, round(seconds * 1000))))

    # Private

    def _set_orderly(self, orderly: bool) -> None:
        """Switches the kind of lock on queues; takes all queues again if it changes."""
        with self._lock:
            if orderly is self._orderly:
                return
            for queue in list(self._queues.values()):
                self._release(queue)
            self._orderly = orderly

    def _not_in_pool(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._pool is not None:
            raise InvalidOptionError(
                f"the consumer of group {self._group} is run by a handler\nhint: create another consumer",
                option="consumer",
            )

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"the consumer of group {self._group} is closed")

    def _leave(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._unacknowledged.apply_decisions(self, give_back=True)
            self._unacknowledged.clear()
            self._closed = True
            for queue in self._queues.values():
                queue.dropped = True
            self._unregister()
        self._broker.write_offsets()

    def _unregister(self) -> None:
        for member in self._members.values():
            self._broker.unregister_consumer(member)

    def _take(self, count: int) -> list[ReceivedMessage]:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            taken = self._from_queues(count, lambda _: count)
            for queue, messages in taken:
                queue.held = messages[-1].queue_offset + 1 if queue.ahead else queue.next_offset
            self._unacknowledged.queues += taken
        if len(taken) == 1:
            return taken[0][1].copy()
        return [message for _, messages in taken for message in messages]

    def _from_queues(
        self, count: int, room: Callable[[ReadQueue], int]
    ) -> list[tuple[ReadQueue, list[ReceivedMessage]]]:
        """Returns up to `count` messages, from the queues in turn. A queue that gave messages is last the next time."""
        self._rebalance()
        taken: list[tuple[ReadQueue, list[ReceivedMessage]]] = []
        for _ in range(len(self._turn)):
            queue = self._turn[0]
            limit = 0 if queue.leaving else min(count, room(queue))
            if limit > 0:
                try:
                    messages = self._next(queue, limit)
                except BaseException:
                    if taken:
                        return taken  # The error concerns that queue alone, and comes up again at the next call.
                    self._turn.rotate(-1)
                    raise
                if messages:
                    taken.append((queue, messages))
                    count -= len(messages)
            self._turn.rotate(-1)
            if count <= 0:
                break
        return taken

    def _rebalance(self) -> None:
        """Takes and releases queues by the current members, topics and queues."""
        if self._find_at is not None and self._monotonic() >= self._find_at:
            self._find_new_topics()
        found = [tuple(self._broker.read_queues(source.topic)) for source in self._sources]
        if found == self._assigned and not self._stale:
            return
        self._stale = False
        wanted: dict[QueueKey, Source] = {}
        for source, queue_ids in zip(self._sources, found, strict=True):
            every = self._model is MessageModel.BROADCASTING
            mine = queue_ids if every else self._broker.share_of(source.member, source.topic)
            wanted.update(((source.member.topic, source.topic, queue_id), source) for queue_id in mine)
        for key, queue in list(self._queues.items()):
            queue.leaving = key not in wanted
            if not queue.leaving:
                continue
            if queue.busy:
                self._stale = True  # It is released when its messages are acknowledged.
                continue
            self._release(queue)
        for key, source in wanted.items():
            if key not in self._queues:
                self._take_queue(source, key[2])
        self._assigned = found

    def _take_queue(self, source: Source, queue_id: int) -> None:
        """Begins to read a queue, unless another member still has unacknowledged messages of it."""
        every = self._model is MessageModel.BROADCASTING
        try:
            if every or self._broker.lock_queue(source.member, source.topic, queue_id):
                begin = self._begin(source, queue_id)
                queue = ReadQueue(source, queue_id, begin, begin)
                self._queues[queue.key] = queue
                self._turn.append(queue)
            else:
                self._stale = True
        except _AWAY as error:
            self._stale = True
            _log.warning("%s/%d will be read when its broker is back: %s", source.topic, queue_id, error)

    def _release(self, queue: ReadQueue) -> None:
        """Stops reading a queue, and lets another member have it."""
        self._drop(queue)
        self._broker.unlock_queue(queue.source.member, queue.source.topic, queue.queue_id)

    def _drop(self, queue: ReadQueue) -> None:
        queue.dropped = True
        queue.held = None
        del self._queues[queue.key]
        self._turn.remove(queue)
        self._stale = True

    def _add_topic(self, topic: str, tags: Selector, *, begins: bool) -> None:
        """Becomes a member in a topic. `begins`: the group begins there where `start` tells, if it has no offset."""
        member = TopicMember(self, topic, tags)
        member.number = self._broker.register_consumer(member)
        self._members[topic] = member
        own = self._group if self._instance is None else f"{self._group}%{self._instance}"
        source = Source(topic, tags, own, member, self._broker.puller(member))
        if begins:
            self._begin_group(source)
        self._sources.append(source)
        if self._model is MessageModel.CLUSTERING:
            retries = retry_group(self._group, topic)
            self._sources.append(Source(retry_topic(self._group), None, retries, member, source.read, topic))

    def _find_topics(self, *, begins: bool = False) -> None:
        """Becomes a member in the topics that the pattern matches and that it does not read yet."""
        for topic in self._broker.subscribable_topics():
            if topic not in self._members and self._subscription.matches(topic):
                self._add_topic(topic, self._subscription.tags, begins=begins)

    def _find_new_topics(self) -> None:
        self._find_at = self._monotonic() + _FIND_SECONDS
        try:
            self._find_topics()
        except _AWAY as error:
            _log.warning("new topics of group %s will be found when the broker is back: %s", self._group, error)

    def _begin_group(self, source: Source) -> None:
        """Stores where a group begins that has no offset on the topic yet, for all queues, on disk.

        So no later message is skipped, whichever queue it is in and whichever member reads it.
        """
        if self._start is ConsumeFromWhere.FIRST:
            return
        topic, group = source.topic, source.offset_group
        queue_ids = self._broker.read_queues(topic)
        if any(self._broker.consumer_offset(topic, group, queue_id) is not None for queue_id in queue_ids):
            return
        # Also for a topic that does not exist yet, so that a restarted group does not skip its first messages.
        for queue_id in queue_ids or (0,):
            if isinstance(self._start, datetime):
                begin = self._broker.search_offset(topic, queue_id, round(self._start.timestamp() * 1000))
            else:
                _, begin = self._broker.queue_range(topic, queue_id)
            self._broker.set_consumer_offset(topic, group, queue_id, begin)
        self._broker.write_offsets()

    def _begin(self, source: Source, queue_id: int) -> int:
        """Returns the first offset to read in a queue: the group's, moved inside the queue, or the first message."""
        offset = self._broker.consumer_offset(source.topic, source.offset_group, queue_id)
        # Read the range after the offset: another member may acknowledge in between, and its offset must not look as if
        # it were beyond the end.
        first, end = self._broker.queue_range(source.topic, queue_id)
        if offset is None:
            return first
        if offset > end:
            self._report("consumer offset was beyond the end of its queue", source.topic, queue_id, offset, end)
            return end
        if offset < first:
            self._report(_REMOVED, source.topic, queue_id, offset, first)
            return first
        return offset

    def _next(self, queue: ReadQueue, count: int) -> list[ReceivedMessage]:
        """Returns the next messages of one queue. If none is unacknowledged, skipped messages are acknowledged."""
        if queue.ahead:
            return queue.take(count)
        source = queue.source
        while True:
            before = queue.next_offset
            try:
                found, queue.next_offset = self._pull(queue, max(count, _PULL_BATCH))
            except OffsetTooOldError as error:
                self._report(
                    _REMOVED,
                    source.topic,
                    queue.queue_id,
                    before,
                    error.minimum,
                )
                queue.next_offset = error.minimum
                continue  # Retention may have removed more meanwhile.
            messages = found if isinstance(found, list) else list(found)
            if queue.decided:
                messages = [message for message in messages if message.queue_offset not in queue.decided]
            if source.origin is not None:
                messages = [message for message in messages if message.topic == source.origin]
            if messages:
                if len(messages) > count:
                    queue.ahead = messages[count:]
                    del messages[count:]
                return messages
            if queue.next_offset == before:
                return messages
            if not queue.busy:
                self.note(queue, queue.next_offset)

    def _pull(self, queue: ReadQueue, count: int) -> tuple[Sequence[ReceivedMessage], int]:
        source = queue.source
        return source.read(source.topic, queue.queue_id, queue.next_offset, count, source.tags)

    def _put_back(self) -> None:
        """Returns unacknowledged messages to their queues, in order."""
        with self._lock:
            self._unacknowledged.apply_decisions(self, give_back=True)
            for queue in self._unacknowledged.clear():
                if not queue.dropped:
                    queue.rewind()
                    # It was last in turn. Now it is next.
                    self._turn.remove(queue)
                    self._turn.appendleft(queue)

    def _report(self, what: str, topic: str, queue_id: int, was: int, now: int) -> None:
        _log.warning(
            "%s: %s/%d continues at %d, not %d",
            what,
            topic,
            queue_id,
            now,
            was,
            extra={"topic": topic, "group": self._group, "queue_id": queue_id, "queue_offset": now},
        )
