"""Guards the embedded store for asyncio: no wait holds the loop or a thread, and a call may be cancelled at any await.

Tests that need a wait for the disk hold the requests for syncs back, so no time decides what they see.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.process import threads_named
from tests.unit.conftest import SMALL, bodies
from tests.waiting import eventually
from txstore import ConsumeResult, LocalTransactionState, Message, TransactionState
from txstore._native import LoopStore
from txstore.aio import embedded

COMMIT, ROLLBACK, UNKNOWN = (LocalTransactionState[name] for name in ("COMMIT", "ROLLBACK", "UNKNOWN"))
SYNCED: dict[str, Any] = SMALL | {"flush_disk_type": "SYNC_FLUSH"}
SOON: dict[str, Any] = SMALL | {"transaction_timeout": 0.05, "transaction_check_interval": 0.05}


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(limited())


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, holds)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Gate:
    """Holds a thread at a point, once it was closed and until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(60)


class Disk:
    """The engine's calls for a loop, on a disk whose syncs a test can hold back."""

    def __init__(self, store: LoopStore) -> None:
        self._store = store
        self.requested = 0
        self.requests = 0
        self.is_held = False
        self.is_busy = False
        self.refused = 0
        self.gate = Gate()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if not self.is_busy or name not in ("append", "append_many", "prepare", "end_transaction"):
            return call

        def busy(*arguments: Any, **options: Any) -> Any:
            if arguments[-1] is False:
                self.refused += 1
                return None  # As where the loop's thread would have to wait for a lock or for space.
            written = call(*arguments, **options)
            self.gate.pass_through()
            return written

        return busy

    def request_sync(self, end: int) -> None:
        self.requested = end
        self.requests += 1
        if not self.is_held:
            self._store.request_sync(end)

    def release(self) -> None:
        self.is_held = False
        self._store.request_sync(self.requested)


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Disk]]:
    """The disks of the stores that are opened, in order."""
    found: list[Disk] = []

    class Starts:
        @staticmethod
        def start(store: Any) -> Disk:
            found.append(Disk(LoopStore.start(store)))
            return found[-1]

    monkeypatch.setattr(embedded, "LoopStore", Starts)
    yield found
    found.clear()


def test_what_a_network_client_does_works_after_connect_became_open(tmp_path: Path) -> None:
    async def story(broker: txstore.aio.Broker) -> None:
        async with broker, broker.transaction_producer("g", check_listener=None) as producer:
            sent = await asyncio.gather(*(producer.send(Message("t", b"%d" % n), queue_id=0) for n in range(20)))
            assert len({one.message_id for one in sent}) == 20
            await producer.send_batch([Message("t", b"batch")] * 3, queue_id=0)
            async with producer.transaction(Message("t", b"block"), queue_id=0) as tx:
                pass
            await tx.commit()
            result = await producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: ROLLBACK)
            assert result.local_transaction_state is ROLLBACK
            again = await broker.end_transaction(tx.send_result, COMMIT, producer_group="g")
            assert (again.outcome, again.already) == (TransactionState.COMMITTED, True)
            seen = []
            async with broker.consumer("c", "t") as consumer:
                async for message in consumer:
                    seen.append(message.queue_offset)
                    if len(seen) == 10:
                        break
                assert (await consumer.poll(1))[0].queue_offset == 9, "the current message was not acknowledged"
            async with broker.consumer("c", "t") as consumer:
                left = await consumer.poll(32, 10)
                assert [message.queue_offset for message in left] == list(range(10, 24))
        with pytest.raises(txstore.StoreClosedError):
            await producer.send(Message("t", b"x"))

    run(story(txstore.aio.open(tmp_path / "a", **SYNCED)))
    with txstore.serve(tmp_path / "b", listen="127.0.0.1:0", name_server="127.0.0.1:0", **SMALL) as server:
        assert server.name_server is not None
        run(story(txstore.aio.connect(server.name_server, send_msg_timeout=60, request_timeout=60)))


def test_a_thousand_tasks_share_syncs(tmp_path: Path, disks: list[Disk]) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SYNCED) as broker:
            producer = broker.producer("g")
            first = await producer.send(Message("t", b"first"))
            (disk,) = disks
            disk.is_held = True
            before = threading.active_count()
            tasks = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(1000)]
            await until(lambda: disk.requested > first.physical_offset and broker.blocking.store.appended_end > 100_000)
            assert not any(task.done() for task in tasks)
            assert threading.active_count() <= before + 1, "no wait holds a thread"
            requests = disk.requests
            disk.release()
            sent = await asyncio.gather(*tasks)
            assert disk.requests - requests < 20
            assert len({one.physical_offset for one in sent}) == 1000
            assert broker.blocking.store.durable_end >= max(one.physical_offset for one in sent)

    run(story())


def test_a_send_without_sync_stays_on_the_loops_thread(tmp_path: Path) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            producer = broker.producer("g")
            await producer.send(Message("t", b"0"))  # Creates the topic, in a thread.
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1
                asyncio.get_running_loop().call_soon(turn)

            asyncio.get_running_loop().call_soon(turn)
            passed = []
            for number in range(50):
                before = turns
                await producer.send(Message("t", b"%d" % number))
                passed.append(turns - before)
            assert passed.count(0) > 40, "nothing else ran meanwhile, but where the store was busy"

    run(story())


def test_a_store_that_is_busy_is_waited_for_in_one_thread(tmp_path: Path, disks: list[Disk]) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            producer = broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
            await producer.send(Message("t", b"0"))
            disks[0].is_busy = True
            before = threading.active_count()
            await asyncio.gather(*(producer.send(Message("t", b"%d" % n)) for n in range(100)))
            await producer.send_batch([Message("t", b"a"), Message("u", b"b")])
            async with producer.transaction(Message("t", b"tx")):
                pass
            assert disks[0].refused == 103
            assert threading.active_count() <= before + 1
            assert len(bodies(broker.blocking, "t")) == 103

    run(story())


def test_a_failed_sync_reaches_every_task(tmp_path: Path, disks: list[Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SYNCED) as broker:
            producer = broker.producer("g")
            await producer.send(Message("t", b"0"))
            (disk,) = disks
            disk.is_held = True
            tasks = [asyncio.create_task(producer.send(Message("t", b"x"))) for _ in range(3)]
            await until(lambda: disk.requested > 0 and disk.requests > 1)

            def fails() -> int:
                raise txstore.StorePoisonedError("a sync failed")

            disk.durable = fails  # type: ignore[attr-defined]
            disk.release()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(error, txstore.StorePoisonedError) for error in errors)
            assert len(set(map(id, errors))) == 3, "each has a traceback of its own"

    run(story())


def test_transactions_and_checks_by_coroutines_run_on_the_loop(tmp_path: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.checked: list[Any] = []
            self.loops: set[asyncio.AbstractEventLoop] = set()

        async def execute_local_transaction(self, message: Any, arg: LocalTransactionState) -> LocalTransactionState:
            self.loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return arg

        async def check_local_transaction(self, message: Any) -> LocalTransactionState:
            self.loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            self.checked.append(message.transaction_id)
            return COMMIT

    async def story() -> None:
        listener = Listener()
        async with (
            txstore.aio.open(tmp_path / "store", **SOON) as broker,
            broker.transaction_producer("g", listener) as producer,
            broker.consumer("c", "t") as consumer,
        ):
            await producer.send_in_transaction(Message("t", b"commit"), COMMIT)
            await producer.send_in_transaction(Message("t", b"rollback"), ROLLBACK)
            unknown = await producer.send_in_transaction(Message("t", b"unknown"), UNKNOWN)
            found: list[Any] = []
            async for message in consumer:
                found.append(message.body)
                if len(found) == 2:
                    break
            assert found == [b"commit", b"unknown"]
            assert set(listener.checked) == {unknown.transaction_id}
            assert listener.loops == {asyncio.get_running_loop()}

    run(story())


def test_a_half_message_that_is_cancelled_before_its_local_transaction_is_rolled_back(
    tmp_path: Path, disks: list[Disk]
) -> None:
    async def story(*, busy: bool) -> None:
        async with txstore.aio.open(tmp_path / f"store-{busy}", **SMALL) as broker:
            producer = broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
            await producer.send(Message("t", b"0"))
            disk = disks[-1]
            disk.is_held, disk.is_busy = True, busy
            if busy:
                disk.gate.close()  # The cancellation comes while the thread writes.
            entered = False

            async def work() -> None:
                nonlocal entered
                async with producer.transaction(Message("t", b"17")):
                    entered = True

            task = asyncio.create_task(work())
            await until(lambda: broker.blocking.store.stat().pending_transactions == 1)
            await cancelled(task)
            disk.gate.open()
            await until(lambda: broker.blocking.store.stat().pending_transactions == 0)
            (row,) = broker.blocking.transactions(None)
            assert (entered, row.state) == (False, TransactionState.ROLLED_BACK)
            disk.release()

    run(story(busy=False))
    run(story(busy=True))


def test_a_cancelled_local_transaction_is_left_to_its_check(tmp_path: Path) -> None:
    """The database may have committed before the cancellation, so only its check knows."""

    async def story() -> None:
        checked: list[Any] = []

        async def check(message: Any) -> LocalTransactionState:
            checked.append(message.transaction_id)
            return COMMIT

        async with (
            txstore.aio.open(tmp_path / "store", **SOON) as broker,
            broker.transaction_producer("g", check_listener=check) as producer,
            broker.consumer("c", "t") as consumer,
        ):
            entered = asyncio.Event()
            ids: list[str] = []

            async def work() -> None:
                async with producer.transaction(Message("t", b"17")) as tx:
                    ids.append(tx.transaction_id)
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await entered.wait()
            await cancelled(task)
            (message,) = await consumer.poll(1, None)
            assert [message.transaction_id] == ids
            assert set(checked) == set(ids)

    run(story())


def test_an_end_that_is_cancelled_is_written(tmp_path: Path, disks: list[Disk]) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SYNCED) as broker:
            producer = broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
            tx = producer.transaction(Message("t", b"17"))
            await tx.__aenter__()
            disks[0].is_held = True
            task = asyncio.create_task(tx.commit())
            await until(lambda: broker.blocking.store.stat().pending_transactions == 0)
            await asyncio.sleep(0)
            await cancelled(task)
            disks[0].release()
            await tx.__aexit__(None, None, None)
            assert tx.state is COMMIT
            assert bodies(broker.blocking, "t") == [b"17"]

    run(story())


def test_cancelled_sends_disturb_no_others(tmp_path: Path, disks: list[Disk]) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SYNCED) as broker:
            producer = broker.producer("g")
            await producer.send(Message("t", b"0"))
            disks[0].is_held = True
            tasks = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(10)]
            await until(lambda: disks[0].requests > 1)
            for task in tasks[::2]:
                await cancelled(task)
            disks[0].release()
            assert len(await asyncio.gather(*tasks[1::2])) == 5

    run(story())


def test_cancelled_poll_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            producer = broker.producer("p")
            seen: set[bytes] = set()
            async with broker.consumer("c", "t") as consumer:
                for number in range(30):
                    waiting = asyncio.create_task(consumer.poll(1, 5))
                    await producer.send(Message("t", b"%d" % number), queue_id=0)
                    await asyncio.sleep(0.002 * (number % 5))
                    waiting.cancel()
                    try:
                        seen |= {message.body for message in await waiting}
                    except asyncio.CancelledError:
                        continue
                while more := await consumer.poll(32, 1):
                    seen |= {message.body for message in more}
            assert seen == {b"%d" % number for number in range(30)}

    run(story())


def test_a_consumer_whose_opening_is_cancelled_keeps_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            await broker.producer("p").send(Message("t", b"0"))
            create, gate, made = broker.blocking.consumer, Gate(), list[txstore.Consumer]()

            def slow(*arguments: Any, **options: Any) -> txstore.Consumer:
                made.append(create(*arguments, **options))
                gate.pass_through()
                return made[-1]

            gate.close()
            with monkeypatch.context() as patch:
                patch.setattr(broker.blocking, "consumer", slow)
                entering = asyncio.create_task(broker.consumer("c", "t").__aenter__())
                await until(gate.reached.is_set)
                await cancelled(entering)
            gate.open()
            await until(lambda: made[0].closed)
            async with broker.consumer("c", "t") as consumer:
                assert [message.body for message in await consumer.poll(1, 10)] == [b"0"]

    run(story())


def test_handlers_may_be_coroutines(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[bytes] = []

        async def handle(message: Any) -> ConsumeResult | None:
            await asyncio.sleep(0)
            seen.append(message.body)
            return None

        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            producer = broker.producer("p")
            await producer.send_batch([Message("t", b"%d" % number) for number in range(20)])
            async with broker.consumer("c", "t") as consumer:
                running = asyncio.create_task(consumer.run(handle, threads=8))
                while len(seen) < 20:
                    await asyncio.sleep(0.005)
                await cancelled(running)
        assert sorted(seen) == sorted(b"%d" % number for number in range(20))

    run(story())


def test_closing_finishes_what_waits_for_the_disk(tmp_path: Path, disks: list[Disk]) -> None:
    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SYNCED) as broker:
            producer = broker.producer("g")
            await producer.send(Message("t", b"0"))
            disks[0].is_held = True
            tasks = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(3)]
            await until(lambda: disks[0].requests > 1)
        assert broker.closed
        assert len(await asyncio.gather(*tasks)) == 3
        await broker.close()
        with txstore.open(tmp_path / "store") as again:
            assert len(bodies(again, "t")) == 4

    run(story())


def test_closing_that_is_cancelled_closes(tmp_path: Path) -> None:
    async def story() -> None:
        broker = txstore.aio.open(tmp_path / "store", **SMALL)
        async with broker:
            await broker.producer("g").send(Message("t", b"0"))
            closing = asyncio.create_task(broker.close())
            await asyncio.sleep(0)
            await cancelled(closing)
        assert broker.closed
        with txstore.open(tmp_path / "store"):
            pass  # It is not locked any more.

    run(story())


def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, opened = Gate(), list[txstore.EmbeddedBroker]()
    opens = txstore.open

    def slow(*arguments: Any, **options: Any) -> txstore.EmbeddedBroker:
        opened.append(opens(*arguments, **options))
        gate.pass_through()
        return opened[-1]

    async def story() -> None:
        gate.close()
        opening = asyncio.create_task(txstore.aio.open(tmp_path / "store", **SMALL).__aenter__())
        await until(gate.reached.is_set)
        await cancelled(opening)
        gate.open()
        await until(lambda: opened[0].closed)

    monkeypatch.setattr("txstore.aio.embedded.open_blocking", slow)
    run(story())


def sync_threads() -> set[int]:
    return threads_named("txstore-sync")


def test_a_broker_that_is_never_closed_leaves_nothing_on_its_loop(tmp_path: Path) -> None:
    async def story() -> None:
        before = sync_threads()
        broker = await txstore.aio.open(tmp_path / "store", **SMALL).__aenter__()
        await broker.producer("g").send(Message("t", b"0"))
        await until(lambda: len(sync_threads() - before) == 1)  # A thread names itself.
        (own,) = sync_threads() - before
        del broker

        def is_free() -> bool:
            gc.collect()
            try:
                txstore.open(tmp_path / "store").close()
            except txstore.StoreLockedError:
                return False
            return True

        await until(lambda: own not in sync_threads())
        await until(is_free)

    run(story())


def test_a_loop_that_is_closed_while_tasks_wait_loses_no_thread(tmp_path: Path, disks: list[Disk]) -> None:
    async def begin(broker: txstore.aio.EmbeddedBroker) -> list[asyncio.Task[Any]]:
        await broker.__aenter__()
        producer = broker.producer("g")
        await producer.send(Message("t", b"0"))
        disks[0].is_held = True
        tasks = [asyncio.ensure_future(producer.send(Message("t", b"x"))) for _ in range(10)]
        await until(lambda: disks[0].requests > 1)
        return tasks

    before = sync_threads()
    loop = asyncio.new_event_loop()
    broker = txstore.aio.open(tmp_path / "store", **SYNCED)
    tasks = loop.run_until_complete(begin(broker))
    (own,) = sync_threads() - before
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    disks[0].release()  # The sync ends when nothing waits for it any more.
    assert not any(task.done() for task in tasks)
    del broker, tasks
    disks.clear()
    gc.collect()
    eventually(lambda: own not in sync_threads())
    with txstore.open(tmp_path / "store") as again:
        assert len(bodies(again, "t")) == 11


def test_a_check_whose_loop_is_closed_ends(tmp_path: Path) -> None:
    """A thread that waits for a coroutine of a closed loop would never come back."""
    asked = threading.Event()

    async def check(message: Any) -> LocalTransactionState:
        asked.set()
        await asyncio.Event().wait()
        return COMMIT

    async def begin(broker: txstore.aio.EmbeddedBroker) -> None:
        await broker.__aenter__()
        producer = broker.transaction_producer("g", check_listener=check)
        await producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
        await until(asked.is_set)

    loop = asyncio.new_event_loop()
    broker = txstore.aio.open(tmp_path / "store", **SOON, transaction_check_time_limit=3600)
    loop.run_until_complete(begin(broker))
    pool = broker.blocking._parts.pool
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    broker.blocking.close()
    eventually(lambda: pool.is_idle)


def test_another_loop_is_refused(tmp_path: Path) -> None:
    async def on_another(broker: txstore.aio.EmbeddedBroker, producer: txstore.aio.Producer) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: producer.send(Message("t", b"x")),
            lambda: broker.close(),
        ]
        for call in calls:
            with pytest.raises(txstore.InvalidOptionError, match="another event loop"):
                await call()
        with pytest.raises(txstore.InvalidOptionError, match="another event loop"):
            broker.producer("g")
        with pytest.raises(txstore.InvalidOptionError, match="already opened"):
            await broker.__aenter__()

    async def story() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker:
            producer = broker.producer("g")
            await asyncio.to_thread(lambda: asyncio.run(on_another(broker, producer)))

    run(story())


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(txstore.InvalidOptionError, match="did you mean flush_disk_type"):
        txstore.aio.open(tmp_path / "store", flush_disk_typ="SYNC_FLUSH")  # type: ignore[call-overload]

    async def story() -> None:
        broker: txstore.aio.EmbeddedBroker = txstore.aio.open(tmp_path / "store", **SMALL)
        with pytest.raises(txstore.StoreClosedError, match="async with"):
            broker.producer("p")
        async with broker:
            with pytest.raises(AttributeError, match=r"to_thread\(broker\.blocking\.create_topic"):
                broker.create_topic("t")  # type: ignore[attr-defined]
            with pytest.raises(txstore.StoreLockedError):
                await txstore.aio.open(tmp_path / "store", **SMALL).__aenter__()
            producer = broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
            with pytest.raises(txstore.InvalidMessageError, match="expected a Message, got str"):
                await producer.send("t")  # type: ignore[arg-type]
            async with producer.transaction(Message("t", b"x")) as tx:
                await tx.rollback()
            with pytest.raises(txstore.AlreadyEndedError) as raised:
                await broker.end_transaction(tx.transaction_id, COMMIT)
            assert raised.value.outcome is TransactionState.ROLLED_BACK
            with pytest.raises(txstore.AlreadyEndedError):
                await tx.commit()

    run(story())
