"""Pool: a handler and the threads in which it deals with a consumer's messages.

In: messages that the consumer hands out, and what the handler makes of each. Out: messages done, sent back, or tried
again. Always: a handler's exception is a failure of its message, never of the pool; a message that is to come again is
stored before its offset is passed; orderly, one message of a queue at a time. Not here: offsets, queues (`consumer`).
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from txstore.config import Duration, as_timedelta
from txstore.consumer.queue import ReadQueue
from txstore.errors import InvalidOptionError, StoreClosedError, TxStoreError
from txstore.message import ConsumeResult, ReceivedMessage

__all__ = ["Handler", "HandlerPool"]

Handler: TypeAlias = Callable[[ReceivedMessage], ConsumeResult | None]
"""Deals with one message; None is success."""

_log = logging.getLogger("txstore.consumer")
_THREADS_MAX = 1024
_SUSPEND_SECONDS = 1.0  # RocketMQ's suspendCurrentQueueTimeMillis.
_AGAIN_SECONDS = 1.0
_DEAD = -1


class PoolOwner(Protocol):
    """The consumer, as its pool knows it."""

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

    Raises InvalidOptionError for a handler that cannot be called, or a number of threads out of range.
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
                f"handler {handler!r} cannot be called\nhint: a function that takes the message", option="handler"
            )
        if threads.__class__ is not int or not 1 <= threads <= _THREADS_MAX:
            raise InvalidOptionError(
                f"threads {threads!r} is out of range\nhint: 1 to {_THREADS_MAX}", option="threads"
            )
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
        self.stopping = False
        self.ended = threading.Event()

    def stop(self) -> bool:
        """No further message begins; false for a caller that is one of its handlers, and so must not wait."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        return threading.get_ident() not in self._workers

    def run(self) -> None:
        """Until it is stopped, or nothing came for the time limit; then what runs has ended."""
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
            # As many again wait as run, so that no thread waits for the next read.
            room = 2 * self._threads - self._running
            visible_end = self._owner.wait(0, 0)
            taken = self._owner.take_running(room, orderly=self._orderly) if room > 0 else []
            with self._changed:
                self._running += len(taken)
            for queue, message in taken:
                threads.submit(self._deal_with, queue, message)
            if taken:
                last = self._monotonic()
                continue
            if self._running:
                last = self._monotonic()
                with self._changed:
                    # A thread that is done makes room, and lets an orderly queue go on; a message may come, too.
                    self._changed.wait(0.02)
                continue
            idle = self._monotonic() - last
            if self._idle_seconds is not None and idle >= self._idle_seconds:
                return
            self._owner.wait(visible_end, 0.2 if self._idle_seconds is None else self._idle_seconds - idle)

    def _deal_with(self, queue: ReadQueue, message: ReceivedMessage) -> None:
        self._workers.add(threading.get_ident())
        try:
            if self.stopping or self._fatal is not None:
                return  # It was not begun, so it comes again at the next start.
            failed = self._failed(message)
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
            # SystemExit and the like in a handler, or a fault of ours: `run` raises it.
            self._fatal = error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _failed(self, message: ReceivedMessage) -> bool:
        """Calls the handler; whether the message is to come again."""
        try:
            result = self._handler(message)
        except Exception:
            _log.exception("the handler failed; message %s comes again", message.message_id, extra=self._facts(message))
            return True
        if result is None or result is ConsumeResult.SUCCESS:
            return False
        if result is not ConsumeResult.RECONSUME_LATER:
            _log.error(
                "the handler returned %r, neither None nor a ConsumeResult; message %s comes again",
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
        """Tries until it is stored: an offset must not pass a message that is lost otherwise."""
        while not self.stopping:
            try:
                self._owner.send_back(message, delay_level)
            except StoreClosedError:
                raise
            except TxStoreError as error:
                _log.warning(
                    "message %s waits to be sent back: %s", message.message_id, error, extra=self._facts(message)
                )
                time.sleep(_AGAIN_SECONDS)
            else:
                return True
        return False
