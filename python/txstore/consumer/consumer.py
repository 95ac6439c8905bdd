"""Consumer: a member of a group, reading its share of a topic's queues in order, at least once.

In: visible messages of the queues that are its share, and of the group's retry topic. Out: messages, and offsets that
say what was acknowledged. Always: an offset never passes a message that was not acknowledged or sent back, nor the end
of its queue; a queue has one reader of a group at a time. Not here: who gets which queue (`allocation`), the handler's
threads (`pool`), how a message comes again (the broker).
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
from txstore.consumer.pool import Handler, HandlerPool
from txstore.consumer.queue import ReadQueue, Source
from txstore.errors import (
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    OffsetTooOldError,
    StoreClosedError,
)
from txstore.interface import BrokerInterface
from txstore.listener import parse_tags
from txstore.message import ConsumeFromWhere, MessageModel, ReceivedMessage, retry_group, retry_topic

__all__ = ["Consumer"]

_log = logging.getLogger("txstore.consumer")
_PULL_BATCH = 32  # RocketMQ's pullBatchSize.
_WAIT_SLICE_MS = 200  # A wait inside the engine hears neither Ctrl-C nor close(), so it is cut into slices.
_SPAN_MAX = 2000  # RocketMQ's consumeConcurrentlyMaxSpan: how far a pool goes on past a message that still runs.
_RECONSUME_TIMES_MAX = 16
_STOP_SECONDS = 30.0
# A broker elsewhere, which is to come back.
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)
_REMOVED = "messages were removed before they were consumed"


class Consumer:
    """Reads a topic for a group. Made by `broker.consumer(group, topic)`; used by one thread (`close()` by any).

    Iterating blocks until a message comes; asking for the next acknowledges the last; `message.retry()` has it come
    again later instead. Leaving `with` normally acknowledges the one in hand; an exception or a `break` out of the loop
    does not: it comes again, at once if the same consumer goes on, else at the next start. (A `break` is seen because
    CPython closes the loop's iterator there; one kept in a variable, `it = iter(consumer)`, is seen when it is closed
    or forgotten.) Offsets are in memory at once, on disk every `flush_consumer_offset_interval` and at close.

    Several consumers of one group and topic share its queues evenly; when one comes or goes, they share anew. A queue
    changes hands when what is in hand of it is acknowledged, so whoever neither polls nor closes keeps its own.

    `tags`: `"a || b"`; None or "*" is all. `start`: where a group begins in a queue that it has no offset of: the
    first message (the default, unlike RocketMQ's last: who opens a store inside the program expects to skip nothing),
    the last, or a time. A queue that comes later is read from its first. `message_model`: BROADCASTING gives every
    member every message, without retries; its offsets are kept under `instance_name`. `max_reconsume_times`: so often
    a message comes again before it goes to the dead letters; None: 16, as in RocketMQ, and orderly without end.

    Raises InvalidNameError (group, topic), InvalidOptionError (also where another member wants something else).
    """

    def __init__(
        self,
        broker: BrokerInterface,
        group: str,
        topic: str,
        tags: str | None = None,
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
        self._topic = topic
        self._tags = parse_tags(tags)
        self._start = start if isinstance(start, datetime) else _where(start)
        self._model = MessageModel(message_model)
        self._instance = _instance(self._model, instance_name)
        self._max_reconsume_times = _times(max_reconsume_times)
        self._monotonic = monotonic
        own = group if self._instance is None else f"{group}%{self._instance}"
        self._sources = [Source(topic, self._tags, own)]
        if self._model is MessageModel.CLUSTERING:
            self._sources.append(Source(retry_topic(group), None, retry_group(group, topic), topic))
        # What its own thread reads and what other members take from it.
        self._lock = threading.RLock()
        self._queues: dict[tuple[str, int], ReadQueue] = {}
        self._turn: deque[ReadQueue] = deque()
        self._in_hand: list[tuple[ReadQueue, list[ReceivedMessage]]] = []
        self._going_back: deque[tuple[ReceivedMessage, int]] = deque()
        self._shared: list[tuple[int, ...]] = []
        self._stale = True
        self._closed = False
        self._pool: HandlerPool | None = None
        self._number = 0
        self._orderly = False
        self._number = broker.register_consumer(self)
        self._read = broker.puller(self)
        try:
            self._begin_group()
        except BaseException:
            broker.unregister_consumer(self)
            raise

    def __repr__(self) -> str:
        return f"Consumer(group={self._group!r}, topic={self._topic!r}, number={self._number})"

    @property
    def group(self) -> str:
        return self._group

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def tags(self) -> Sequence[str] | None:
        """The tags it wants; None: all."""
        return self._tags

    @property
    def message_model(self) -> MessageModel:
        return self._model

    @property
    def instance_name(self) -> str | None:
        return self._instance

    @property
    def orderly(self) -> bool:
        """Whether `run` deals with its messages in order."""
        return self._orderly

    @property
    def number(self) -> int:
        """What names it among the living, above 0."""
        return self._number

    @property
    def max_orderly_failures(self) -> int | None:
        """How often an orderly message is tried again before it goes to the dead letters; None: without end."""
        return self._max_reconsume_times

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queue_ids(self) -> tuple[int, ...]:
        """The queues of its topic that are its share now, sorted."""
        with self._lock:
            return tuple(sorted(queue_id for topic, queue_id in self._queues if topic == self._topic))

    def poll(self, max_messages: int = _PULL_BATCH, timeout: Duration | None = 0.0) -> list[ReceivedMessage]:
        """Up to `max_messages`, queue after queue in turn; acknowledges what the last call returned.

        Waits up to `timeout` (seconds or timedelta; None: until one comes) for the first, then returns what is there.
        Raises InvalidOptionError, StoreClosedError.
        """
        if max_messages.__class__ is not int or max_messages < 1:
            raise InvalidOptionError(f"max_messages {max_messages!r} must be 1 or more", option="max_messages")
        self._not_in_pool()
        if self._in_hand:
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
        """Acknowledges what is in hand now, without asking for more; what asked for a retry is sent back first.

        Raises what sending back raises: then nothing more is acknowledged, and calling again goes on.
        """
        with self._lock:
            if self._in_hand and self._closed:
                raise self._closed_error()
            while self._in_hand:
                queue, messages = self._in_hand[0]
                for message in messages:
                    delay_level = message.settle()
                    if delay_level is not None:
                        self._going_back.append((message, delay_level))
                while self._going_back:
                    self.send_back(*self._going_back[0])
                    self._going_back.popleft()
                if queue.held is not None:
                    self._note(queue, queue.held)
                    queue.held = None
                del self._in_hand[0]

    def run(
        self, handler: Handler, *, threads: int = 20, orderly: bool = False, timeout: Duration | None = None
    ) -> None:
        """Hands each message to `handler(message)`, in `threads` threads, until the consumer is closed.

        A handler that returns None or ConsumeResult.SUCCESS is done with its message; one that raises, or returns
        RECONSUME_LATER, gets it again later, as after `message.retry()`. `orderly`: one message of a queue at a time,
        in order; one that fails is tried again after a second, and its queue waits for it. `timeout`: returns when no
        message came for so long (seconds or timedelta). Raises InvalidOptionError, StoreClosedError.
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
                    if queue.running:  # Handed out and not begun, or broken off: it comes again.
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
                        return  # Closed by another thread: the loop ends.
                    raise
                yield batch[0]
        except GeneratorExit:
            # The loop was left by a break or an exception: what was in hand is not done.
            self._put_back()
            raise

    def close(self) -> None:
        """Leaves the group and writes the offsets; what is in hand is not acknowledged. Again: nothing.

        While `run` runs, handlers finish what they have begun (at most 30 s), and `run` returns.
        """
        pool = self._pool
        if pool is None:
            self._leave()
        elif not pool.stop():
            return  # Called by a handler: `run` leaves when it is done.
        elif not pool.ended.wait(_STOP_SECONDS):
            _log.warning("a handler of group %s still runs; it is left behind", self._group)
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

    # What a broker tells a member

    def members_changed(self) -> None:
        """The queues are shared anew at the next read."""
        self._stale = True

    def release(self, topic: str, queue_id: int) -> bool:
        """Lets go of a queue for another member, if nothing of it is in hand; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            queue = self._queues.get((topic, queue_id))
            if queue is not None:
                if queue.busy:
                    return False
                self._drop(queue)
            return True
        finally:
            self._lock.release()

    def offsets_reset(self, topic: str, queue_ids: Sequence[int]) -> None:
        """The group's offsets in these queues were set anew: reading goes on there."""
        with self._lock:
            for queue_id in queue_ids:
                queue = self._queues.get((topic, queue_id))
                if queue is not None:
                    self._drop(queue)
                    self._broker.unlock_queue(self, topic, queue_id)

    # For the pool

    def take_running(self, count: int, *, orderly: bool) -> list[tuple[ReadQueue, ReceivedMessage]]:
        """Up to `count` messages that run from now on, until `finish` is told of each."""
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
        """A message that ran is done with; its queue's offset goes as far as all in front of it are."""
        with self._lock:
            if queue.dropped:
                return
            queue.running.pop(message.queue_offset, None)
            queue.failures = 0
            self._note(queue, queue.done)

    def suspend(self, queue: ReadQueue, seconds: float) -> None:
        """An orderly queue's message failed: it comes again after so long, and nothing behind it before."""
        with self._lock:
            if not queue.dropped:
                queue.failures += 1
                queue.not_before = self._monotonic() + seconds
                queue.rewind()

    def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Has a message come again later, or parks it with the dead letters."""
        if self._model is MessageModel.BROADCASTING:
            _log.warning(
                "message %s is dropped: a broadcast consumer has no retries",
                message.message_id,
                extra={"topic": self._topic, "group": self._group, "message_id": message.message_id},
            )
            return
        most = _RECONSUME_TIMES_MAX if self._max_reconsume_times is None else self._max_reconsume_times
        self._broker.send_back(message, self._group, delay_level, most)

    def wait(self, visible_end: int, seconds: float) -> int:
        """Waits until something new is visible; returns the visible end. One slice at most."""
        return self._broker.wait(visible_end, min(_WAIT_SLICE_MS, max(0, round(seconds * 1000))))

    # Inside

    def _set_orderly(self, orderly: bool) -> None:
        """Queues are taken anew, where that means another lock."""
        with self._lock:
            if orderly is self._orderly:
                return
            for (topic, queue_id), queue in list(self._queues.items()):
                self._drop(queue)
                self._broker.unlock_queue(self, topic, queue_id)
            self._orderly = orderly

    def _not_in_pool(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._pool is not None:
            raise InvalidOptionError(
                f"the consumer of group {self._group} is run by a handler\nhint: make another consumer",
                option="consumer",
            )

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"the consumer of group {self._group} is closed")

    def _leave(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._in_hand.clear()
            self._going_back.clear()
            for queue in self._queues.values():
                queue.dropped = True
            self._broker.unregister_consumer(self)
        self._broker.write_offsets()

    def _take(self, count: int) -> list[ReceivedMessage]:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            taken = self._from_queues(count, lambda _: count)
            if len(taken) == 1:
                queue, messages = taken[0]
                queue.held = messages[-1].queue_offset + 1 if queue.ahead else queue.next_offset
                self._in_hand.append((queue, messages))
                return messages.copy()
            for queue, messages in taken:
                queue.held = messages[-1].queue_offset + 1 if queue.ahead else queue.next_offset
            self._in_hand.extend(taken)
        return [message for _, messages in taken for message in messages]

    def _from_queues(
        self, count: int, room: Callable[[ReadQueue], int]
    ) -> list[tuple[ReadQueue, list[ReceivedMessage]]]:
        """Up to `count` messages: what the first queue has, then the next; whoever gave is last the next time."""
        self._share()
        taken: list[tuple[ReadQueue, list[ReceivedMessage]]] = []
        for _ in range(len(self._turn)):
            queue = self._turn[0]
            limit = 0 if queue.leaving else min(count, room(queue))
            if limit > 0:
                try:
                    messages = self._next(queue, limit)
                except BaseException:
                    if taken:
                        return taken  # The error is that queue's alone, and comes again at the next call.
                    self._turn.rotate(-1)
                    raise
                if messages:
                    taken.append((queue, messages))
                    count -= len(messages)
            self._turn.rotate(-1)
            if count <= 0:
                break
        return taken

    def _share(self) -> None:
        """Takes and leaves queues as the members and the topic's queues have it now."""
        found = [tuple(self._broker.read_queues(source.topic)) for source in self._sources]
        if found == self._shared and not self._stale:
            return
        self._stale = False
        wanted: dict[tuple[str, int], Source] = {}
        for source, queue_ids in zip(self._sources, found, strict=True):
            every = self._model is MessageModel.BROADCASTING
            mine = queue_ids if every else self._broker.share_of(self, source.topic)
            wanted.update(((source.topic, queue_id), source) for queue_id in mine)
        for (topic, queue_id), queue in list(self._queues.items()):
            queue.leaving = (topic, queue_id) not in wanted
            if not queue.leaving:
                continue
            if queue.busy:
                self._stale = True  # It goes when what is in hand of it is done.
                continue
            self._drop(queue)
            self._broker.unlock_queue(self, topic, queue_id)
        for (topic, queue_id), source in wanted.items():
            if (topic, queue_id) in self._queues:
                continue
            try:
                if self._model is MessageModel.BROADCASTING or self._broker.lock_queue(self, topic, queue_id):
                    self._add(source, queue_id)
                else:
                    self._stale = True  # Its holder has something of it in hand.
            except _AWAY as error:
                self._stale = True
                _log.warning("%s/%d is read when its broker is back: %s", topic, queue_id, error)
        self._shared = found

    def _add(self, source: Source, queue_id: int) -> None:
        begin = self._begin(source, queue_id)
        queue = ReadQueue(source, queue_id, begin, begin)
        self._queues[source.topic, queue_id] = queue
        self._turn.append(queue)

    def _drop(self, queue: ReadQueue) -> None:
        queue.dropped = True
        queue.held = None
        del self._queues[queue.source.topic, queue.queue_id]
        self._turn.remove(queue)
        self._stale = True

    def _begin_group(self) -> None:
        """Where a group begins that has no offset on the topic yet: noted at once, on disk, for the queues that are
        there. So no message is passed over that comes later, into whatever queue, read by whichever member."""
        if self._start is ConsumeFromWhere.FIRST:
            return
        group = self._sources[0].offset_group
        queue_ids = self._broker.read_queues(self._topic)
        if any(self._broker.consumer_offset(self._topic, group, queue_id) is not None for queue_id in queue_ids):
            return
        # Also of a topic that is not there yet: what comes then is not passed over by who starts anew.
        for queue_id in queue_ids or (0,):
            if isinstance(self._start, datetime):
                begin = self._broker.search_offset(self._topic, queue_id, round(self._start.timestamp() * 1000))
            else:
                _, begin = self._broker.queue_range(self._topic, queue_id)
            self._broker.set_consumer_offset(self._topic, group, queue_id, begin)
        self._broker.write_offsets()

    def _begin(self, source: Source, queue_id: int) -> int:
        """Where to go on in a queue: the group's offset, brought inside the queue, else its first message."""
        offset = self._broker.consumer_offset(source.topic, source.offset_group, queue_id)
        # Asked behind it: what another acknowledges meanwhile must not seem to be beyond the end.
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
        """The next messages of one queue; where nothing of it is in hand, what was passed over is acknowledged."""
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
                continue  # Retention may have gone on meanwhile.
            messages = found if isinstance(found, list) else list(found)
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
                self._note(queue, queue.next_offset)

    def _pull(self, queue: ReadQueue, count: int) -> tuple[Sequence[ReceivedMessage], int]:
        source = queue.source
        return self._read(source.topic, queue.queue_id, queue.next_offset, count, source.tags)

    def _note(self, queue: ReadQueue, queue_offset: int) -> None:
        if queue_offset > queue.acknowledged:
            source = queue.source
            self._broker.set_consumer_offset(source.topic, source.offset_group, queue.queue_id, queue_offset)
            queue.acknowledged = queue_offset

    def _put_back(self) -> None:
        """What is in hand is next again, in order."""
        with self._lock:
            self._going_back.clear()
            for queue, _ in self._in_hand:
                if not queue.dropped:
                    queue.rewind()
                    # It was last in turn; now it is next.
                    self._turn.remove(queue)
                    self._turn.appendleft(queue)
            self._in_hand.clear()

    def _report(self, what: str, topic: str, queue_id: int, was: int, now: int) -> None:
        _log.warning(
            "%s: %s/%d goes on at %d, not %d",
            what,
            topic,
            queue_id,
            now,
            was,
            extra={"topic": topic, "group": self._group, "queue_id": queue_id, "queue_offset": now},
        )


def _where(start: object) -> ConsumeFromWhere:
    try:
        return ConsumeFromWhere(start)
    except ValueError:
        raise InvalidOptionError(
            f"start {start!r} is none\nhint: ConsumeFromWhere.FIRST, ConsumeFromWhere.LAST, or a datetime",
            option="start",
        ) from None


def _instance(model: MessageModel, name: object) -> str | None:
    if model is MessageModel.CLUSTERING:
        if name is not None:
            raise InvalidOptionError(
                "instance_name is for message_model=MessageModel.BROADCASTING; a sharing group has offsets of its own",
                option="instance_name",
            )
        return None
    if not isinstance(name, str):
        raise InvalidOptionError(
            "a broadcast consumer needs instance_name: its offsets are kept by it, so that it goes on after a restart\n"
            'hint: instance_name="worker-1"',
            option="instance_name",
        )
    validate_group(name)
    return name


def _times(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidOptionError(
            f"max_reconsume_times {value!r} is none\nhint: 0 or more; RocketMQ's default is 16",
            option="max_reconsume_times",
        )
    return value
