"""FakeBroker: an embedded broker whose files are in memory and whose time a test controls.

In:     the calls of a program and of its test.
Out:    the answers of the engine. Crashes, on request.
Always: no file is touched and no thread is started. Background jobs run in `clock.advance`, checks in `run_checks`.
Not here: any rule about messages and transactions, which is the engine's and `txstore.broker`'s.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, Unpack

from txstore._native import MemoryStorage, Message, SendResult, StoredMessage
from txstore.broker import EmbeddedBroker
from txstore.broker.local_socket import LocalSocket
from txstore.broker.opening import open_store
from txstore.config import BrokerConfig, BrokerOptions, milliseconds
from txstore.errors import InvalidOptionError, StoreIOError, TxStoreError
from txstore.message import Half
from txstore.testing.background import CallerPool, HandHousekeeping
from txstore.testing.clock import ManualClock
from txstore.testing.crash import CrashPlans, CrashPoint, SimulatedCrash

__all__ = ["FakeBroker"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
# Recovery in memory copies the rest of a log file, so large ones would make `reopen` slow.
_LOG_FILE_BYTES = 8 << 20
_NAP_SECONDS = 0.001


class FakeBroker(EmbeddedBroker):
    """A broker in memory for tests: the real engine, with files that nobody else sees and a clock that the test moves.

    It takes the options of `txstore.open` and is used like what that returns. In addition, `run_checks` sends due
    checks, `crash` ends the process of the program as far as the broker is concerned, `crash_at` does so at a point of
    a transaction, and `reopen` starts it again on the files that survived.

    In the thread that created the broker, waiting for a message (`poll(timeout=5)`) takes no time: it advances the
    clock instead, up to the next delayed message or the timeout. In other threads it waits for a message, for the clock
    or for real time, whichever comes first.
    """

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        config: BrokerConfig | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        """Opens a new store in memory. `options` override `config`. Raises InvalidOptionError."""
        settings = BrokerConfig.from_options(options, config)
        if settings.mapped_file_size_commit_log is None:
            small = max(_LOG_FILE_BYTES, 2 * settings.max_message_size)
            settings = BrokerConfig.from_options({"mapped_file_size_commit_log": small}, settings)
        clock = ManualClock() if clock is None else clock
        self._start(MemoryStorage(clock.native), clock, settings, [])

    def _start(
        self, storage: MemoryStorage, clock: ManualClock, settings: BrokerConfig, lives: list["FakeBroker"]
    ) -> None:
        self.clock: ManualClock = clock
        """The time of this broker."""
        self._storage = storage
        self._survived: MemoryStorage | None = None
        self._plans = CrashPlans()
        self._thread = threading.get_ident()
        self._waited = threading.local()
        self._lives = lives
        self._house = HandHousekeeping(clock.monotonic)
        self._caller_pool = CallerPool(
            settings.check_threads, milliseconds(settings.transaction_check_time_limit) / 1000, clock.monotonic
        )
        store = open_store(storage, settings)
        super().__init__(
            store,
            settings,
            monotonic=clock.monotonic,
            time_ms=clock.time_ms,
            housekeeping=self._house,
            pool=self._caller_pool,
        )
        self._house.add("flush", store.flush_round, milliseconds(settings.flush_interval_commit_log) / 1000)
        self._consumers_clock = self._consumer_seconds
        self.append = self._between(CrashPoint.BEFORE_SEND, self.append, CrashPoint.AFTER_SEND)
        self.prepare = self._between(CrashPoint.BEFORE_HALF, self.prepare, CrashPoint.AFTER_HALF)
        self.prepare_many = self._between(CrashPoint.BEFORE_HALF, self.prepare_many, CrashPoint.AFTER_HALF)
        self.end = self._between(CrashPoint.BEFORE_END, self.end, CrashPoint.AFTER_END)
        lives.append(self)
        clock.watch(self)

    def __repr__(self) -> str:
        mode = "crashed" if self._survived is not None else "closed" if self.closed else "open"
        return f"FakeBroker({mode})"

    # For tests

    def messages(self, topic: str) -> list[StoredMessage]:
        """Returns the visible messages of a topic, in the order in which they were stored; for an unknown one none."""
        found: list[StoredMessage] = []
        for queue in self.queues(topic):
            at = queue.first
            while at < queue.end:
                some, at = self.read(topic, queue.queue_id, at, 1024)
                found.extend(some)
        return sorted(found, key=lambda message: message.physical_offset)

    def run_checks(self) -> int:
        """Sends the checks that are due, in this thread, and returns how many producers were asked.

        A transaction is due `transaction_timeout` (6 s) after its local transaction ended or its process crashed, and
        then every `transaction_check_interval`: advance the clock. What is due to be discarded is discarded.
        """
        self._must_be_open()
        before = self._caller_pool.calls
        while self._check_round() == 0:
            pass
        return self._caller_pool.calls - before

    def crash(self, *, power_loss: bool = False, seed: int | None = None) -> None:
        """Ends the process of the program, as far as the broker is concerned: nothing is written any more.

        What was written survives, as after `kill -9`. With `power_loss` only what was synced survives, and with a
        `seed` some of the rest by chance. This broker, its producers and its consumers are closed. Raises
        StoreClosedError.
        """
        self._must_be_open()
        self._survived = self._storage.crash(power_loss=power_loss, seed=seed)
        self._closed = True
        self._finalizer.detach()
        self.clock.unwatch(self)
        parts = self._parts
        parts.housekeeping.stop()
        parts.pool.stop()
        # They fail to write, and end.
        with contextlib.suppress(TxStoreError):
            parts.store.close()
        with contextlib.suppress(TxStoreError):
            parts.outboxes.close(0.0)

    def crash_at(
        self, point: CrashPoint | str, *, nth: int = 1, power_loss: bool = False, seed: int | None = None
    ) -> None:
        """Plans a crash for the `nth` time that the program reaches a point. There, SimulatedCrash is raised in it.

        The last plan counts. The other arguments are those of `crash`. Raises InvalidOptionError.
        """
        self._plans.set(point, nth, power_loss, seed)

    def reopen(self) -> "FakeBroker":
        """Opens the files that survived a crash, and returns a new broker on the same clock and with the same options.

        The program needs new producers and consumers. After `close`, too. Raises InvalidOptionError while this broker
        is open, StoreCorruptError if the files cannot be recovered.
        """
        if not self._closed:
            raise InvalidOptionError("the broker is open\nhint: call crash() or close() first", option="broker")
        storage = self._storage if self._survived is None else self._survived
        broker = FakeBroker.__new__(FakeBroker)
        broker._start(storage, self.clock, self._config, self._lives)
        return broker

    def close_all(self) -> None:
        """Closes this broker and all that `reopen` returned. Idempotent."""
        for broker in list(self._lives):
            broker.close()

    # As an embedded broker

    def close(self) -> None:
        """Closes producers, consumers and the store. Idempotent."""
        self.clock.unwatch(self)
        super().close()

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str = ""
    ) -> list[SendResult]:
        """Stores several messages, as `txstore.EmbeddedBroker.append_many`."""
        append = self._between(CrashPoint.BEFORE_SEND, super().append_many, CrashPoint.AFTER_SEND)
        return append(messages, queue_ids, producer_group)

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Sets an offset, as `txstore.EmbeddedBroker.set_consumer_offset`."""
        note = self._between(CrashPoint.BEFORE_ACKNOWLEDGE, super().set_consumer_offset, CrashPoint.AFTER_ACKNOWLEDGE)
        note(topic, group, queue_id, queue_offset)

    def local_transaction_ended(self, half: Half, /) -> None:
        """Starts the transaction's age, as `txstore.EmbeddedBroker.local_transaction_ended`. After a crash, nothing."""
        if self._survived is None:
            super().local_transaction_ended(half)

    def write_offsets(self) -> None:
        """Writes consumer offsets now. Does nothing after a crash."""
        if self._survived is None:
            super().write_offsets()

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits as the class says: it advances the clock, or waits for other threads."""
        store = self._store
        end = store.wait_for_messages(physical_offset, 0)
        if end > physical_offset or timeout_ms <= 0:
            return end
        if threading.get_ident() == self._thread:
            _, _, next_ms = store.deliver_delayed()
            self.clock.advance((timeout_ms if next_ms is None else min(timeout_ms, next_ms)) / 1000)
            return store.wait_for_messages(physical_offset, 0)
        began, until = time.monotonic(), self.clock.monotonic() + timeout_ms / 1000
        while end <= physical_offset and self.clock.monotonic() < until:
            if time.monotonic() - began >= timeout_ms / 1000:
                self._waited.seconds = self._waited_seconds() + timeout_ms / 1000
                break
            time.sleep(_NAP_SECONDS)
            end = store.wait_for_messages(physical_offset, 0)
        return end

    def listen(self) -> LocalSocket:
        """Raises StoreIOError: other processes cannot reach a store in memory."""
        raise StoreIOError("a store in memory has no socket\nhint: use txstore.open() on a temporary directory")

    def clock_advanced(self) -> None:
        """Runs the background jobs that are due. For the clock."""
        self._house.run_all_due()

    # Inside

    def _consumer_seconds(self) -> float:
        """Returns the time by which consumers measure timeouts: the clock, and the real waits of this thread."""
        return self.clock.monotonic() + self._waited_seconds()

    def _waited_seconds(self) -> float:
        seconds: float = getattr(self._waited, "seconds", 0.0)
        return seconds

    def _between(self, before: CrashPoint, call: Callable[_P, _T], after: CrashPoint) -> Callable[_P, _T]:
        """Returns the call with a crash point before and after it."""

        def between(*arguments: _P.args, **named: _P.kwargs) -> _T:
            self._reach(before)
            result = call(*arguments, **named)
            self._reach(after)
            return result

        return between

    def _reach(self, point: CrashPoint) -> None:
        """Crashes if that is planned at this point."""
        plan = self._plans.reached(point)
        if plan is not None:
            self.crash(power_loss=plan.power_loss, seed=plan.seed)
            raise SimulatedCrash(f"the process ended here, as crash_at({str(point)!r}) planned")
