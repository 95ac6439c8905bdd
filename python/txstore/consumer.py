"""Consumer: the one member of a group in this process, reading a topic's queues in order, at least once.

In: visible messages of every queue of a topic. Out: messages, and offsets that say what was acknowledged. Always: an
offset never passes a message that was not acknowledged, nor the end of its queue. Not here: retries and dead letters,
and sharing queues between several members.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from txstore._native import validate_group
from txstore.config import Duration, as_timedelta, milliseconds
from txstore.errors import InvalidOptionError, OffsetTooOldError, StoreClosedError
from txstore.interface import BrokerInterface
from txstore.listener import parse_tags
from txstore.message import ConsumeFromWhere, ReceivedMessage

__all__ = ["Consumer"]

_log = logging.getLogger("txstore.consumer")
_PULL_BATCH = 32  # RocketMQ's pullBatchSize.
_WAIT_SLICE_MS = 200  # A wait inside the engine hears neither Ctrl-C nor close(), so it is cut into slices.


class _Queue:
    """One queue: what was read ahead of it, and how far it is acknowledged."""

    __slots__ = ("acknowledged", "ahead", "next_offset", "queue_id")

    def __init__(self, queue_id: int, queue_offset: int) -> None:
        self.queue_id = queue_id
        self.ahead: deque[ReceivedMessage] = deque()
        self.next_offset = queue_offset
        self.acknowledged = queue_offset


class Consumer:
    """Reads a topic for a group. Made by `broker.consumer(group, topic)`; used by one thread (`close()` by any).

    Iterating blocks until a message comes; asking for the next acknowledges the last. Leaving `with` normally
    acknowledges the one in hand; an exception or a `break` out of the loop does not: it comes again, at once if the
    same consumer goes on, else at the next start. (A `break` is seen because CPython closes the loop's iterator there;
    one kept in a variable, `it = iter(consumer)`, is seen when it is closed or forgotten.) Offsets are in memory at
    once, on disk every `flush_consumer_offset_interval` and at close.

    `tags`: `"a || b"`; None or "*" is all. `start`: where a group begins in a queue that it has no offset of. The
    default is the first message, unlike RocketMQ's last: who opens a store inside the program expects to skip nothing.

    Raises InvalidNameError (group, topic), InvalidOptionError (the group has a member on this topic here already).
    """

    def __init__(
        self,
        broker: BrokerInterface,
        group: str,
        topic: str,
        tags: str | None = None,
        *,
        start: ConsumeFromWhere = ConsumeFromWhere.FIRST,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        validate_group(group)
        self._broker = broker
        self._group = group
        self._topic = topic
        self._tags = parse_tags(tags)
        self._start = ConsumeFromWhere(start)
        self._monotonic = monotonic
        self._queues: dict[int, _Queue] = {}
        self._turn: deque[_Queue] = deque()
        self._in_hand: list[tuple[_Queue, ReceivedMessage]] = []
        self._closed = False
        broker.register_consumer(self)

    def __repr__(self) -> str:
        return f"Consumer(group={self._group!r}, topic={self._topic!r})"

    @property
    def group(self) -> str:
        return self._group

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def closed(self) -> bool:
        return self._closed

    def poll(self, max_messages: int = _PULL_BATCH, timeout: Duration | None = 0.0) -> list[ReceivedMessage]:
        """Up to `max_messages`, taken from the queues in turn; acknowledges what the last call returned.

        Waits up to `timeout` (seconds or timedelta; None: until one comes) for the first, then returns what is there.
        Raises InvalidOptionError, StoreClosedError.
        """
        if max_messages < 1:
            raise InvalidOptionError(f"max_messages {max_messages!r} must be 1 or more", option="max_messages")
        span = None if timeout is None else as_timedelta(timeout, "timeout")
        until = None if span is None else self._monotonic() + span.total_seconds()
        self.acknowledge()
        while not self._closed:
            visible_end = self._broker.wait(0, 0)
            taken = self._take(max_messages)
            if taken:
                self._in_hand = taken
                return [message for _, message in taken]
            left_ms = _WAIT_SLICE_MS if until is None else milliseconds(max(0.0, until - self._monotonic()))
            if left_ms <= 0:
                return []
            self._broker.wait(visible_end, min(left_ms, _WAIT_SLICE_MS))
        raise StoreClosedError(f"the consumer of group {self._group} is closed")

    def acknowledge(self) -> None:
        """Acknowledges what is in hand now, without asking for more."""
        if self._in_hand and self._closed:
            raise StoreClosedError(f"the consumer of group {self._group} is closed")
        in_hand, self._in_hand = self._in_hand, []
        last = {queue.queue_id: (queue, message.queue_offset + 1) for queue, message in in_hand}
        for queue, behind in last.values():
            # Behind the last message read, what the tags passed over is done with too.
            self._note(queue, behind if queue.ahead else queue.next_offset)

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
        """Leaves the group and writes the offsets; what is in hand is not acknowledged. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        self._in_hand = []
        self._broker.unregister_consumer(self)
        self._broker.write_offsets()

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

    def _take(self, count: int) -> list[tuple[_Queue, ReceivedMessage]]:
        """Up to `count` messages, one from each queue in turn, so that a full queue does not hold up the others."""
        self._find_queues()
        taken: list[tuple[_Queue, ReceivedMessage]] = []
        empty = 0
        while len(taken) < count and empty < len(self._turn):
            queue = self._turn[0]
            self._turn.rotate(-1)
            if not queue.ahead:
                try:
                    self._fill(queue, idle=all(held is not queue for held, _ in taken))
                except BaseException:
                    # What was taken from other queues is not handed out: it must not be passed over.
                    self._in_hand = taken
                    self._put_back()
                    raise
            if queue.ahead:
                taken.append((queue, queue.ahead.popleft()))
                empty = 0
            else:
                empty += 1
        return taken

    def _find_queues(self) -> None:
        for queue_id in self._broker.read_queues(self._topic):
            if queue_id not in self._queues:
                queue = _Queue(queue_id, self._begin(queue_id))
                self._queues[queue_id] = queue
                self._turn.append(queue)

    def _begin(self, queue_id: int) -> int:
        """Where to go on in a queue: the group's offset, brought inside the queue, else where `start` says."""
        first, end = self._broker.queue_range(self._topic, queue_id)
        offset = self._broker.consumer_offset(self._topic, self._group, queue_id)
        if offset is None:
            return first if self._start is ConsumeFromWhere.FIRST else end
        if offset > end:
            self._report("consumer offset was beyond the end of its queue", queue_id, offset, end)
            return end
        if offset < first:
            self._report("messages were removed before they were consumed", queue_id, offset, first)
            return first
        return offset

    def _fill(self, queue: _Queue, *, idle: bool) -> None:
        """Reads ahead of one queue; `idle`: nothing of it is in hand, so what the tags passed over is acknowledged."""
        try:
            messages, behind = self._read(queue)
        except OffsetTooOldError as error:
            self._report(
                "messages were removed before they were consumed", queue.queue_id, queue.next_offset, error.minimum
            )
            queue.next_offset = error.minimum
            messages, behind = self._read(queue)
        queue.ahead.extend(messages)
        queue.next_offset = behind
        if idle and not messages:
            self._note(queue, behind)

    def _read(self, queue: _Queue) -> tuple[Sequence[ReceivedMessage], int]:
        return self._broker.read(self._topic, queue.queue_id, queue.next_offset, _PULL_BATCH, self._tags)

    def _note(self, queue: _Queue, queue_offset: int) -> None:
        if queue_offset > queue.acknowledged:
            self._broker.set_consumer_offset(self._topic, self._group, queue.queue_id, queue_offset)
            queue.acknowledged = queue_offset

    def _put_back(self) -> None:
        """What is in hand is next again, in order."""
        in_hand, self._in_hand = self._in_hand, []
        for queue, message in reversed(in_hand):
            queue.ahead.appendleft(message)

    def _report(self, what: str, queue_id: int, was: int, now: int) -> None:
        _log.warning(
            "%s: %s/%d goes on at %d, not %d",
            what,
            self._topic,
            queue_id,
            now,
            was,
            extra={"topic": self._topic, "group": self._group, "queue_id": queue_id, "queue_offset": now},
        )
