"""A process of clients: producers, transaction producers and consumers, in threads or on asyncio.

In:     a command on stdin (`stop`: send nothing more; `end`: leave).
Out:    what each client did and was told, one line each, in a file.
Always: an action is written down before it begins.

    python -m tests.histories.clients ADDRESS FILE SEED FIRST COUNT threads|asyncio

ADDRESS may be `shared:STORE`: then all clients of the process share one `txstore.open(STORE, shared=True)`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import txstore
import txstore.aio
from txstore import AlreadyEndedError, LocalTransactionState, Message, TransactionListener, TxStoreError
from txstore.client.broker import RemoteBroker
from txstore.message import SendStatus

TOPIC = "orders"
GROUP = "shipping"
COMMIT, ROLLBACK, UNKNOWN = (LocalTransactionState[name] for name in ("COMMIT", "ROLLBACK", "UNKNOWN"))
SOON: dict[str, Any] = {
    "rebalance_interval": 1,
    "poll_name_server_interval": 1,
    "heart_beat_broker_interval": 1,
    "persist_consumer_offset_interval": 1,
    "reconnect_back_off_max": 1,
    # Sixty-four connect at once, perhaps to a machine with other work.
    "request_timeout": 15,
    "connect_timeout": 15,
}
SETTINGS: dict[str, Any] = {
    "transaction_timeout": 1,
    "transaction_check_interval": 1,
    "transaction_check_max": 1_000,
    "max_message_size": 1 << 16,
}
NEW: dict[str, Any] = SETTINGS | {"mapped_file_size_commit_log": 1 << 20}
SHARED = "shared:"
_PAUSE_SECONDS = 0.15
_PAUSE_AFTER_FAILURE_SECONDS = 0.5
_LATE_SECONDS = 2.5
_LEAVES = 0.03
_READY_SECONDS = 120.0


class Log:
    """Lines of a process's clients, each written completely at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._lock = threading.Lock()

    def of(self, client: int) -> Callable[..., None]:
        def write(what: str, **facts: Any) -> None:
            line = json.dumps({"client": client, "what": what} | facts)
            with self._lock:
                self._file.write(line + "\n")

        return write


class Listener(TransactionListener):
    """Answers as a message's name says; sometimes UNKNOWN at first. A check may reach any process of the group."""

    def __init__(self, write: Callable[..., None], chance: random.Random) -> None:
        self._write = write
        self._chance = chance

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return self._say(message, UNKNOWN)

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return self._say(message, ROLLBACK)

    def _say(self, message: Any, either: LocalTransactionState) -> LocalTransactionState:
        name = message.body.decode()
        state = {"commit": COMMIT, "rollback": ROLLBACK}.get(name.partition("-")[0], either)
        if self._chance.random() < 0.2:
            return UNKNOWN
        self._write("says", name=name, state=state.name)
        return state


class Plan:
    """What a client does next: names of its messages, pauses, ways to end. One for each client, by its seed."""

    def __init__(self, log: Log, client: int, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed * 1_000 + client)
        self.write = log.of(client)
        self.listener = Listener(self.write, random.Random(self.chance.getrandbits(64)))
        self._number = 0
        self._failed = 0.0
        self._began = 0.0

    def message(self, *kinds: str) -> tuple[str, Message]:
        self._number += 1
        kind = self.chance.choice(kinds)
        name = f"{kind}-{self.client}-{self._number}"
        self.write("begin", name=name, transaction=kind != "plain")
        self._began = time.monotonic()
        return name, Message(TOPIC, name.encode())

    def transaction(self) -> tuple[str, Message, LocalTransactionState]:
        """The state that a transaction's sender intends for it."""
        name, message = self.message("commit", "commit", "rollback", "either")
        return name, message, ROLLBACK if name.startswith("rollback") else COMMIT

    def pause(self) -> float:
        """A pause, longer after a failure: while no server is there, clients leave the processor to the one that
        restarts.
        """
        pause = self.chance.uniform(0.0, 2 * _PAUSE_SECONDS)
        pause, self._failed = pause + self._failed, 0.0
        return pause

    def late(self, name: str) -> float:
        """How long its end waits: if a check may settle it first, until the check may come."""
        return self.chance.uniform(0.0, _LATE_SECONDS) if name.startswith("either") else 0.0

    def leaves(self, over: bool) -> bool:
        """Whether a consumer leaves its group now, and returns: meanwhile the others share its queues."""
        return not over and self.chance.random() < _LEAVES

    def sent(self, name: str, sent: Any) -> None:
        status = getattr(sent, "send_status", SendStatus.SEND_OK)
        if status is not SendStatus.SEND_OK:
            # It is stored, but no more is promised.
            self.write("failed", name=name, error=status.value)
            return
        seconds = time.monotonic() - self._began
        self.write("sent", name=name, queue=sent.queue_id, offset=sent.queue_offset, ms=round(1000 * seconds, 1))

    def read(self, messages: list[Any]) -> None:
        if messages:
            rows = [(message.queue_id, message.queue_offset, message.body.decode()) for message in messages]
            self.write("read", rows=rows)

    def failed(self, error: TxStoreError, name: str | None = None) -> None:
        """Records the outcome that an end came too late for; an unknown one is settled by a check or read from the
        store.
        """
        self._failed = _PAUSE_AFTER_FAILURE_SECONDS
        if isinstance(error, AlreadyEndedError) and name is not None:
            self.write("told", name=name, outcome=error.outcome)
        else:
            self.write("failed", name=name, error=f"{type(error).__name__}: {error}".partition("\n")[0])


class Threads:
    """Clients in threads, each with a connection of its own."""

    def __init__(self, address: str, plans: list[Plan]) -> None:
        self._stop, self._end = threading.Event(), threading.Event()
        self._ready = threading.Barrier(len(plans) + 1, timeout=_READY_SECONDS)
        works = (self._send, self._transact, self._send, self._transact, self._consume, self._transact)
        self._shared = _opened(address)
        pool = ThreadPoolExecutor(len(plans))
        self._clients = [
            pool.submit(self._live, address, plan, works[at % len(works)]) for at, plan in enumerate(plans)
        ]
        self._ready.wait()

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> None:
        self._end.set()
        for client in self._clients:
            client.result()
        if self._shared is not None:
            self._shared.close()

    def _live(self, address: str, plan: Plan, work: Callable[[Any, Plan], None]) -> None:
        with txstore.connect(address, **SOON) if self._shared is None else nullcontext(self._shared) as broker:
            self._ready.wait()
            work(broker, plan)

    def _send(self, broker: RemoteBroker, plan: Plan) -> None:
        producer = broker.producer("senders")
        while not self._stop.wait(plan.pause()):
            name, message = plan.message("plain")
            try:
                plan.sent(name, producer.send(message))
            except TxStoreError as error:
                plan.failed(error, name)

    def _transact(self, broker: RemoteBroker, plan: Plan) -> None:
        with broker.transaction_producer("payments", plan.listener) as producer:
            while not self._stop.wait(plan.pause()):
                name, message, wanted = plan.transaction()
                try:
                    if plan.chance.random() < 0.5:
                        self._by_listener(broker, producer, plan, name, message, wanted)
                    else:
                        self._by_block(producer, plan, name, message, wanted)
                except TxStoreError as error:
                    plan.failed(error, name)
            self._end.wait()

    def _by_listener(
        self,
        broker: RemoteBroker,
        producer: txstore.TransactionProducer,
        plan: Plan,
        name: str,
        message: Message,
        wanted: LocalTransactionState,
    ) -> None:
        result = producer.send_in_transaction(message)
        plan.write("half", name=name, id=result.transaction_id)
        if name.startswith("either"):
            self._stop.wait(plan.late(name))
            plan.write("says", name=name, state=wanted.name)
            plan.write("told", name=name, outcome=broker.end_transaction(result.transaction_id, wanted).outcome)
        elif result.local_transaction_state is not UNKNOWN and result.error is None:
            plan.write("told", name=name, outcome=_outcome(wanted))

    def _by_block(
        self,
        producer: txstore.TransactionProducer,
        plan: Plan,
        name: str,
        message: Message,
        wanted: LocalTransactionState,
    ) -> None:
        with producer.transaction(message) as tx:
            plan.write("half", name=name, id=tx.transaction_id)
            self._stop.wait(plan.late(name))
            plan.write("says", name=name, state=wanted.name)
            (tx.commit if wanted is COMMIT else tx.rollback)()
            plan.write("told", name=name, outcome=_outcome(wanted))

    def _consume(self, broker: RemoteBroker, plan: Plan) -> None:
        while not self._end.is_set():
            try:
                with broker.consumer(GROUP, TOPIC) as consumer:
                    while not self._end.is_set() and not plan.leaves(self._stop.is_set()):
                        plan.read(consumer.poll(32, 0.5))
            except TxStoreError as error:
                plan.failed(error)
                self._end.wait(plan.pause())


class Tasks:
    """The same on asyncio: one loop, a connection for each client."""

    def __init__(self, address: str, plans: list[Plan]) -> None:
        self._stop, self._end, self._ready = asyncio.Event(), asyncio.Event(), threading.Event()
        self._clients = ThreadPoolExecutor(1).submit(lambda: asyncio.run(self._live_all(address, plans)))
        assert self._ready.wait(_READY_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._clients.result()

    async def _live_all(self, address: str, plans: list[Plan]) -> None:
        self._loop = asyncio.get_running_loop()
        self._here = asyncio.Barrier(len(plans) + 1)
        works = (self._send, self._transact, self._send, self._transact, self._consume, self._transact)
        async with asyncio.TaskGroup() as tasks:
            for at, plan in enumerate(plans):
                tasks.create_task(self._live(address, plan, works[at % len(works)]))
            await self._here.wait()
            self._ready.set()

    async def _live(self, address: str, plan: Plan, work: Any) -> None:
        async with txstore.aio.connect(address, **SOON) as broker:
            await self._here.wait()
            await work(broker, plan)

    async def _continues(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return True
        return False

    async def _send(self, broker: txstore.aio.Broker, plan: Plan) -> None:
        producer = broker.producer("senders")
        while await self._continues(plan.pause()):
            name, message = plan.message("plain")
            try:
                plan.sent(name, await producer.send(message))
            except TxStoreError as error:
                plan.failed(error, name)

    async def _transact(self, broker: txstore.aio.Broker, plan: Plan) -> None:
        async with broker.transaction_producer("payments", plan.listener) as producer:
            while await self._continues(plan.pause()):
                name, message, wanted = plan.transaction()
                try:
                    async with producer.transaction(message) as tx:
                        plan.write("half", name=name, id=tx.transaction_id)
                        await self._continues(plan.late(name))
                        plan.write("says", name=name, state=wanted.name)
                        await (tx.commit() if wanted is COMMIT else tx.rollback())
                        plan.write("told", name=name, outcome=_outcome(wanted))
                except TxStoreError as error:
                    plan.failed(error, name)
            await self._end.wait()

    async def _consume(self, broker: txstore.aio.Broker, plan: Plan) -> None:
        while not self._end.is_set():
            try:
                async with broker.consumer(GROUP, TOPIC) as consumer:
                    while not self._end.is_set() and not plan.leaves(self._stop.is_set()):
                        plan.read(await consumer.poll(32, 0.5))
            except TxStoreError as error:
                plan.failed(error)
                await asyncio.sleep(plan.pause())


def _opened(address: str) -> txstore.SharedBroker | None:
    if not address.startswith(SHARED):
        return None
    return txstore.open(address.removeprefix(SHARED), shared=True, **SETTINGS)


def _outcome(state: LocalTransactionState) -> str:
    return "committed" if state is COMMIT else "rolled_back"


def main(address: str, path: str, seed: str, first: str, count: str, how: str) -> None:
    log = Log(Path(path))
    plans = [Plan(log, client, int(seed)) for client in range(int(first), int(first) + int(count))]
    clients: Threads | Tasks = Threads(address, plans) if how == "threads" else Tasks(address, plans)
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "stop\n":
            clients.stop()
        else:
            break
    clients.stop()
    clients.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
