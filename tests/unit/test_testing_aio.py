"""Guards txstore.testing.aio: the fake broker, its clock, checks and crashes on an event loop."""

import asyncio

import pytest

from txstore import InvalidOptionError, LocalTransactionState, Message, StoreClosedError, TransactionMessage
from txstore.testing import CrashPoint, ManualClock, SimulatedCrash
from txstore.testing.aio import FakeBroker

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


class Service:
    """A program that keeps its orders in a set, which survives crashes as a database does."""

    def __init__(self, broker: FakeBroker, orders: set[str]) -> None:
        self.orders = orders
        self.producer = broker.transaction_producer("service", check_listener=self.check)

    async def order(self) -> None:
        async with self.producer.transaction(Message("orders", b"x")) as tx:
            self.orders.add(tx.transaction_id)

    async def check(self, message: TransactionMessage) -> LocalTransactionState:
        await asyncio.sleep(0)
        return COMMIT if message.transaction_id in self.orders else ROLLBACK


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("point", [point for point in CrashPoint if "half" in point or "end" in point.split("_")])
def test_order_and_message_agree_after_a_crash_at_each_point(point: CrashPoint, power_loss: bool) -> None:
    orders: set[str] = set()

    async def main() -> None:
        async with FakeBroker() as broker:
            await Service(broker, orders).order()
            broker.crash_at(point, power_loss=power_loss)
            with pytest.raises(SimulatedCrash, match=point):
                await Service(broker, orders).order()
            assert broker.closed
        async with broker.reopen() as broker:
            Service(broker, orders)
            broker.clock.advance(6)
            await broker.run_checks()
            assert broker.blocking.transactions() == []
            assert {message.transaction_id for message in broker.messages("orders")} == orders
            assert len(orders) == (2 if "end" in point.split("_") else 1)

    asyncio.run(main())


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_SEND, CrashPoint.AFTER_SEND])
@pytest.mark.parametrize("batch", [False, True])
def test_crash_at_a_send(point: CrashPoint, batch: bool) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            producer = broker.producer("p")
            broker.crash_at(point)
            send = producer.send_batch([Message("t", b"x")]) if batch else producer.send(Message("t", b"x"))
            with pytest.raises(SimulatedCrash):
                await send
            with pytest.raises(StoreClosedError):
                await producer.send(Message("t", b"y"))
        async with broker.reopen() as broker:
            assert len(broker.messages("t")) == (point is CrashPoint.AFTER_SEND)

    asyncio.run(main())


def test_consumer_gets_what_another_task_sends_and_what_the_clock_delivers() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with FakeBroker(clock=clock) as broker, broker.consumer("c", "t") as consumer:
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await broker.producer("p").send(Message("t", b"now"))
            assert [message.body for message in await waiting] == [b"now"]
            assert clock.monotonic() == 0
            await broker.producer("p").send(Message("t", b"later", delay_level=18))
            assert await consumer.poll() == []
            clock.advance(7200)
            assert [message.body for message in await consumer.poll(timeout=None)] == [b"later"]

    asyncio.run(main())


def test_crash_while_tasks_wait_ends_them() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            producer = broker.transaction_producer("g", check_listener=lambda message: COMMIT)
            broker.crash_at("after_half", nth=5)
            sends = [producer.send_in_transaction(Message("t", b"x"), executer=lambda m, a: COMMIT) for _ in range(20)]
            done = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 30)
            assert sum(isinstance(one, SimulatedCrash) for one in done) == 1
        async with broker.reopen() as broker:
            broker.transaction_producer("g", check_listener=lambda message: COMMIT)
            broker.clock.advance(6)
            await broker.run_checks()
            told = sum(not isinstance(one, BaseException) for one in done)
            assert told <= len(broker.messages("t")) <= 20

    asyncio.run(main())


def test_broker_is_reopened_only_after_it_was_closed() -> None:
    async def main() -> None:
        unopened = FakeBroker(flush_disk_type="SYNC_FLUSH")
        with pytest.raises(StoreClosedError, match="not open yet"):
            unopened.reopen()
        async with unopened as broker:
            await broker.producer("p").send(Message("t", b"x"))
            with pytest.raises(InvalidOptionError, match="the broker is open"):
                async with broker.reopen():
                    pass
        async with broker.reopen() as broker:
            assert [message.body for message in broker.messages("t")] == [b"x"]
            assert broker.blocking.config.flush_disk_type == "SYNC_FLUSH"

    asyncio.run(main())
