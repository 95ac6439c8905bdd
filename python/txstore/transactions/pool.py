"""Thread pool: runs calls that may hang, each for an owner that must not occupy all threads.

In:     calls, each with its owner and a key.
Out:    what each call returned or raised, or that it ran too long.
Always: a slow or hanging owner delays no other. No call is killed: a call that ran too long keeps its thread, which is
        replaced, and its late result is ignored.
Not here: what is called and what its result means (`check`, `answer`).
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["QUEUED_MAX", "Pool", "Result", "TimeLimitError"]

_log = logging.getLogger("txstore.pool")

_THREAD_NAME = "txstore-pool"
QUEUED_MAX = 4096
"""The most calls that may wait for one owner."""


class TimeLimitError(Exception):
    """A call has not returned within the pool's time limit."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call returned, or the exception that it raised; TimeLimitError if it has not returned in time."""

    value: object = None
    error: BaseException | None = None


class _Call:
    """One call in the pool. `settled` is set once its result was taken or its time limit has passed."""

    __slots__ = ("done", "key", "owner", "settled", "started", "starting", "work")

    def __init__(
        self,
        owner: Hashable,
        key: Hashable,
        work: Callable[[], object],
        starting: Callable[[], bool] | None,
        done: Callable[[Result], None],
    ) -> None:
        self.owner = owner
        self.key = key
        self.work = work
        self.starting = starting
        self.done = done
        self.started: float | None = None
        self.settled = False


class Pool:
    """Runs calls in a bounded number of daemon threads, which start on demand. Thread-safe.

    One owner may occupy at most half of `threads`, so that a slow one leaves threads for the others. `expire` reports a
    call that runs longer than `time_limit` seconds as failed; its late result is ignored, and its thread is replaced
    while at most `hung_max` threads hang. A hanging call still counts towards its owner's share. `monotonic` returns
    seconds. After `stop`, no further call starts.
    """

    def __init__(
        self, threads: int, time_limit: float, monotonic: Callable[[], float], *, hung_max: int | None = None
    ) -> None:
        self._threads_max = threads
        self._per_owner = max(1, threads // 2)
        self._time_limit = time_limit
        self._hung_max = 4 * threads if hung_max is None else hung_max
        self._monotonic = monotonic
        # Reentrant, because the garbage collector may close a broker in any thread, even one that holds this lock.
        self._changed = threading.Condition(threading.RLock())
        self._queued: OrderedDict[Hashable, deque[_Call]] = OrderedDict()
        self._busy: dict[Hashable, int] = {}
        self._calls: dict[Hashable, _Call] = {}
        self._threads = 0
        self._idle = 0
        self._hung_by: dict[Hashable, int] = {}
        self._stopped = False

    def submit(
        self,
        owner: Hashable,
        key: Hashable,
        work: Callable[[], object],
        *,
        done: Callable[[Result], None],
        starting: Callable[[], bool] | None = None,
    ) -> bool:
        """Queues a call for its owner and returns whether it was accepted.

        Refused if the owner's queue is full, a call of `key` is queued or running, the owner's share of threads hangs,
        or the pool is stopped.

        A thread of the pool calls `starting()` right before the call (False cancels it), then `work()`, then
        `done(result)`. If the time limit passes first, `expire` calls `done` instead.
        """
        with self._changed:
            queue = self._queued.setdefault(owner, deque())
            if self._stopped or key in self._calls or len(queue) >= QUEUED_MAX or self._hangs(owner):
                return False
            call = _Call(owner, key, work, starting, done)
            self._calls[key] = call
            queue.append(call)
            self._changed.notify()
            self._start_thread()
            return True

    def has(self, key: Hashable) -> bool:
        """Tells whether a call of `key` is queued or running."""
        return key in self._calls

    @property
    def is_idle(self) -> bool:
        """Whether no call is queued or running."""
        return not self._calls

    @property
    def hung(self) -> int:
        """The number of threads whose call exceeded its time limit and has not returned."""
        return sum(self._hung_by.values())

    @property
    def threads(self) -> int:
        """The number of threads that are not hung."""
        return self._threads

    def expire(self) -> float | None:
        """Reports each call over its time limit as failed; returns seconds until the next limit, None if none."""
        now = self._monotonic()
        over: list[_Call] = []
        left: float | None = None
        with self._changed:
            for call in list(self._calls.values()):
                if call.started is None or call.settled:
                    continue
                rest = call.started + self._time_limit - now
                if rest <= 0:
                    call.settled = True
                    del self._calls[call.key]
                    self._hung_by[call.owner] = self._hung_by.get(call.owner, 0) + 1
                    self._threads -= 1
                    over.append(call)
                    if self._hangs(call.owner):
                        self._drop_queue(call.owner)
                elif left is None or rest < left:
                    left = rest
            self._start_thread()  # Also for calls that are queued because the system had no thread left.
        for call in over:
            call.done(Result(error=TimeLimitError(f"no answer within {self._time_limit:g} s")))
        return left

    def stop(self, wait: float = 0.0) -> bool:
        """Starts no further call and waits up to `wait` seconds for running ones; returns whether all returned."""
        with self._changed:
            self._stopped = True
            for owner in list(self._queued):
                self._drop_queue(owner)
            self._changed.notify_all()
            if wait > 0 and threading.current_thread().name != _THREAD_NAME:  # A call must not wait for itself.
                self._changed.wait_for(lambda: not self._calls, wait)
            return not self._calls

    def _hangs(self, owner: Hashable) -> bool:
        """Tells whether an owner's whole share of threads hangs."""
        return self._hung_by.get(owner, 0) >= self._per_owner

    def _drop_queue(self, owner: Hashable) -> None:
        """Cancels the queued calls of an owner, without a result."""
        for call in self._queued.pop(owner, ()):
            self._calls.pop(call.key, None)

    def _start_thread(self) -> None:
        """Starts one more thread if more calls are queued than idle threads can take and the bounds allow it."""
        queued = sum(map(len, self._queued.values()))
        room = self._threads < self._threads_max and self.hung <= self._hung_max
        if room and queued > self._idle and not self._stopped:
            self._threads += 1
            try:
                threading.Thread(target=self._work, name=_THREAD_NAME, daemon=True).start()
            except RuntimeError:  # The system has no thread left, or the interpreter exits. The calls stay queued.
                self._threads -= 1

    def _work(self) -> None:
        while True:
            call = self._next()
            if call is None:
                return
            if not self._run(call):
                return
            # An idle thread must not refer to the call, or a broker that is no longer used could not be collected.
            del call

    def _next(self) -> _Call | None:
        """Waits for a call and returns it, taking owners in turn; returns None once the pool is stopped."""
        with self._changed:
            while not self._stopped:
                for owner, queue in list(self._queued.items()):
                    if not queue:
                        del self._queued[owner]
                    elif self._busy.get(owner, 0) < self._per_owner:
                        self._queued.move_to_end(owner)
                        self._busy[owner] = self._busy.get(owner, 0) + 1
                        call = queue.popleft()
                        call.started = self._monotonic()
                        return call
                self._idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._idle -= 1
            self._threads -= 1
            return None

    def _run(self, call: _Call) -> bool:
        """Runs a call; returns False if it exceeded its time limit, so that this thread has been replaced."""
        result: Result | None = None
        try:
            if call.starting is None or call.starting():
                result = Result(call.work())
        except BaseException as error:  # A SystemExit in a call must not end the pool's thread.
            result = Result(error=error)
        with self._changed:
            left = self._busy.get(call.owner, 1) - 1
            if left:
                self._busy[call.owner] = left
            else:
                self._busy.pop(call.owner, None)
            late = call.settled
            call.settled = True
            if late:
                hung = self._hung_by.pop(call.owner, 1) - 1
                if hung:
                    self._hung_by[call.owner] = hung
                self._changed.notify()
                self._start_thread()
                return False
        try:
            if result is not None:
                call.done(result)
        except Exception:
            _log.exception("the result of a call could not be applied", extra={"key": call.key})
        finally:
            with self._changed:
                self._calls.pop(call.key, None)
                self._changed.notify_all()
        return True
