"""Guards stores that txstore wrote, closed or killed and healed, and a real RocketMQ takes over.

It finds the same messages in the same queues, and the same by key and id; its consumers get what is visible, once; it
checks exactly the pending transactions, and finishes them. A store that was killed and not healed is refused and left
unchanged.

Seeds are printed; TXSTORE_PEER_SEED sets the first one, TXSTORE_PEER_STORES the number of stores, TXSTORE_PEER_AT_ONCE
how many are worked on at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import txstore
from tests.copies import killed_copy
from tests.peer import agreement, workload
from tests.peer.rocketmq import SHORT_DELAYS, SHORT_TIMES, EmbeddedBroker, Peer, PeerError, message
from tests.peer.workload import READERS, RETRY_TOPIC, TOPICS, Told
from txstore._native import Store

pytestmark = pytest.mark.peer

Facts = dict[str, Any]

STORES = int(os.environ.get("TXSTORE_PEER_STORES", "2"))
AT_ONCE = int(os.environ.get("TXSTORE_PEER_AT_ONCE", "4"))
SEED = int(os.environ.get("TXSTORE_PEER_SEED", random.randrange(1 << 30)))
STEPS = 150
SETTLED_TIMEOUT_S = 90.0
CHECKS_MAX = 6
ANSWERS = (["COMMIT"], ["ROLLBACK"], ["UNKNOWN", "COMMIT"], ["UNKNOWN"])
OUTCOMES = {"COMMIT": "committed", "ROLLBACK": "rolled_back", "UNKNOWN": "discarded"}


@settings(max_examples=min(STORES, 20), deadline=None, suppress_health_check=list(HealthCheck))
@given(chance=st.randoms(use_true_random=False), count=st.integers(0, 60))
def test_rocketmq_finds_what_txstore_finds(rocketmq: Peer, chance: random.Random, count: int) -> None:
    """Small stores, so that a difference shrinks."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        made = workload.options(chance)
        told = workload.write(path, made, workload.plan(chance, count))
        assert_found(rocketmq, path, made, told)


def assert_found(rocketmq: Peer, path: Path, made: Facts, told: Told) -> None:
    """RocketMQ's store finds in a copy what txstore finds, and what the writer was told."""
    copy = path.with_name(path.name + "-copy")
    killed_copy(path, copy)
    with txstore.open(path, read_only=True) as broker:
        found = agreement.messages(broker.store)
        keys, ids = agreement.keys_of(found), [message.offset_message_id for message in found]
        dump = rocketmq.dump(copy, config=workload.broker_sizes(made), keys=keys, offset_ids=ids)
        agreement.assert_same_store(dump, broker.store, keys, ids)
    agreement.assert_as_told(dump, told)
    shutil.rmtree(copy)


def test_broker_takes_over(rocketmq: Peer, tmp_path: Path) -> None:
    """Every other store is killed. Several at a time: a broker mostly waits."""
    stores = [(seed, "killed" if seed % 2 else "closed") for seed in range(SEED, SEED + STORES)]
    print(f"seeds {SEED} to {SEED + STORES - 1}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda store: take_over(rocketmq, tmp_path / "-".join(map(str, store)), *store), stores))


def test_rocketmq_verifies_the_crc_of_our_records(rocketmq: Peer, tmp_path: Path) -> None:
    """If configured, it verifies each record's CRC as it rebuilds the queues; it cuts the log at the first wrong
    one.
    """
    chance = random.Random(SEED)
    made = workload.options(chance) | {"enabled_append_prop_crc": True, "mapped_file_size_commit_log": 1 << 20}
    path = tmp_path / "store"
    workload.write(path, made, workload.plan(chance, 40))
    config = workload.broker_sizes(made) | {"forceVerifyPropCRC": True}
    with txstore.open(path, read_only=True) as broker:
        found = agreement.messages(broker.store)
        shutil.rmtree(path / "consumequeue")
        torn = killed_copy(path, tmp_path / "torn")
        agreement.assert_same_store(rocketmq.dump(path, config=config), broker.store, [], [])
    wrong = sorted(one.physical_offset for one in found)[len(found) // 2]
    with (torn / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(wrong + 43)  # The lowest byte of its birth: no other check covers it.
        byte = log.read(1)
        log.seek(wrong + 43)
        log.write(bytes([byte[0] ^ 1]))
    assert rocketmq.dump(torn, config=config)["max_physical_offset"] == wrong


def take_over(rocketmq: Peer, path: Path, seed: int, end: str) -> None:
    try:
        made, told = written(path, seed) if end == "closed" else killed(rocketmq, path, seed)
        assert_found(rocketmq, path, made, told)
        assert_finished_by_a_broker(rocketmq, path, made, told)
    except Exception as problem:
        problem.add_note(f"the store was made by seed {seed}, {end}")
        raise
    shutil.rmtree(path)


def written(path: Path, seed: int) -> tuple[Facts, Told]:
    chance = random.Random(str(seed))
    made = workload.options(chance)
    return made, workload.write(path, made, workload.plan(chance, STEPS, wait=chance.random() < 0.5))


def killed(rocketmq: Peer, path: Path, seed: int) -> tuple[Facts, Told]:
    """A store whose writer was killed at a random moment; not healed it is refused, then it is healed."""
    made = workload.options(random.Random(str(seed)))
    told = Told()
    command = [sys.executable, "-m", "tests.peer.workload", str(path), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        time.sleep(random.Random(seed).choice([0.05, 0.3, 2.5]) * random.Random(~seed).random())
        child.kill()
        for line in child.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                told.hear_line(line)
    assert child.returncode == -9
    assert_refused(rocketmq, path, made)
    subprocess.run(
        [sys.executable, "-m", "txstore.cli.main", "store", "heal", str(path)], check=True, stdout=subprocess.DEVNULL
    )
    return made, told


def assert_refused(rocketmq: Peer, path: Path, made: Facts) -> None:
    """The store alone and a whole broker refuse it because of the guard file; the store's own files are unchanged."""
    before, tables = hashes(path), config_tables(path)
    assert not rocketmq.dump(path, config=workload.broker_sizes(made))["loaded"]
    with pytest.raises(PeerError, match="refuses to initialize"):
        rocketmq.broker(path, config=workload.broker_sizes(made))
    assert hashes(path) == before
    after = config_tables(path)
    assert {key: after.get(key) for key in tables} == tables


def hashes(path: Path) -> dict[str, str]:
    """Hashes every file but a broker's own, and what it writes at exit also where it refuses: it removes `abort`,
    and writes the tables of config/ again.
    """
    files = [file for file in path.rglob("*") if file.is_file()]
    parts = {file: file.relative_to(path).parts for file in files}
    own = {"rocksdbstore", "compaction", "config", "abort"}
    return {
        "/".join(parts[file]): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if parts[file][0] not in own
    }


def config_tables(path: Path) -> dict[tuple[str, str], Any]:
    """(file, name) to the entries of config/ that matter to us."""
    tables = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}
    with closing(Store.open(str(path), read_only=True)) as store:
        entries: dict[tuple[str, str], Any] = {("offset", str(row[:3])): row[3] for row in store.consumer_offsets()}
        for file, table in tables.items():
            found = json.loads(store.config_text(file) or "{}").get(table, {})
            entries |= {(file, name): entry for name, entry in found.items()}
    return entries


def assert_finished_by_a_broker(rocketmq: Peer, path: Path, made: Facts, told: Told) -> None:
    """A broker checks the pending transactions and no other, ends them as answered, and delivers what is visible,
    once.
    """
    before = found_by_us(path, told)
    chance = random.Random(str(path))
    answers = {transaction: chance.choice(ANSWERS) for transaction in sorted(before.pending)}
    config = workload.broker_sizes(made) | SHORT_DELAYS
    with rocketmq.broker(path, config=config, settings=SHORT_TIMES | {"transactionCheckMax": CHECKS_MAX}) as broker:
        producers = [rocketmq.producer(broker.names, group, checks=answers) for group in workload.GROUPS]
        for producer in producers:
            # A group is known with its first heartbeat, and that comes with a first message.
            producer.send([message("wake", b"x")])
        settle(broker)
        checks = [event for producer in producers for event in producer.stop() if event["what"] == "check"]
        asked_times = Counter(check["transaction_id"] for check in checks)
        # A broker counts its rounds before a producer has connected, too, and may discard before it asked so often.
        told_so = {key: said[-1] if asked_times[key] >= len(said) else "UNKNOWN" for key, said in answers.items()}
        states = before.states | {before.names[key]: OUTCOMES[said] for key, said in told_so.items()}
        expected = agreement.visible(told, states) | before.unacknowledged
        received = rocketmq.consume(broker.names, "fresh", dict.fromkeys(TOPICS, "*"), at_least=len(expected))
        read_on = rocketmq.consume(broker.names, READERS[0], {TOPICS[0]: "*"})
        second = rocketmq.consume(broker.names, READERS[1], {TOPICS[1]: "*"})
    assert set(asked_times) <= before.pending
    print(f"{len(before.pending)} pending, {len(before.pending - set(asked_times))} discarded without a check")
    counts = Counter(agreement.name_of(one) for one in received)
    # A broker takes an answer that crosses with the next check twice: it asked twice, and was answered twice.
    said = Counter(before.names[check["transaction_id"]] for check in checks if check["answer"] == "COMMIT")
    assert set(counts) == expected
    assert {name: count for name, count in counts.items() if count > max(1, said[name])} == {}
    after = found_by_us(path, told)
    # An answer that crosses with the next put-back is lost: the op names the older copy, and the newer is discarded.
    crossed = {name for name in after.discarded_after_an_op if states[name] == "rolled_back"}
    states |= dict.fromkeys(crossed, "discarded")
    print(f"{len(crossed)} rolled back and discarded")
    assert told.retried <= set(after.retries)
    again = [agreement.name_of(one) for one in second if one["reconsume_times"] == 1]
    assert sorted(again) == sorted(after.retries[before.retries_read_to :])
    assert (after.pending, after.states) == (set(), states)
    unread = [
        one for one in received if one["topic"] == TOPICS[0] and one["queue_offset"] >= before.read_to(one["queue_id"])
    ]
    assert Counter(map(agreement.name_of, read_on)) == Counter(map(agreement.name_of, unread))
    asked = {before.names[transaction] for transaction in before.pending}
    for one in received:
        name = agreement.name_of(one)
        # A broker's put-back loses the flag.
        agreement.assert_content(one, told.begun[name] | ({"flag": 0} if name in asked else {}))


@dataclass
class Found:
    """What txstore finds in a store."""

    states: dict[str, str]
    """Name to state of every transaction."""
    names: dict[str, str]
    """Transaction id to name."""
    pending: set[str]
    """Transaction ids."""
    offsets: dict[int, int]
    """How far the first reader has acknowledged the first topic, by queue."""

    unacknowledged: set[str]
    """Names of plain messages that exist though a kill came before they were acknowledged."""

    retries: list[str] = field(default_factory=list)
    """Names in the retry queue of the second reader, in order."""
    retries_read_to: int = 0

    discarded_after_an_op: set[str] = field(default_factory=set)
    """Names of transactions that a broker discarded after the last check, though an op had named a copy before."""

    def read_to(self, queue_id: int) -> int:
        return self.offsets.get(queue_id, 0)


def found_by_us(path: Path, told: Told) -> Found:
    """Asserts in addition that what the writer was told is true."""
    with txstore.open(path, read_only=True) as broker:
        assert broker.open_report.clean
        assert (broker.open_report.warnings, broker.open_report.truncated_bytes) == ([], 0)
        rows = broker.store.transactions()
        pending = {row.transaction_id for row in rows if row.state == "pending" and row.transaction_id}
        there = {one.keys[0] for one in agreement.messages(broker.store) if one.real_topic in TOPICS and one.keys}
        found = Found({}, {}, pending, {}, there & told.in_flight_messages)
        for row in rows:
            assert row.transaction_id is not None
            name = broker.store.read_at(row.halves[0][1]).keys[0]
            found.names[row.transaction_id], found.states[name] = name, row.state
            if row.checks >= CHECKS_MAX and row.discards and any(op < row.discards[-1] for op in row.ops):
                found.discarded_after_an_op.add(name)
        for topic, group, queue_id, offset in broker.store.consumer_offsets():
            if (topic, group) == (TOPICS[0], READERS[0]):
                found.offsets[queue_id] = offset
        found.retries = [one.keys[0] for one in broker.store.read(RETRY_TOPIC, 0, 0, 10_000)[0]]
        found.retries_read_to = broker.store.consumer_offset(RETRY_TOPIC, READERS[1], 0) or 0
    # A half message that was not acknowledged is pending.
    found.unacknowledged -= set(found.states)
    return found


def settle(broker: EmbeddedBroker) -> None:
    """Waits until the broker's checks have passed all halves."""
    deadline = time.monotonic() + SETTLED_TIMEOUT_S
    while time.monotonic() < deadline:
        status = broker.status()
        ends = {(topic, queue_id): end for topic, queue_id, _, end in status["queues"]}
        progress = status["offsets"].get(f"{agreement.HALF_TOPIC}@CID_RMQ_SYS_TRANS", {}).get("0", 0)
        if progress == ends.get((agreement.HALF_TOPIC, 0), 0):
            return
        time.sleep(0.1)
    raise AssertionError("the broker did not finish")
