"""Guards stores that a real broker wrote, stopped or killed at a random moment, and txstore continues.

Opened read-only, no file changes; the same messages are in the same queues as RocketMQ itself finds, look-ups agree,
and each transaction's outcome is what its producer said. Then txstore continues: it sends, ends pending transactions,
asks the producer's group; and RocketMQ finds the result again.

Seeds are printed; TXSTORE_PEER_SEED sets the first one, TXSTORE_PEER_STORES the number of stores, TXSTORE_PEER_AT_ONCE
how many at a time.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden import reader
from tests.peer import agreement, theirs
from tests.peer.rocketmq import SHORT_DELAYS, SIZES, Facts, Home, Peer
from tests.peer.theirs import GROUP, Told, Work
from txstore import LocalTransactionState, Message
from txstore._native import Store, StoredMessage, TransactionRow

pytestmark = pytest.mark.peer

STORES = int(os.environ.get("TXSTORE_PEER_STORES", "3"))
AT_ONCE = int(os.environ.get("TXSTORE_PEER_AT_ONCE", "3"))
SEED = int(os.environ.get("TXSTORE_PEER_SEED", random.randrange(1 << 30)))
# What a client said this long before its broker ended may not have arrived, or not have been written: ends go one way,
# and ops wait for their batch. On a machine with other work 3 s were not enough; a settled store has it all.
ON_ITS_WAY_MS = 8000
LEVELS_S = {1: 1, 2: 5, 3: 10, 4: 30, 5: 60, 6: 120}
SHORT_LEVELS_S = {n: int(level[:-1]) for n, level in enumerate(SHORT_DELAYS["messageDelayLevel"].split(), start=1)}
MEANT = {"COMMIT": "committed", "ROLLBACK": "rolled_back"}
ENDED_BY = {"committed": LocalTransactionState.COMMIT, "rolled_back": LocalTransactionState.ROLLBACK}


def works() -> list[Work]:
    """Every third one settles, every third is killed, the rest is stopped in the middle; some use IPv6."""
    kinds = [(False, True), (True, False), (False, False)]
    return [Work(SEED + n, killed=kinds[n % 3][0], settle=kinds[n % 3][1], ipv6=n % 4 == 1) for n in range(STORES)]


def test_txstore_continues_what_a_broker_wrote(rocketmq_home: Home, rocketmq: Peer, tmp_path: Path) -> None:
    def attempt(work: Work) -> None:
        try:
            directory = tmp_path / str(work.seed)
            directory.mkdir()
            take_over(rocketmq_home, rocketmq, directory, work)
            print(f"taken over: {work}")
            shutil.rmtree(directory)
        except BaseException as problem:
            problem.add_note(f"the store's work: {work}")
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, works()))


def take_over(home: Home, rocketmq: Peer, directory: Path, work: Work) -> None:
    """One store: a broker writes it, txstore finds everything and continues, RocketMQ finds the result."""
    store = directory / "store"
    told = theirs.write(home, rocketmq, store, work)
    if work.settle:
        assert_every_fate(store, told)
    states = assert_found(rocketmq, store, told)
    records = {record.physical_offset: record.raw for record in reader.records(store)}
    states |= work_on(store, random.Random(work.seed))
    after = {record.physical_offset: record.raw for record in reader.records(store)}
    assert {offset: after.get(offset) for offset in records} == records, "a record of the broker changed"
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert {row.transaction_id: row.state for row in ours.transactions()} == states
        assert ours.open_report.clean
        assert_same(rocketmq, store, ours)


def assert_every_fate(store: Path, told: Told) -> None:
    """Asserts that the work has all its kinds: else a test of it would prove less than it claims."""
    log = list(reader.records(store))
    topics = {record.topic for record in log}
    assert {reader.DISCARD_TOPIC, agreement.SCHEDULE_TOPIC, f"%RETRY%{theirs.READER}"} <= topics
    halves = [record.properties for record in log if record.topic == reader.HALF_TOPIC]
    assert any(int(half.get("TRANSACTION_CHECK_TIMES", "0")) > 1 for half in halves), "no half was put back twice"
    assert any("TRAN_PREPARED_QUEUE_OFFSET" in half for half in halves), "no half was put back in its immunity time"
    assert any(record.body.count(b",") > 1 for record in log if record.topic == reader.OP_TOPIC), "no ops in a batch"
    assert any(record.sys_flag & 1 for record in log), "nothing is compressed"
    assert told.resumed


def hashes(store: Path) -> dict[str, str]:
    """Every file below a store with its hash."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file())
    return {str(path.relative_to(store)): sha256(path.read_bytes()).hexdigest() for path in files}


def assert_found(rocketmq: Peer, store: Path, told: Told) -> dict[str, str]:
    """Read-only, everything is there and nothing changes. Returns each transaction's state."""
    before = hashes(store)
    with closing(Store.open(str(store), read_only=True)) as ours:
        dump = assert_same(rocketmq, store, ours)
        rows = ours.transactions()
        assert_sent(told, ours)
        assert_outcomes(told, rows)
        assert_none_begun_unknown(told, ours, rows)
    assert hashes(store) == before, "a read-only opening changed a file"
    assert_second_opinion(store, rows)
    assert_rebuilt(store, dump)
    return {str(row.transaction_id): row.state for row in rows}


def assert_same(rocketmq: Peer, store: Path, ours: Store) -> Facts:
    """RocketMQ finds in a copy what txstore finds; returns its dump."""
    copy = store.with_name("copy")
    killed_copy(store, copy)
    found = agreement.messages(ours)
    keys, ids = agreement.keys_of(found), [message.offset_message_id for message in found]
    dump = rocketmq.dump(copy, keys=keys, offset_ids=ids)
    agreement.assert_same_store(dump, ours, keys, ids, (SHORT_LEVELS_S, LEVELS_S))
    shutil.rmtree(copy)
    return dump


def assert_sent(told: Told, ours: Store) -> None:
    """Each acknowledged message is at the acknowledged offset, once; a delayed one waits elsewhere."""
    found: dict[str, list[StoredMessage]] = {}
    for message in agreement.messages(ours):
        if message.topic in theirs.TOPICS:
            found.setdefault(message.keys[0], []).append(message)
    names = [event for event in told.log if event["what"] == "told" and "error" not in event and event["name"]]
    for event in names:
        if not event["name"].startswith("s"):
            continue
        stored = found.get(event["name"], [])
        delayed = ours.read_at(int(event["offset_message_id"][-16:], 16))
        assert len(stored) <= 1, f"{event['name']} is there {len(stored)} times"
        if delayed.topic == agreement.SCHEDULE_TOPIC:
            assert delayed.real_topic == event["topic"]
            continue
        (one,) = stored
        assert (one.topic, one.queue_id, one.queue_offset) == (event["topic"], event["queue_id"], event["queue_offset"])
        assert (one.message_id, one.offset_message_id) == (event["message_id"], event["offset_message_id"])
    for got in told.received:
        if not got["reconsume_times"]:
            assert found[got["keys"].split(" ")[0]][0].body_crc == got["body_crc"]


@dataclass(frozen=True)
class Said:
    """What the producer said about one transaction: its first answer that decides, and when."""

    outcome: str | None
    at_ms: int


def said(told: Told) -> dict[str, Said]:
    """Every transaction whose half was acknowledged."""
    answers: dict[str, Said] = {}
    for event in told.log:
        if event["what"] in ("local", "check"):
            transaction = str(event["transaction_id"])
            known = answers.get(transaction, Said(None, 0))
            answers[transaction] = known if known.outcome else Said(MEANT.get(event["answer"]), event["at_ms"])
    return answers


def assert_outcomes(told: Told, rows: list[TransactionRow]) -> None:
    """The log shows what the producers said; where it does not (yet), the broker ended within moments."""
    newest = {str(row.transaction_id): row for row in rows}
    count = Counter(str(row.transaction_id) for row in rows)
    checked = {str(event["transaction_id"]) for event in told.log if event["what"] == "check"}
    late = []
    for transaction, word in said(told).items():
        row = newest[transaction]
        assert count[transaction] == 1 + (transaction in told.resumed) or told.killed, "a resumed one begins again"
        if word.outcome is None:
            assert row.state in ("pending", "discarded"), (transaction, row.state)
            assert row.state == "discarded" or not told.settled
        elif (row.state, word.outcome) == ("discarded", "rolled_back") and transaction in checked:
            # On a slow machine RocketMQ parks what was checked often enough while the last answer is on its way, and
            # accepts that, too. A commit would still count.
            pass
        elif row.state != word.outcome:
            assert row.state in ("pending", "discarded"), (transaction, row.state, word)
            assert not told.settled, (transaction, row.state, word)
            assert word.at_ms > told.ended_ms - ON_ITS_WAY_MS, (transaction, row.state, word, told.ended_ms)
            late.append(transaction)
    print(f"{len(newest)} transactions: {dict(Counter(row.state for row in rows))}, {len(late)} with an end on its way")


def assert_none_begun_unknown(told: Told, ours: Store, rows: list[TransactionRow]) -> None:
    """A half message whose client got an error may exist; no other without a local transaction."""
    failed = {event["name"] for event in told.log if event["what"] == "told" and "error" in event}
    begun = said(told)
    for row in rows:
        if row.transaction_id not in begun:
            assert ours.half(row.halves[0][0]).keys[0] in failed, row.transaction_id
            assert row.state == "pending"


def assert_second_opinion(store: Path, rows: list[TransactionRow]) -> None:
    """The small reader, independent of the engine, folds the log to the same transactions."""
    progress = reader.half_progress(store)
    theirs_too = reader.transactions(list(reader.records(store)))
    assert [(t.halves[0].physical_offset, t.state(progress)) for t in theirs_too] == [
        (row.halves[0][1], row.state) for row in rows
    ]


def assert_rebuilt(store: Path, dump: Facts) -> None:
    """Queues that txstore builds from the log alone have RocketMQ's own units, also those of delayed messages."""
    copy = store.with_name("rebuilt")
    killed_copy(store, copy)
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index", ignore_errors=True)
    with closing(
        Store.open(str(copy), max_hash_slot_num=SIZES["max_hash_slot_num"], max_index_num=SIZES["max_index_num"])
    ) as ours:
        healed = ours.open_report.healed_ops
    units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for message in dump["messages"]:
        unit = (message["unit_physical_offset"], message["unit_size"], message["tags_code"])
        units.setdefault((message["unit_topic"], message["unit_queue_id"]), []).append(unit)
    for (topic, queue_id), wanted in units.items():
        built = reader.units(copy, topic, queue_id)
        if topic == agreement.SCHEDULE_TOPIC:
            # The times of delivery follow the levels, and the broker here has shorter ones than RocketMQ's own.
            shorter_ms = 1000 * (LEVELS_S[queue_id + 1] - SHORT_LEVELS_S[queue_id + 1])
            wanted = [(physical_offset, size, due_ms + shorter_ms) for physical_offset, size, due_ms in wanted]
        assert built[: len(wanted)] == wanted
        assert len(built) == len(wanted) or (healed and topic == reader.OP_TOPIC)
    shutil.rmtree(copy)


def work_on(store: Path, chance: random.Random) -> dict[str, str]:
    """Sends, ends, checks, new transactions; returns the states of those that changed."""
    states: dict[str, str] = {}
    plan = [*ENDED_BY, "discarded", "pending"]
    options: Facts = {"transaction_timeout": 0, "transaction_check_interval": 0.05, "transaction_check_max": 1000}
    options |= SIZES
    with txstore.open(store, **options) as broker:
        waiting = [str(one.transaction_id) for one in broker.transactions()]
        wanted = {transaction: chance.choice(plan) for transaction in waiting}
        asked = {transaction for transaction in waiting if chance.random() < 0.5 and wanted[transaction] in ENDED_BY}
        for transaction in waiting:
            if wanted[transaction] == "discarded":
                broker.discard(transaction)
            elif wanted[transaction] in ENDED_BY and transaction not in asked:
                broker.end_transaction(transaction, ENDED_BY[wanted[transaction]])
        answers = {transaction: ENDED_BY[wanted[transaction]] for transaction in asked}
        sent = answer_checks(broker, answers, asked)
        states |= wanted
        producer = broker.producer("go-on")
        for number in range(50):
            message = Message(chance.choice(theirs.TOPICS), f"more {number}".encode(), keys=[f"more-{number}"])
            assert producer.send(message).queue_offset >= 0
    states |= sent
    return states


def answer_checks(
    broker: txstore.EmbeddedBroker, answers: dict[str, LocalTransactionState], asked: set[str]
) -> dict[str, str]:
    """A producer of the old group answers for what is left, and begins transactions of its own."""

    class Listener(txstore.TransactionListener):
        def execute_local_transaction(self, message: object, arg: LocalTransactionState) -> LocalTransactionState:
            return arg

        def check_local_transaction(self, message: txstore.TransactionMessage) -> LocalTransactionState:
            return answers.get(str(message.transaction_id), LocalTransactionState.UNKNOWN)

    states = {}
    with broker.transaction_producer(GROUP, Listener()) as producer:
        for number in range(20):
            outcome = list(ENDED_BY)[number % 2]
            result = producer.send_in_transaction(
                Message(theirs.TOPICS[0], f"own {number}".encode(), keys=[f"own-{number}"]), ENDED_BY[outcome]
            )
            states[str(result.transaction_id)] = outcome
        end = time.monotonic() + 30
        while asked & {one.transaction_id for one in broker.transactions()}:
            assert time.monotonic() < end, "a producer of the group was not asked"
            time.sleep(0.02)
    return states
