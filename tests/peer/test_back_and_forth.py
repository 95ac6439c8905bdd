"""Guards one store that moves back and forth between txstore and a real broker, and both work on it.

Both send, begin transactions, end what the other left pending, check it, discard it and resume it. After each turn
every transaction has the state that its client was told; at the end every message is in its queue once, and a consumer
that took part in all turns got each. TXSTORE_PEER_TURNS sets the number of turns, TXSTORE_PEER_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.peer import agreement
from tests.peer.rocketmq import SHORT_DELAYS, SHORT_TIMES, SIZES, SMALL, EmbeddedBroker, Peer, Producer, message
from tests.ports import free_port
from txstore import BrokerConfig, LocalTransactionState, Message, TransactionListener
from txstore.message import TransactionMessage

pytestmark = pytest.mark.peer

Facts = dict[str, Any]

TURNS = int(os.environ.get("TXSTORE_PEER_TURNS", "3"))
SEED = int(os.environ.get("TXSTORE_PEER_SEED", random.randrange(1 << 30)))
TOPIC, GROUP, WALKER = "BackAndForth", "PG_BOTH", "CG_BOTH"
SENDS, BEGUN = 12, 24
TURN_TIMEOUT_S = 60.0
OP_BATCH_S = 0.2
ANSWER = {"committed": "COMMIT", "rolled_back": "ROLLBACK"}
# In such a turn the checking side discards at once: what is pending then is discarded. One is the broker's, one ours.
GIVING_UP = (3, 6)
FOR_EVER = 10_000


@dataclass
class Transaction:
    """One transaction, and its intended fate."""

    name: str
    due: int
    """The turn in which it is ended."""
    outcome: str
    at_once: bool
    """Ended by its own producer, without a check."""
    transaction_id: str = ""
    state: str = "pending"

    def answers(self, turn: int) -> list[str]:
        """What its producer says in this turn, first for its local transaction."""
        final = ANSWER.get(self.outcome, "UNKNOWN") if self.due == turn else "UNKNOWN"
        return [final] if self.at_once else ["UNKNOWN", final]


@dataclass
class Game:
    """The store's life: what was sent, begun, told and delivered, over all turns."""

    path: Path
    rocketmq: Peer
    chance: random.Random
    port: int
    """The address of both: an operator's tool asks the address in a record."""
    turn: int = 0
    contents: dict[str, bytes] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    commits_told_to_broker: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)
    """Transaction ids, in this turn."""
    delivered: Counter[str] = field(default_factory=Counter)

    @property
    def discards(self) -> bool:
        return self.turn in GIVING_UP

    def new_content(self) -> str:
        name = f"n{self.turn}-{len(self.contents)}"
        # The long ones are compressed by RocketMQ's client.
        self.contents[name] = name.encode() * self.chance.choice([1, 3, 40, 2000])
        return name

    def plan(self) -> Transaction:
        """Ended at once, in this turn by a check, or in a later turn by the side that has the store then."""
        at_once = self.chance.random() < 0.3
        due = self.turn if at_once else min(TURNS - 1, self.turn + self.chance.randrange(3))
        outcome = self.chance.choice(["committed", "rolled_back"])
        for turn in GIVING_UP:
            if self.turn <= turn <= due and not at_once:
                due, outcome = turn, "discarded"
                break
        return Transaction(self.new_content(), due, outcome, at_once)

    def due(self) -> list[Transaction]:
        """The transactions to be ended in this turn that are not ended yet."""
        return [one for one in self.transactions.values() if one.due == self.turn and one.state == "pending"]

    def begun(self, transaction: Transaction, transaction_id: str) -> None:
        transaction.transaction_id = transaction_id
        self.transactions[transaction.name] = transaction
        if transaction.at_once:
            transaction.state = transaction.outcome

    def to_resume(self) -> list[Transaction]:
        """Some of the discarded ones; each is due in this turn or the next."""
        discarded = [one for one in self.transactions.values() if one.state == "discarded"]
        chosen = [one for one in discarded if not self.discards and self.chance.random() < 0.4]
        for one in chosen:
            later = self.turn + self.chance.randrange(2)
            one.due = self.turn if later in GIVING_UP else min(TURNS - 1, later)
            one.outcome, one.at_once = self.chance.choice(["committed", "rolled_back"]), False
        return chosen

    def play(self) -> None:
        self.asked = set()
        pending = {one.transaction_id for one in self.transactions.values() if one.state == "pending"}
        before = {one.transaction_id for one in self.transactions.values()}
        (Theirs if self.turn % 2 else Ours)(self).play()
        ended = before - pending - {one.transaction_id for one in self.transactions.values() if one.due >= self.turn}
        assert self.asked & ended == set(), "checked a transaction that was ended"
        for one in self.due():
            one.state = one.outcome
        self.compare()

    def compare(self) -> None:
        """Every transaction has the state that its client was told, on both sides."""
        with txstore.open(self.path, read_only=True) as broker:
            assert broker.open_report.clean
            assert broker.open_report.truncated_bytes == 0
            rows = {row.transaction_id: row for row in broker.store.transactions()}
        states = {one.name: rows[one.transaction_id].state for one in self.transactions.values()}
        assert states == {one.name: one.state for one in self.transactions.values()}
        assert len(rows) == len(self.transactions)

    def expected(self) -> set[str]:
        """Names of what is visible, now or when its delay is over."""
        plain = set(self.contents) - set(self.transactions)
        return plain | {one.name for one in self.transactions.values() if one.state == "committed"}

    def take(self, name: str, body: bytes) -> None:
        assert body == self.contents[name]
        self.delivered[name] += 1


class Ours(TransactionListener):
    """A turn of txstore's."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._asked: dict[str, str] = {}

    def play(self) -> None:
        game = self._game
        checks = 2 if game.discards else FOR_EVER
        times = {"transaction_timeout": 0.1, "transaction_check_interval": 0.1, "transaction_check_max": checks}
        with txstore.open(
            game.path, config=BrokerConfig.from_options({**SIZES, **times, "broker_port": game.port})
        ) as broker:
            self._send(broker)
            for one in game.to_resume():
                assert broker.resume(one.transaction_id).transaction_id == one.transaction_id
                one.state = "pending"
            with broker.transaction_producer(GROUP, self) as producer:
                for _ in range(BEGUN):
                    plan = game.plan()
                    sent = producer.send_in_transaction(self._message(plan.name), plan)
                    game.begun(plan, sent.transaction_id)
                wait_until(lambda: self._done(broker))
            with broker.consumer(WALKER, TOPIC) as consumer:
                while self._take(consumer, 0.3):
                    pass
                if game.turn == TURNS - 1:
                    # Messages that the broker's turns delayed come at the latest now.
                    for one in game.due():
                        one.state = one.outcome
                    wait_until(lambda: self._all_taken(consumer))

    def _take(self, consumer: txstore.Consumer, timeout_s: float) -> int:
        batch = consumer.poll(timeout=timeout_s)
        for one in batch:
            self._game.take(one.keys[0], one.body)
        return len(batch)

    def _all_taken(self, consumer: txstore.Consumer) -> bool:
        self._take(consumer, 0.1)
        return set(self._game.delivered) == self._game.expected()

    def _done(self, broker: txstore.EmbeddedBroker) -> bool:
        pending = {one.transaction_id for one in broker.transactions()}
        return not any(one.transaction_id in pending for one in self._game.due())

    def _message(self, name: str, **facts: Any) -> Message:
        properties = {"p": "Wert"}
        if self._game.chance.random() < 0.2:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "1"
        return Message(TOPIC, self._game.contents[name], keys=[name, "ours"], tags="o", properties=properties, **facts)

    def _send(self, broker: txstore.EmbeddedBroker) -> None:
        producer = broker.producer(GROUP)
        for number in range(SENDS):
            level = 3 if number % 4 == 0 and self._game.turn < TURNS - 1 else 0
            producer.send(self._message(self._game.new_content(), delay_level=level))

    def execute_local_transaction(self, message: TransactionMessage, arg: Transaction) -> LocalTransactionState:
        return LocalTransactionState[arg.answers(self._game.turn)[0]]

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        assert message.transaction_id is not None
        self._game.asked.add(message.transaction_id)
        return LocalTransactionState[self._game.transactions[message.keys[0]].answers(self._game.turn)[-1]]


class Theirs:
    """A turn of the broker's."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def play(self) -> None:
        game = self._game
        checks = 2 if game.discards else FOR_EVER
        settings = SHORT_TIMES | {"transactionCheckMax": checks, "listenPort": game.port}
        answers = {one.transaction_id: one.answers(game.turn)[-1:] for one in game.transactions.values()}
        with game.rocketmq.broker(game.path, config=SMALL | SHORT_DELAYS, settings=settings) as broker:
            resumed = game.to_resume()
            answers |= {one.transaction_id: one.answers(game.turn)[-1:] for one in resumed}
            producer = game.rocketmq.producer(broker.names, GROUP, checks=answers)
            self._send(producer)
            for one in resumed:
                assert game.rocketmq.resume(broker.names, one.transaction_id)
                one.state = "pending"
            self._begin(producer)
            wait_until(lambda: self._done(broker, producer))
            # The broker writes its ops a little later than it answers.
            time.sleep(5 * OP_BATCH_S)
            names = {one.transaction_id: one.name for one in game.transactions.values()}
            for event in producer.stop():
                if event["what"] == "check":
                    game.asked.add(event["transaction_id"])
                if event.get("answer") == "COMMIT":
                    game.commits_told_to_broker[names[event["transaction_id"]]] += 1
            for received in game.rocketmq.consume(broker.names, WALKER, {TOPIC: "*"}):
                name = agreement.name_of(received)
                game.take(name, game.contents[name])
                assert received["body_length"] == len(game.contents[name])

    def _done(self, broker: EmbeddedBroker, producer: Producer) -> bool:
        if self._game.discards:
            status = broker.status()
            ends = {(topic, queue_id): end for topic, queue_id, _, end in status["queues"]}
            progress = status["offsets"].get(f"{agreement.HALF_TOPIC}@CID_RMQ_SYS_TRANS", {}).get("0", 0)
            return bool(progress == ends[agreement.HALF_TOPIC, 0])
        answered = {event["transaction_id"] for event in producer.log() if event.get("answer") in ANSWER.values()}
        return {one.transaction_id for one in self._game.due()} <= answered

    def _message(self, name: str, **facts: Any) -> Facts:
        if self._game.chance.random() < 0.2:
            facts["immunity_s"] = "2"
        return message(TOPIC, self._game.contents[name], keys=f"{name} theirs", tags="t", **facts)

    def _send(self, producer: Producer) -> None:
        names = [self._game.new_content() for _ in range(SENDS)]
        sent = producer.send([self._message(name, delay_level=int(n % 4 == 0)) for n, name in enumerate(names)])
        assert [one["status"] for one in sent] == ["SEND_OK"] * SENDS

    def _begin(self, producer: Producer) -> None:
        plans = [self._game.plan() for _ in range(BEGUN)]
        turn = self._game.turn
        told = producer.transactions([self._message(plan.name, answers=plan.answers(turn)) for plan in plans])
        for plan, result in zip(plans, told, strict=True):
            self._game.begun(plan, result["transaction_id"])


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TURN_TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline, "the turn does not end"
        time.sleep(0.05)


def test_store_moves_back_and_forth(rocketmq: Peer, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    game = Game(tmp_path / "store", rocketmq, random.Random(SEED), free_port(below=2))
    for game.turn in range(TURNS):
        game.play()
    expected = game.expected()
    with txstore.open(game.path, read_only=True) as broker:
        found = agreement.messages(broker.store)
        keys, ids = agreement.keys_of(found), [one.offset_message_id for one in found]
        dump = rocketmq.dump(killed_copy(game.path, tmp_path / "copy"), keys=keys, offset_ids=ids)
        agreement.assert_same_store(dump, broker.store, keys, ids)
    counts = Counter(one.keys[0] for one in found if one.topic == TOPIC)
    # A broker that checks again while it is answered gets two answers, and commits twice.
    doubled = {name for name, count in counts.items() if 1 < count <= game.commits_told_to_broker[name]}
    print(f"{len(expected)} messages; the broker committed {len(doubled)} of them twice")
    assert {name: count for name, count in counts.items() if name not in doubled} == dict.fromkeys(
        expected - doubled, 1
    )
    assert set(game.delivered) == expected
    put_back = [one for one in dump["messages"] if "TRANSACTION_CHECK_TIMES" in one["properties"]]
    assert any(agreement.CRC in one["properties"] for one in put_back), "no CRC of ours was copied along"
    assert_pointed_out(game.path, doubled)


def assert_pointed_out(path: Path, doubled: set[str]) -> None:
    """`txstore store check` finds no problem, and reports what the broker doubled."""
    command = [sys.executable, "-m", "txstore.cli.main", "store", "check", "--json", str(path)]
    check = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(check.stdout)["counts"].get("transactions_committed_twice", 0) == len(doubled)
