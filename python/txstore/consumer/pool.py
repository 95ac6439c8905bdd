"""Pool: the threads that run a handler for a consumer's messages.

In:     messages from the consumer, and the handler's result for each.
Out:    messages that are done, sent back, or tried again.
Always: an exception in the handler fails its message, never the pool. A message that will be delivered again is stored
        before its offset is passed. When orderly, one message of a queue runs at a time.
Not here: offsets, queues (`consumer`).
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from txstore._native import ACKNOWLEDGED
from txstore.config import Duration, as_timedelta
from txstore.consumer.queue import ReadQueue
from txstore.errors import InvalidOptionError, StoreClosedError, TxStoreError
from txstore.message import ConsumeResult, ReceivedMessage

__all__ = ["Handler", "HandlerPool"]

Handler: TypeAlias = Callable[[ReceivedMessage], ConsumeResult | None]
"""Handles one message. None means success."""

_log = logging.getLogger("txstore.consumer")
_THREADS_MAX = 1024
_SUSPEND_SECONDS = 1.0  # RocketMQ's suspendCurrentQueueTimeMillis.
_AGAIN_SECONDS = 1.0
_DEAD = -1


class PoolOwner(Protocol):
    """The part of the consumer that its pool uses."""

    @property
    def group(self) -> str: ...
    @property
    def max_orderly_failures(self) -> int | None: ...
    def take_running(self, count: int, *, orderly: bool) -> list[tuple[ReadQueue, ReceivedMessage]]: ...
    def finish(self, queue: ReadQueue, message: ReceivedMessage) -> None: ...
    def suspend(self, queue: ReadQueue, seconds: float) -> None: ...
    def send_back(self, message: ReceivedMessage, delay_level: int) -> None: ...
    def wait(self, visible_end: int, seconds: float) -> int: ...


class HandlerPool:
    """One `run` of a consumer.

    Raises InvalidOptionError for a handler that is not callable, or a number of threads out of range.
    """

    def __init__(
        self,
        owner: PoolOwner,
        handler: Handler,
        threads: int,
        timeout: Duration | None,
        monotonic: Callable[[], float],
        *,
        orderly: bool,
    ) -> None:
        if not callable(handler):
            raise InvalidOptionError(
                f"handler must be callable, got {handler!r}\nhint: a function that takes the message", option="handler"
            )
        if threads.__class__ is not int or not 1 <= threads <= _THREADS_MAX:
            raise InvalidOptionError(f"threads must be between 1 and {_THREADS_MAX}, got {threads!r}", option="threads")
        self._owner = owner
        self._handler: Callable[[ReceivedMessage], Any] = handler
        self._threads = threads
        self._orderly = orderly
        self._idle_seconds = None if timeout is None else as_timedelta(timeout, "timeout").total_seconds()
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._running = 0
        self._fatal: BaseException | None = None
        self._workers: set[int] = set()
        self.stopping: bool = False
        self.ended: threading.Event = threading.Event()

    def stop(self) -> bool:
        """Starts no further message. Returns False to one of its own handlers, which must not wait."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        return threading.get_ident() not in self._workers

    def run(self) -> None:
        """Runs until it is stopped, or no message came for the time limit. Returns when all handlers have ended."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix=f"txstore-{self._owner.group}") as threads:
            try:
                self._feed(threads)
            finally:
                if self._fatal is not None:
                    threads.shutdown(wait=True, cancel_futures=True)
        if self._fatal is not None:
            raise self._fatal

    def _feed(self, threads: ThreadPoolExecutor) -> None:
        last = self._monotonic()
        while not self.stopping and self._fatal is None:
            # Twice the number of threads, so that no thread waits for the next read.
            room = 2 * self._threads - self._running
            visible_end = self._owner.wait(0, 0)
            taken = self._owner.take_running(room, orderly=self._orderly) if room > 0 else []
            with self._changed:
                self._running += len(taken)
            for queue, message in taken:
                threads.submit(self._handle, queue, message)
            if taken:
                last = self._monotonic()
                continue
            if self._running:
                last = self._monotonic()
                with self._changed:
                    # A thread that becomes free makes room and lets an orderly queue continue. A message may come, too.
                    self._changed.wait(0.02)
                continue
            idle = self._monotonic() - last
            if self._idle_seconds is not None and idle >= self._idle_seconds:
                return
            self._owner.wait(visible_end, 0.2 if self._idle_seconds is None else self._idle_seconds - idle)

    def _handle(self, queue: ReadQueue, message: ReceivedMessage) -> None:
        self._workers.add(threading.get_ident())
        try:
            if self.stopping or self._fatal is not None:
                return  # It was not begun, so it is delivered again at the next start.
            failed = self._failed(message) and message.decision != ACKNOWLEDGED
            asked = message.settle()
            delay_level = asked if asked is not None else 0 if failed else None
            if delay_level is None:
                self._owner.finish(queue, message)
            elif self._orderly and asked is None and not self._is_dead(queue):
                self._owner.suspend(queue, _SUSPEND_SECONDS)
            elif self._sent_back(message, _DEAD if self._orderly and asked is None else delay_level):
                self._owner.finish(queue, message)
        except StoreClosedError:
            self.stopping = True
        except BaseException as error:
            # A SystemExit in a handler, or an error of our own: `run` raises it.
            self._fatal = error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _failed(self, message: ReceivedMessage) -> bool:
        """Calls the handler and tells whether the message must be delivered again."""
        try:
            result = self._handler(message)
        except Exception:
            _log.exception(
                "the handler failed; message %s will be delivered again",
                message.message_id,
                extra=self._facts(message),
            )
            return True
        if result is None or result is ConsumeResult.SUCCESS:
            return False
        if result is not ConsumeResult.RECONSUME_LATER:
            _log.error(
                "the handler returned %r, expected None or a ConsumeResult; message %s will be delivered again",
                result,
                message.message_id,
                extra=self._facts(message),
            )
        return True

    def _facts(self, message: ReceivedMessage) -> dict[str, object]:
        return {"topic": message.topic, "group": self._owner.group, "message_id": message.message_id}

    def _is_dead(self, queue: ReadQueue) -> bool:
        most = self._owner.max_orderly_failures
        return most is not None and queue.failures >= most

    def _sent_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Retries until the message is stored, because an offset must not pass a message that would be lost."""
        while not self.stopping:
            try:
                self._owner.send_back(message, delay_level)
            except StoreClosedError:
                raise
            except TxStoreError as error:
                _log.warning(
                    "message %s could not be sent back yet: %s", message.message_id, error, extra=self._facts(message)
                )
                time.sleep(_AGAIN_SECONDS)
            else:
                return True
        return False
