"""Guards clients with connections cut within a frame and brokers that are killed and restarted.

What was acknowledged is received, what was rolled back is not, each commit is one message, and the program continues by
itself. The seed is printed; TXSTORE_REMOTE_SEED repeats it, TXSTORE_REMOTE_SECONDS sets how long connections are cut.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import txstore
from tests.remoting_client.brokers import BROKERS, Restarted
from tests.remoting_client.conftest import ON_ROCKETMQ
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, Answers, take
from tests.remoting_client.proxy import Proxy
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, TransactionListener, TxStoreError

SEED = int(os.environ.get("TXSTORE_REMOTE_SEED", random.randrange(1 << 30)))
SECONDS = float(os.environ.get("TXSTORE_REMOTE_SECONDS", "2"))
SOON: dict[str, Any] = {
    "rebalance_interval": 1,
    "poll_name_server_interval": 1,
    "heart_beat_broker_interval": 1,
    "persist_consumer_offset_interval": 1,
    "request_timeout": 10,
    "end_timeout": 10,
}


class Ledger(TransactionListener):
    """The local transactions: the decision of each is recorded before the broker is told, and is known to every
    check.
    """

    def __init__(self, chance: random.Random) -> None:
        self.decided: dict[str, LocalTransactionState] = {}
        self.told: defaultdict[str, list[str]] = defaultdict(list)
        """What was said of each, and when, to analyse a failure."""
        self._chance = chance

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        name = message.transaction_id
        # A check may come first, from a broker whose answer to the half message was lost: then it is rolled back.
        state = self.decided.setdefault(name, self._chance.choice([COMMIT, COMMIT, ROLLBACK]))
        said = self._chance.choice([state] * 4 + [UNKNOWN])
        self.told[name].append(f"{time.monotonic():.3f} executed: {state.name}, said {said.name}")
        return said

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        name = message.transaction_id
        state = self.decided.setdefault(name, ROLLBACK)
        self.told[name].append(f"{time.monotonic():.3f} checked: {state.name}, times {message.check_times}")
        return state


class History:
    """A producer, transactions and a consumer at work, and what they were told."""

    def __init__(self, broker: Any, topic: str, seed: int) -> None:
        self.acknowledged: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.positions: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        self.failed = 0
        self.ledger = Ledger(random.Random(seed))
        self._over = threading.Event()
        self._closed = threading.Event()
        self._topic = topic
        self._broker = broker
        self._sender = broker.producer(f"p-{topic}")
        self._transactions = broker.transaction_producer(f"g-{topic}", self.ledger)
        self.problems: list[BaseException] = []
        works = (self._send, self._begin, self._consume)
        self._threads = [threading.Thread(target=self._do, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self.problems.append(problem)

    def _send(self) -> None:
        for number in itertools.count():
            if self._over.wait(0.005):
                return
            body = b"plain %d" % number
            try:
                self._sender.send(Message(self._topic, body))
            except TxStoreError:
                self.failed += 1
            else:
                self.acknowledged.add(body)

    def _begin(self) -> None:
        for number in itertools.count():
            if self._over.wait(0.005):
                return
            try:
                sent = self._transactions.send_in_transaction(Message(self._topic, b"transaction %d" % number))
                self.ledger.told[sent.transaction_id].append(f"{time.monotonic():.3f} ended: {sent.error}")
            except TxStoreError:
                self.failed += 1

    def _consume(self) -> None:
        with self._broker.consumer(f"c-{self._topic}", self._topic) as consumer:
            while not self._closed.is_set():
                for message in consumer.poll(32, 0.2):
                    self.seen.add(message.body)
                    if message.transaction_id is not None:
                        self.positions[message.transaction_id].add((message.queue_id, message.queue_offset))

    def _told(self, names: Iterable[str]) -> dict[str, list[str]]:
        return {name: self.ledger.told[name] for name in names}

    def _is_enough(self) -> bool:
        return len(self.acknowledged) > 20 and list(self.ledger.decided.values()).count(COMMIT) > 5

    def _is_whole(self, committed: set[str]) -> bool:
        return self.acknowledged <= self.seen and committed <= self.positions.keys()

    def end(self, *, may_ask_again: bool) -> None:
        """Waits until everything sent has arrived, and asserts that it is right."""
        eventually(lambda: bool(self.problems) or self._is_enough())
        self._over.set()
        for thread in self._threads[:2]:
            thread.join()
        committed = {name for name, state in self.ledger.decided.items() if state is COMMIT}
        until = time.monotonic() + 40
        while not self.problems and not self._is_whole(committed) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        self._closed.set()
        self._threads[2].join()
        for problem in self.problems:
            raise problem
        assert self.acknowledged - self.seen == set()
        assert self._told(committed - self.positions.keys()) == {}, "what was committed is seen"
        assert self._told(self.positions.keys() - committed) == {}, "nothing that was rolled back is seen"
        twice = {name for name, positions in self.positions.items() if len(positions) > 1}
        # RocketMQ may check a transaction that it committed, and commits it again if the connection has changed by
        # then.
        asked_again = {name for name in twice if any("checked" in what for what in self.ledger.told[name])}
        assert self._told(twice - (asked_again if may_ask_again else set())) == {}, "once"


def test_cut_frames_lose_nothing_and_commit_nothing_twice(
    names: str, topic: str, request: pytest.FixtureRequest
) -> None:
    print("seed", SEED)
    with ExitStack() as stack:
        with txstore.connect(names) as direct:
            (address,) = direct._client.addresses()
        broker_proxy = stack.enter_context(Proxy(int(address.rpartition(":")[2])))
        names_proxy = stack.enter_context(Proxy(int(names.rpartition(":")[2])))
        names_proxy.written_over[address.encode()] = broker_proxy.address.encode()
        assert len(address) == len(broker_proxy.address)
        broker = stack.enter_context(txstore.connect(names_proxy.address, **SOON))
        history = History(broker, topic, SEED)
        eventually(lambda: len(history.acknowledged) > 5 and bool(history.seen))
        broker_proxy.cuts = names_proxy.cuts = random.Random(SEED)
        broker_proxy.drop_all()
        time.sleep(SECONDS)
        eventually(lambda: broker_proxy.cut > 3 and len(history.acknowledged) > 20)
        broker_proxy.cuts = names_proxy.cuts = None
        broker_proxy.drop_all()
        history.end(may_ask_again=request.node.callspec.params["names"] == "rocketmq")
        print(f"{broker_proxy.cut} cuts, {len(history.acknowledged)} sends, {len(history.ledger.decided)} transactions")


def test_transaction_whose_half_message_is_acknowledged_late_is_not_checked(names: str, topic: str) -> None:
    """The check may arrive together with the response that the half message is stored."""
    with ExitStack() as stack:
        with txstore.connect(names) as direct:
            (address,) = direct._client.addresses()
        broker_proxy = stack.enter_context(Proxy(int(address.rpartition(":")[2])))
        names_proxy = stack.enter_context(Proxy(int(names.rpartition(":")[2])))
        names_proxy.written_over[address.encode()] = broker_proxy.address.encode()
        # On a busy machine, the response may be much later.
        broker = stack.enter_context(txstore.connect(names_proxy.address, **SOON | {"send_msg_timeout": 300}))
        listener = Answers(UNKNOWN, check=ROLLBACK)
        producer = broker.transaction_producer(f"g-{topic}", listener)
        for _ in range(3):
            broker_proxy.flows.clear()
            threading.Timer(2.5, broker_proxy.flows.set).start()  # The broker asks after one second.
            with producer.transaction(Message(topic, b"late")):
                pass
        assert listener.checked == []


@pytest.fixture(params=[ON_ROCKETMQ, "serve"])
def restarted(request: pytest.FixtureRequest) -> Iterator[Restarted]:
    """A broker in a process of its own, which may be killed and started again."""
    with BROKERS[request.param](request) as broker:
        yield broker


def test_clients_reconnect_to_a_broker_that_was_killed(restarted: Restarted, topic: str) -> None:
    with txstore.connect(restarted.names, **SOON) as broker:
        listener = Answers(UNKNOWN, check=COMMIT)
        producer = broker.transaction_producer(f"late-{topic}", listener)
        message = Message(f"late-{topic}", b"17", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"})
        pending = producer.send_in_transaction(message)
        history = History(broker, topic, SEED)
        eventually(lambda: len(history.acknowledged) > 20 and len(history.ledger.decided) > 5 and bool(history.seen))
        restarted.kill()
        before = len(history.acknowledged)
        with pytest.raises((txstore.BrokerUnreachableError, txstore.BrokerTimeoutError)):
            broker.producer("p").send(Message(topic, b"no broker is there"))
        restarted.start()
        eventually(lambda: len(history.acknowledged) > before + 20, 40)
        history.end(may_ask_again=restarted.may_ask_again)
        with broker.consumer(f"late-{topic}", f"late-{topic}") as consumer:
            found = [message.transaction_id for message in take(consumer, 1, 40)]
        assert set(found) == {pending.transaction_id}
        # As in the history, RocketMQ may commit again what it asks again.
        assert len(found) == 1 or (restarted.may_ask_again and len(found) <= len(listener.checked))
