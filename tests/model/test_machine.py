"""Guards a store against any order of steps, reopened or killed in between: it always agrees with plain lists.

Hypothesis chooses the steps and shortens a failing sequence. `TXSTORE_EXAMPLES` sets the number of sequences; a kill is
a copy of the files while they are in use, opened instead of the original.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

import txstore
from tests.copies import killed_copy
from txstore import AlreadyEndedError, EmbeddedBroker, LocalTransactionState, Message, TransactionState, WrongGroupError

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 14,
    "max_message_size": 1 << 12,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "transaction_check_interval": 3600,
}
TOPICS = ["orders", "payments"]
GROUP = "services"
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
OUTCOMES = {COMMIT: TransactionState.COMMITTED, ROLLBACK: TransactionState.ROLLED_BACK}
topics = st.sampled_from(TOPICS)
answers = st.sampled_from([COMMIT, ROLLBACK, UNKNOWN])
ends = st.sampled_from([COMMIT, ROLLBACK])


@dataclass
class Expected:
    """The expected outcome of one transaction."""

    topic: str
    body: bytes
    state: TransactionState = TransactionState.PENDING


class Machine(RuleBasedStateMachine):
    """A store, and the lists that it should agree with."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.generation = 0
        self.visible: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.acknowledged = dict.fromkeys(TOPICS, 0)
        self.transactions: dict[str, Expected] = {}
        self.bodies = 0
        self.open()

    @property
    def path(self) -> Path:
        return self.folder / f"store{self.generation}"

    def open(self) -> None:
        self.broker: EmbeddedBroker = txstore.open(self.path, **SMALL)
        self.producer = self.broker.transaction_producer(GROUP)

    def message(self, topic: str) -> Message:
        self.bodies += 1
        return Message(topic, b"%d:" % self.bodies + b"x" * (self.bodies * 37 % 300), keys=[f"k{self.bodies}"])

    def began(self, transaction_id: str, message: Message) -> None:
        self.transactions[transaction_id] = Expected(message.topic, message.body)

    def ended(self, transaction_id: str, state: TransactionState) -> None:
        expected = self.transactions[transaction_id]
        assert expected.state is TransactionState.PENDING
        expected.state = state
        if state is TransactionState.COMMITTED:
            self.visible[expected.topic].append(expected.body)

    @rule(topic=topics)
    def send(self, topic: str) -> None:
        message = self.message(topic)
        self.producer_of_messages().send(message, queue_id=0)
        self.visible[topic].append(message.body)

    def producer_of_messages(self) -> txstore.Producer:
        return self.broker.producer("plain")

    @rule(target=ids, topic=topics, answer=answers)
    def send_in_transaction(self, topic: str, answer: LocalTransactionState) -> Any:
        message = self.message(topic)
        sent = self.producer.send_in_transaction(message, executer=lambda *_: answer, queue_id=0)
        self.began(sent.transaction_id, message)
        if answer is not UNKNOWN:
            self.ended(sent.transaction_id, OUTCOMES[answer])
        return sent.transaction_id

    @rule(target=ids, topic=topics, fails=st.booleans(), rolls_back=st.booleans())
    def block(self, topic: str, fails: bool, rolls_back: bool) -> Any:
        message = self.message(topic)
        tx = self.producer.transaction(message, queue_id=0)
        try:
            with tx:
                if rolls_back:
                    tx.rollback()
                if fails:
                    raise KeyError("database")
        except KeyError:
            assert fails
        self.began(str(tx.transaction_id), message)
        if rolls_back:
            self.ended(str(tx.transaction_id), TransactionState.ROLLED_BACK)
        elif not fails:
            self.ended(str(tx.transaction_id), TransactionState.COMMITTED)
        return tx.transaction_id

    @rule(which=ids, state=ends)
    def end(self, which: str, state: LocalTransactionState) -> None:
        before = self.transactions[which].state
        with pytest.raises(WrongGroupError) if before is TransactionState.PENDING else _nothing():
            if before is TransactionState.PENDING:
                self.broker.end_transaction(which, state, producer_group="others")
        if before in (TransactionState.PENDING, OUTCOMES[state]):
            result = self.broker.end_transaction(which, state, producer_group=GROUP)
            assert result.already is (before is not TransactionState.PENDING)
            if not result.already:
                self.ended(which, OUTCOMES[state])
        else:
            with pytest.raises(AlreadyEndedError) as refused:
                self.broker.end_transaction(which, state)
            assert refused.value.outcome == before

    @rule(which=ids)
    def discard(self, which: str) -> None:
        before = self.transactions[which].state
        if before in (TransactionState.PENDING, TransactionState.DISCARDED):
            assert self.broker.discard(which).already is (before is TransactionState.DISCARDED)
            self.transactions[which].state = TransactionState.DISCARDED
        else:
            with pytest.raises(AlreadyEndedError):
                self.broker.discard(which)

    @rule(target=ids, which=consumes(ids))
    def resume(self, which: str) -> Any:
        expected = self.transactions[which]
        if expected.state is TransactionState.DISCARDED:
            assert self.broker.resume(which).message_id == which
            expected.state = TransactionState.PENDING
        else:
            with pytest.raises(txstore.TxStoreError):
                self.broker.resume(which)
        return multiple(which)

    @rule(topic=topics, most=st.integers(1, 5), acknowledges=st.booleans())
    def consume(self, topic: str, most: int, acknowledges: bool) -> None:
        consumer = self.broker.consumer("shipping", topic)
        try:
            found = [message.body for message in consumer.poll(most)]
            at = self.acknowledged[topic]
            assert found == self.visible[topic][at : at + most]
            if acknowledges:
                consumer.acknowledge()
                self.acknowledged[topic] += len(found)
        finally:
            consumer.close()

    @rule()
    def flush(self) -> None:
        self.broker.flush()
        self.broker.write_offsets()

    @rule()
    def reopen(self) -> None:
        self.broker.close()
        self.open()
        assert self.broker.open_report.clean

    @rule()
    def kill(self) -> None:
        self.broker.write_offsets()
        killed = self.path
        self.generation += 1
        killed_copy(killed, self.path)
        self.broker.close()
        shutil.rmtree(killed)
        self.open()

    @rule()
    def look(self) -> None:
        """A reader next to the writer sees the same."""
        with txstore.open(self.path, read_only=True) as reader:
            self.agrees(reader)

    @invariant()
    def the_store_agrees(self) -> None:
        self.agrees(self.broker)

    def agrees(self, broker: EmbeddedBroker) -> None:
        for topic, expected in self.visible.items():
            found: list[bytes] = []
            offset = 0
            while True:
                messages, offset = broker.read(topic, 0, offset)
                if not messages:
                    break
                found.extend(message.body for message in messages)
            assert found == expected
        pending = {one.transaction_id for one in broker.transactions()}
        assert pending == {one for one, expected in self.transactions.items() if expected.state == "pending"}
        states = {row.transaction_id: row.state for row in broker.transactions(None)}
        assert states == {one: expected.state for one, expected in self.transactions.items()}

    def teardown(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder)


class _nothing:  # noqa: N801
    """A context that expects nothing."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=int(os.environ.get("TXSTORE_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
