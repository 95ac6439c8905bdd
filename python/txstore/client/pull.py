"""Pulls messages ahead from the queues of remote brokers.

In:     responses to pulls. If there is no message, the broker holds the pull until one arrives (a long pull).
Out:    messages in order, and the queue offset to continue at.
Always: `take` waits only for the first response, not for a message. Messages pulled ahead are limited by
        `pull_threshold_for_queue`. A failed pull is retried after a pause that doubles.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from txstore._native import RemotingCommand, RequestCode, ResponseCode, StoredMessage, decode_records
from txstore.client.client import Client
from txstore.errors import OffsetTooOldError, ProtocolError, StoreForkedError, TxStoreError
from txstore.remoting.refusals import refusal
from txstore.selector import Selector, Sql, expression, expression_type

__all__ = ["Puller", "QueueReader"]

_log = logging.getLogger("txstore.remoting")
_SUSPEND = 2  # RocketMQ's PullSysFlag.
_SUBSCRIPTION = 4
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_UNREADABLE_TIMES_MAX = 5


GoBack: TypeAlias = Callable[[str, int, int], None]
"""Called with (topic, queue number, queue offset) when the queue must be read again from that offset."""


class QueueReader:
    """Pulls one queue ahead. A consumer's thread creates it and calls `take`; the rest runs on the client's loop."""

    def __init__(
        self,
        client: Client,
        group: str,
        topic: str,
        number: int,
        queue_offset: int,
        tags: Selector,
        go_back: GoBack,
    ) -> None:
        self._client = client
        self._go_back = go_back
        self._group = group
        self._topic = topic
        self._number = number
        self._tags = tags
        self.next_taken: int = queue_offset
        """The queue offset of the next `take`."""
        self._next_pulled = queue_offset
        self._changed = threading.Condition()
        self._ahead: deque[tuple[list[StoredMessage], int]] = deque()
        self._ahead_count = 0
        self._nothing_there = False
        self._one_by_one = 0
        """How many more messages are pulled one at a time, because one of them cannot be read."""
        self._unreadable_times = 0
        """How often the message at the next queue offset could not be read."""
        self._stopped = False
        self._failed: TxStoreError | None = None
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        client.loop.call_soon_threadsafe(self._start)

    def take(self, max_messages: int, seconds: float) -> tuple[Sequence[StoredMessage], int]:
        """Returns up to `max_messages` that were pulled ahead, and the queue offset to continue at.

        Waits at most `seconds` for the broker's first response. Raises OffsetTooOldError if the queue now begins after
        the offset that was pulled.
        """
        with self._changed:
            self._changed.wait_for(self._knows, seconds)
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            if not self._ahead:
                return (), self.next_taken
            messages, next_offset = self._ahead.popleft()
            if len(messages) > max_messages:
                self._ahead.appendleft((messages[max_messages:], next_offset))
                messages = messages[:max_messages]
                next_offset = messages[-1].queue_offset + 1
            self._ahead_count -= len(messages)
            self.next_taken = next_offset
        if not self._room.is_set():
            self._client.loop.call_soon_threadsafe(self._make_room)
        return messages, next_offset

    @property
    def is_over(self) -> bool:
        """Whether it has stopped pulling."""
        return self._stopped or (self._task is not None and self._task.done())

    def stop(self) -> None:
        """Stops pulling. Thread-safe."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if not self._client.loop.is_closed():
            self._client.loop.call_soon_threadsafe(self._cancel)

    def _knows(self) -> bool:
        return bool(self._ahead) or self._nothing_there or self._failed is not None or self._stopped

    # On the loop

    def _start(self) -> None:
        if not self._stopped:
            self._room.set()
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._client.ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _make_room(self) -> None:
        if self._ahead_count < self._client.options.pull_threshold_for_queue:
            self._room.set()

    async def _run(self) -> None:
        back_off = first = self._client.options.seconds("reconnect_back_off")
        while True:
            await self._room.wait()
            try:
                self._arrived(await self._pull(suspend=self._nothing_there))
            except TxStoreError as error:
                self._fail(error)
                await asyncio.sleep(back_off)
                back_off = min(2 * back_off, self._client.options.seconds("reconnect_back_off_max"))
            else:
                back_off = first

    async def _pull(self, *, suspend: bool) -> RemotingCommand:
        options = self._client.options
        queue = self._client.numbers.queue(self._number)
        fields = {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(self._next_pulled),
            "maxMsgNums": "1" if self._one_by_one else str(options.pull_batch_size),
            "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if suspend else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(round(options.seconds("broker_suspend_max_time") * 1000) if suspend else 0),
            "subscription": expression(self._tags),
            "subVersion": "0",
            "expressionType": expression_type(self._tags),
        }
        timeout = options.seconds("pull_timeout" if suspend else "request_timeout")
        return await self._client.ask(queue.broker, RequestCode.PULL_MESSAGE, fields, timeout=timeout)

    def _arrived(self, answer: RemotingCommand) -> None:
        code = answer.code
        # With a next offset, a txstore server says that the message is damaged.
        is_damaged = code == ResponseCode.MESSAGE_ILLEGAL and "nextBeginOffset" in answer.ext_fields
        if not is_damaged and code not in _PULLED:
            raise self._refusal(answer)
        try:
            next_offset = int(answer.ext_fields["nextBeginOffset"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"malformed response to a pull of {self._topic}: {error!r}") from error
        if code == ResponseCode.SUCCESS:
            self._decode(answer.body, next_offset)
        elif is_damaged:
            self._unreadable(self._refusal(answer), next_offset)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(next_offset)
        elif code == ResponseCode.PULL_RETRY_IMMEDIATELY and next_offset > self._next_pulled:
            self._add([], next_offset)
        else:
            self._tell_nothing_there()

    def _refusal(self, answer: RemotingCommand) -> TxStoreError:
        broker = self._client.numbers.queue(self._number).broker
        return refusal(answer, f"a pull of {self._topic}", f"broker {broker}")

    def _decode(self, body: bytes, next_offset: int) -> None:
        """Adds the messages of a response, after which the queue continues at `next_offset`."""
        try:
            messages = decode_records(body, unacknowledged=True)
        except ProtocolError as error:
            self._unreadable(error, next_offset)
        else:
            self._one_by_one = max(0, self._one_by_one - 1)
            self._add(self._wanted(messages), next_offset)

    def _unreadable(self, error: TxStoreError, next_offset: int) -> None:
        """Raises the error, so that the pull is retried. Skips a message that could not be read in 5 pulls."""
        if self._one_by_one:
            self._unreadable_times += 1
        else:
            self._one_by_one = self._client.options.pull_batch_size
        if self._unreadable_times < _UNREADABLE_TIMES_MAX:
            raise error
        self._skip(error, max(next_offset, self._next_pulled + 1))

    def _skip(self, error: TxStoreError, next_offset: int) -> None:
        """Reports the message at the next queue offset, and continues at `next_offset`."""
        fields = {"topic": self._topic, "group": self._group, "queue_offset": self._next_pulled}
        text = "%s of group %s: the message at queue offset %d cannot be read and is skipped: %s"
        _log.error(text, self._topic, self._group, self._next_pulled, error, extra=fields)
        self._add([], next_offset)

    def _wanted(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Returns the messages with wanted tags. A broker compares only hashes of tags, which may collide."""
        tags = self._tags
        if tags is None or isinstance(tags, Sql):
            return messages
        return [message for message in messages if message.tags in tags]

    def _add(self, messages: list[StoredMessage], next_offset: int) -> None:
        """Adds messages that were pulled ahead, after which the queue continues at `next_offset`."""
        with self._changed:
            self._ahead.append((messages, next_offset))
            self._ahead_count += len(messages)
            self._next_pulled = next_offset
            self._unreadable_times = 0
            self._nothing_there = False
            if self._ahead_count >= self._client.options.pull_threshold_for_queue:
                self._room.clear()
            self._changed.notify_all()
        self._client.arrivals.bump()

    def _moved(self, next_offset: int) -> None:
        """Continues at the offset that the broker named, since the pulled one is not in the queue or was reset."""
        if next_offset > self._next_pulled:
            self._next_pulled, before = next_offset, self._next_pulled
            text = f"{self._topic}: queue offset {before} was removed; the first that is left is {next_offset}"
            self._fail(OffsetTooOldError(text, minimum=next_offset))
            return
        _log.warning(
            "%s of group %s: the broker moved the offset back from %d to %d: it was reset, or messages were lost",
            self._topic,
            self._group,
            self._next_pulled,
            next_offset,
        )
        self.stop()
        self._go_back(self._topic, self._number, next_offset)

    def _fail(self, error: TxStoreError) -> None:
        """Keeps OffsetTooOldError for the consumer; logs other errors, after which the pull is retried."""
        with self._changed:
            if isinstance(error, OffsetTooOldError):
                self._failed = error
            else:
                _log.warning("a pull of %s for group %s failed and is retried: %s", self._topic, self._group, error)
            self._nothing_there = True
            self._changed.notify_all()
        self._client.arrivals.bump()

    def _tell_nothing_there(self) -> None:
        with self._changed:
            self._nothing_there = True
            self._changed.notify_all()


class Puller:
    """The pulls of one consumer: one reader per queue. All stop on `close`, or when the puller is garbage collected."""

    def __init__(self, client: Client, group: str, go_back: GoBack) -> None:
        self._client = client
        self._group = group
        self._go_back = go_back
        self._readers: dict[tuple[str, int], QueueReader] = {}
        self._finalizer = weakref.finalize(self, _stop_all, self._readers)

    def __call__(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[Sequence[StoredMessage], int]:
        """Returns messages of a queue from an offset on, and the offset to continue at.

        Raises OffsetTooOldError, StoreForkedError.
        """
        if os.getpid() != self._client.process:
            raise StoreForkedError(
                f"the consumer was created by process {self._client.process}, of which this is a fork\n"
                "hint: create consumers after forking"
            )
        reader = self._readers.get((topic, queue_id))
        if reader is None or reader.is_over or reader.next_taken != queue_offset:
            if reader is not None:
                reader.stop()
            reader = QueueReader(self._client, self._group, topic, queue_id, queue_offset, tags, self._go_back)
            self._readers[topic, queue_id] = reader
        return reader.take(max_messages, self._client.options.seconds("request_timeout"))

    def drop(self, topic: str, queue_id: int) -> None:
        """Stops pulling a queue."""
        reader = self._readers.pop((topic, queue_id), None)
        if reader is not None:
            reader.stop()

    def close(self) -> None:
        self._finalizer()


def _stop_all(readers: dict[tuple[str, int], QueueReader]) -> None:
    for reader in list(readers.values()):
        reader.stop()
    readers.clear()
