"""Guards the asyncio client: no call blocks the loop, and a cancelled call has no effect.

A cancelled transaction is left to its check, a message of a cancelled poll is delivered again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.peer.rocketmq import Peer
from tests.remoting_client.conftest import SOON
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, Answers
from txstore import ConsumeResult, LocalTransactionState, Message


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40):
            await test

    asyncio.run(limited())


async def take(consumer: txstore.aio.Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await consumer.poll(32, 1)
    return found


def test_message_is_received_and_returned_by_a_break(names: str, topic: str) -> None:
    async def story() -> None:
        async with txstore.aio.connect(names, **SOON) as broker:
            producer = broker.producer("p")
            sent = await asyncio.gather(*(producer.send(Message(topic, b"%d" % n), queue_id=0) for n in range(20)))
            assert len({one.message_id for one in sent}) == 20
            await producer.send_batch([Message(topic, b"batch")] * 3, queue_id=0)
            seen = []
            async with broker.consumer(f"c-{topic}", topic) as consumer:
                async for message in consumer:
                    seen.append(message.queue_offset)
                    if len(seen) == 10:
                        break
                assert (await consumer.poll(1))[0].queue_offset == 9, "the current message was not acknowledged"
            async with broker.consumer(f"c-{topic}", topic) as consumer:
                assert [message.queue_offset for message in await take(consumer, 13)] == list(range(10, 23))
        with pytest.raises(txstore.StoreClosedError):
            await producer.send(Message(topic, b"x"))

    run(story())


def test_transactions_and_checks_by_coroutines(names: str, topic: str) -> None:
    class Listener:
        def __init__(self) -> None:
            self.checked: list[Any] = []

        async def execute_local_transaction(self, message: Any, arg: LocalTransactionState) -> LocalTransactionState:
            await asyncio.sleep(0.01)
            return arg

        async def check_local_transaction(self, message: Any) -> LocalTransactionState:
            await asyncio.sleep(0.01)
            self.checked.append(message.transaction_id)
            return COMMIT

    async def story() -> None:
        listener = Listener()
        async with (
            txstore.aio.connect(names, **SOON) as broker,
            broker.transaction_producer(f"g-{topic}", listener) as producer,
            broker.consumer(f"c-{topic}", topic) as consumer,
        ):
            await producer.send_in_transaction(Message(topic, b"commit"), COMMIT)
            await producer.send_in_transaction(Message(topic, b"rollback"), ROLLBACK)
            async with producer.transaction(Message(topic, b"block")) as tx:
                pass
            await tx.commit()
            assert {message.body for message in await take(consumer, 2)} == {b"commit", b"block"}
            unknown = await producer.send_in_transaction(Message(topic, b"unknown"), UNKNOWN)
            assert [message.body for message in await take(consumer, 1)] == [b"unknown"]
            assert set(listener.checked) == {unknown.transaction_id}

    run(story())


def test_cancelled_transaction_is_left_to_its_check(names: str, topic: str) -> None:
    async def story() -> None:
        listener = Answers(UNKNOWN, check=COMMIT)
        async with (
            txstore.aio.connect(names, **SOON) as broker,
            broker.transaction_producer(f"g-{topic}", listener) as producer,
            broker.consumer(f"c-{topic}", topic) as consumer,
        ):
            entered: list[str] = []

            async def work() -> None:
                async with producer.transaction(Message(topic, b"17")) as tx:
                    entered.append(tx.transaction_id)
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            while not entered:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [message.transaction_id for message in await take(consumer, 1)] == entered
            assert {asked.transaction_id for asked in listener.checked} == set(entered)

    run(story())


def test_cancelled_poll_loses_nothing(names: str, topic: str) -> None:
    async def story() -> None:
        async with txstore.aio.connect(names, **SOON) as broker:
            producer = broker.producer("p")
            await producer.send(Message(topic, b"0"), queue_id=0)
            async with broker.consumer(f"c-{topic}", topic) as consumer:
                seen = {message.body for message in await take(consumer, 1)}
                for number in range(1, 30):
                    waiting = asyncio.create_task(consumer.poll(1, 5))
                    await producer.send(Message(topic, b"%d" % number), queue_id=0)
                    await asyncio.sleep(0.002 * (number % 5))
                    waiting.cancel()
                    try:
                        seen |= {message.body for message in await waiting}
                    except asyncio.CancelledError:
                        continue
                while len(seen) < 30:
                    seen |= {message.body for message in await consumer.poll(32, 1)}
            assert seen == {b"%d" % number for number in range(30)}

    run(story())


def test_handler_and_loop_run_concurrently(names: str, topic: str) -> None:
    async def story() -> None:
        seen: list[bytes] = []
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)

        async def handle(message: Any) -> ConsumeResult | None:
            await asyncio.sleep(0.05)
            seen.append(message.body)
            return ConsumeResult.RECONSUME_LATER if message.body == b"3" and message.reconsume_times == 0 else None

        async with txstore.aio.connect(names, **SOON) as broker:
            producer = broker.producer("p")
            for number in range(20):
                await producer.send(Message(topic, b"%d" % number))
            watcher = asyncio.create_task(watch())
            async with broker.consumer(f"c-{topic}", topic) as consumer:
                running = asyncio.create_task(consumer.run(handle, threads=8))
                while len(seen) < 21:
                    await asyncio.sleep(0.02)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            watcher.cancel()
        assert sorted(seen) == sorted([*(b"%d" % number for number in range(20)), b"3"])
        assert longest < 10, "nothing blocks the loop"

    run(story())


def test_blocking_listener_delays_no_other_task(names: str, topic: str) -> None:
    async def story() -> None:
        ticked = threading.Event()

        def slow(message: Any, arg: Any) -> LocalTransactionState:
            assert ticked.wait(60), "the listener blocks the loop"
            return COMMIT

        async with txstore.aio.connect(names, **SOON) as broker:
            producer = broker.transaction_producer(f"g-{topic}")
            sending = asyncio.create_task(producer.send_in_transaction(Message(topic, b"x"), executer=slow))
            ticks = 0
            while not sending.done():
                await asyncio.sleep(0.01)
                ticks += 1
                if ticks > 10:
                    ticked.set()
            assert (await sending).error is None

    run(story())


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(txstore.InvalidOptionError, match="did you mean send_msg_timeout"):
        txstore.aio.connect("127.0.0.1:9876", send_message_timeout=3)  # type: ignore[call-arg]

    async def story() -> None:
        nobody = f"127.0.0.1:{Peer.free_port()}"
        broker = txstore.aio.connect(nobody)
        with pytest.raises(txstore.StoreClosedError, match="async with"):
            broker.producer("p")
        with pytest.raises(txstore.BrokerUnreachableError) as raised:
            await broker.__aenter__()
        assert raised.value.address == nobody

    run(story())
