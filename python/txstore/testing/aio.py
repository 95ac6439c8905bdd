"""The fake broker for asyncio: `async with txstore.testing.aio.FakeBroker() as broker`.

In:     the calls of a program on an event loop, and of its test.
Out:    the answers of the engine. Crashes, on request.
Always: the rules of `txstore.testing.FakeBroker`, which is `blocking` here, except that timeouts of consumers pass in
        real time.
Not here: fixtures; a test has an event loop only by another plugin.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Unpack

from txstore import testing
from txstore._native import EndResult, SendResult, StoredMessage
from txstore.aio import embedded
from txstore.broker import EmbeddedBroker
from txstore.config import BrokerConfig, BrokerOptions
from txstore.message import Half, LocalTransactionState, Message
from txstore.testing.clock import ManualClock
from txstore.testing.crash import CrashPoint

__all__ = ["FakeBroker"]


class FakeBroker(embedded.EmbeddedBroker):
    """A broker in memory for the tests of programs that use `txstore.aio`, open inside `async with`.

    It takes the options of `txstore.aio.open`. In an event loop several threads work, as those of `txstore.aio.open`
    do. The clock, the checks and the crashes are the test's.
    """

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        config: BrokerConfig | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        """`options` override `config`. Raises InvalidOptionError."""
        super().__init__("/memory", BrokerConfig.from_options(options, config))
        self._before: testing.FakeBroker | None = None
        self.clock: ManualClock = ManualClock() if clock is None else clock
        """The time of this broker."""

    def __repr__(self) -> str:
        return "txstore.testing.aio.FakeBroker()"

    @property
    def blocking(self) -> testing.FakeBroker:
        """The blocking fake broker, for all other calls. They do not wait for a disk."""
        broker = super().blocking
        assert isinstance(broker, testing.FakeBroker)
        return broker

    def messages(self, topic: str) -> list[StoredMessage]:
        """Returns the visible messages of a topic, as `txstore.testing.FakeBroker.messages`."""
        return self.blocking.messages(topic)

    async def run_checks(self) -> int:
        """Sends the checks that are due, in a thread, and returns how many producers were asked.

        Listeners that are coroutines run on the loop, as always.
        """
        return await asyncio.to_thread(self.blocking.run_checks)

    def crash(self, *, power_loss: bool = False, seed: int | None = None) -> None:
        """Ends the process of the program, as `txstore.testing.FakeBroker.crash`."""
        self.blocking.crash(power_loss=power_loss, seed=seed)

    def crash_at(
        self, point: CrashPoint | str, *, nth: int = 1, power_loss: bool = False, seed: int | None = None
    ) -> None:
        """Plans a crash, as `txstore.testing.FakeBroker.crash_at`. SimulatedCrash is raised in the task."""
        self.blocking.crash_at(point, nth=nth, power_loss=power_loss, seed=seed)

    def reopen(self) -> "FakeBroker":
        """Returns a new broker on the files that survived, for another `async with`.

        Raises StoreClosedError if this broker was never opened; entering raises InvalidOptionError if it is open.
        """
        broker = FakeBroker(clock=self.clock, config=self._config)
        broker._before = self.blocking
        return broker

    def _open_blocking(self) -> EmbeddedBroker:
        if self._before is not None:
            return self._before.reopen()
        return testing.FakeBroker(clock=self.clock, config=self._config)

    def _calls_on(
        self, broker: EmbeddedBroker, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor
    ) -> embedded.EmbeddedCalls:
        assert isinstance(broker, testing.FakeBroker)
        return _FakeCalls(broker, loop, thread)


class _FakeCalls(embedded.EmbeddedCalls):
    """The calls of producers, with a crash point before and after each."""

    def __init__(self, broker: testing.FakeBroker, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor) -> None:
        super().__init__(broker, loop, thread)
        self._reach = broker._reach

    async def send(self, message: Message, queue_id: int, group: str) -> SendResult:
        self._reach(CrashPoint.BEFORE_SEND)
        sent = await super().send(message, queue_id, group)
        self._reach(CrashPoint.AFTER_SEND)
        return sent

    async def send_batch(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str
    ) -> Sequence[SendResult]:
        self._reach(CrashPoint.BEFORE_SEND)
        sent = await super().send_batch(messages, queue_ids, group)
        self._reach(CrashPoint.AFTER_SEND)
        return sent

    async def prepare(self, message: Message, queue_id: int, group: str, owner: int) -> SendResult:
        self._reach(CrashPoint.BEFORE_HALF)
        half = await super().prepare(message, queue_id, group, owner)
        self._reach(CrashPoint.AFTER_HALF)
        return half

    async def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int
    ) -> SendResult:
        self._reach(CrashPoint.BEFORE_HALF)
        half = await super().prepare_many(messages, queue_ids, group, owner)
        self._reach(CrashPoint.AFTER_HALF)
        return half

    async def end(self, half: Half, state: LocalTransactionState, group: str | None) -> EndResult:
        self._reach(CrashPoint.BEFORE_END)
        ended = await super().end(half, state, group)
        self._reach(CrashPoint.AFTER_END)
        return ended
