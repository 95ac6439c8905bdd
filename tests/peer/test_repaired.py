"""Guards stores with a damaged log that txstore repaired and a real RocketMQ takes over.

It finds every readable message at its queue offset, and nothing where one was lost. It delivers them, continues after
them, and finishes pending transactions. It also takes back a store of its own that was damaged and repaired by txstore,
and one of which a topic and a group were deleted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden.unpack import unpack
from tests.peer import agreement
from tests.peer.rocketmq import SIZES, SMALL, EmbeddedBroker, Facts, Peer, message
from tests.peer.test_ours_to_theirs import settle
from tests.peer.theirs import TIMES
from txstore import LocalTransactionState, Message

pytestmark = pytest.mark.peer

LOG_FILE = 1 << 16
CONFIG = SMALL | {"mappedFileSizeCommitLog": LOG_FILE}
GROUP = "order-service"


def txstore_store(*arguments: object, code: int = 0) -> Any:
    """Runs a command of `txstore store`; returns its JSON output."""
    command = [sys.executable, "-m", "txstore.cli.main", "store", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x41
    file.write_bytes(data)


@dataclass
class Written:
    """A closed store with several files of its log, and its transactions by outcome."""

    path: Path
    pending: list[str]

    def log_file(self, number: int) -> Path:
        return self.path / "commitlog" / f"{number * LOG_FILE:020}"

    def flip(self, offset: int) -> None:
        flip(self.log_file(offset // LOG_FILE), offset % LOG_FILE)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    path = tmp_path / "orders.store"
    options: dict[str, Any] = SIZES | {"mapped_file_size_commit_log": LOG_FILE, "max_message_size": 1 << 14}
    pending = []
    with txstore.open(path, transaction_check_interval=3600, **options) as broker:
        broker.create_topic("orders", 2)
        producer = broker.producer("shop")
        for number in range(300):
            producer.send(Message("orders", bytes([number % 251]) * 900, keys=[f"o-{number}"]), queue_id=number % 2)
            if number % 12 == 0:
                half = broker.prepare(Message("orders", b"paid", keys=[f"t-{number}"]), number % 2, GROUP)
                match number % 36:
                    case 0:
                        broker.end_transaction(half, LocalTransactionState.COMMIT)
                    case 12:
                        broker.end_transaction(half, LocalTransactionState.ROLLBACK)
                    case _:
                        pending.append(str(half.message_id))
    return Written(path, pending)


def lost_entries(found: Facts) -> list[list[object]]:
    return [[one["topic"], one["queue_id"], one["queue_offset"]] for one in found["lost"]]


def assert_same(rocketmq: Peer, path: Path, config: Facts, gaps: Iterable[list[object]]) -> None:
    """RocketMQ's store finds in a copy what txstore finds: readable messages at their offsets, and the gaps."""
    copy = killed_copy(path, path.with_name("copy"))
    with txstore.open(path, read_only=True) as broker:
        found = agreement.messages(broker.store)
        keys, ids = agreement.keys_of(found), [one.offset_message_id for one in found]
        dump = rocketmq.dump(copy, config=config, keys=keys, offset_ids=ids)
        agreement.assert_same_store(dump, broker.store, keys, ids, gaps=list(gaps))
    shutil.rmtree(copy)


def visible(path: Path, topic: str) -> dict[int, str]:
    """Physical offset to first key of every message of a topic."""
    with txstore.open(path, read_only=True) as broker:
        found = [one for one in agreement.messages(broker.store) if one.topic == topic]
    return {one.physical_offset: one.keys[0] for one in found}


def offsets(path: Path, topic: str) -> list[int]:
    """Physical offsets of every message of a topic."""
    with txstore.open(path, read_only=True) as broker:
        return [one.physical_offset for one in agreement.messages(broker.store) if one.topic == topic]


def pending(path: Path) -> set[str]:
    with txstore.open(path, read_only=True) as broker:
        return {str(one.transaction_id) for one in broker.transactions()}


def works_on(rocketmq: Peer, broker: EmbeddedBroker, topic: str, pending: set[str]) -> set[str]:
    """Sends, commits a transaction, answers for pending ones; returns keys of what becomes visible by it."""
    answers = {transaction: ["COMMIT"] for transaction in pending}
    with rocketmq.producer(broker.names, GROUP, checks=answers) as producer:
        names = [f"after-{number}" for number in range(20)]
        told = producer.send([message(topic, b"after", keys=name, name=name) for name in names])
        begun = producer.transactions([message(topic, b"t", keys="t-after", name="t-after", answers=["COMMIT"])])
        assert not [one for one in [*told, *begun] if "error" in one]
        settle(broker)
        asked = {one["transaction_id"] for one in producer.log() if one["what"] == "check"}
    assert asked >= pending
    return {*names, "t-after"}


def assert_once(received: list[Facts], wanted: set[str], finished: int) -> None:
    """The wanted messages came, and `finished` transactions in addition; each plain message once."""
    names = Counter(map(agreement.name_of, received))
    assert wanted <= set(names)
    assert len(names) == len(wanted) + finished
    # A broker takes an answer that crosses with a check twice.
    assert {name for name, count in names.items() if count > 1 and not name.startswith("t-")} == set()


def test_broker_continues_a_repaired_store(rocketmq: Peer, written: Written) -> None:
    """A whole file in the middle is gone, and a record of another one is bad."""
    before = visible(written.path, "orders")
    bad = next(offset for offset in before if offset > 3 * LOG_FILE)
    written.flip(bad + 200)
    written.log_file(1).unlink()
    assert len(txstore_store("check", "--deep", written.path, code=4)["damages"]) == 2
    done = txstore_store("repair", written.path, "--yes")
    gaps = lost_entries(done)
    assert (
        sum(offset // LOG_FILE == 1 or offset == bad for offset in before)
        == sum(one[0] == "orders" for one in gaps)
        > 1
    )
    assert_same(rocketmq, written.path, CONFIG, gaps)
    after, waiting = visible(written.path, "orders"), pending(written.path)
    assert after == {offset: key for offset, key in before.items() if offset // LOG_FILE != 1 and offset != bad}
    assert waiting < set(written.pending)
    with rocketmq.broker(written.path, config=CONFIG, settings=TIMES) as broker:
        more = works_on(rocketmq, broker, "orders", waiting)
        wanted = len(after) + len(more) + len(waiting)
        received = rocketmq.consume(broker.names, "fresh", {"orders": "*"}, at_least=wanted)
    assert_once(received, {*after.values(), *more}, len(waiting))
    assert pending(written.path) == set()
    assert txstore_store("check", "--deep", written.path)["damages"] == []


def test_pull_of_a_broker_skips_messages_after_a_gap_in_the_first_file(rocketmq: Peer, written: Written) -> None:
    """As docs/operate/repair.md says: in the same pull, up to the end of that file, and no further."""
    before = visible(written.path, "orders")
    bad = list(before)[4]
    written.flip(bad + 200)
    done = txstore_store("repair", written.path, "--yes")
    assert_same(rocketmq, written.path, CONFIG, lost_entries(done))
    after = visible(written.path, "orders")
    assert after == {offset: key for offset, key in before.items() if offset != bad}
    with rocketmq.broker(written.path, config=CONFIG) as broker:
        received = rocketmq.consume(broker.names, "fresh", {"orders": "*"}, at_least=200)
    names = {agreement.name_of(one) for one in received}
    missed = [offset for offset, key in after.items() if key not in names]
    assert missed
    assert all(bad < offset < LOG_FILE for offset in missed)


def test_broker_takes_back_its_own_damaged_store(rocketmq: Peer, tmp_path: Path) -> None:
    """A half message and a committed one are lost."""
    store = unpack("tx", tmp_path / "golden").copy_to(tmp_path)
    before = offsets(store, "TxA")
    with txstore.open(store, read_only=True) as broker:
        half = broker.store.half(200).physical_offset
    # In the second file: docs/operate/repair.md describes the first one.
    committed = next(offset for offset in before if offset > SMALL["mappedFileSizeCommitLog"])
    for offset in (half, committed):
        flip(store / "commitlog" / f"{offset // (1 << 20) << 20:020}", offset % (1 << 20) + 30)
    done = txstore_store("repair", store, "--yes")
    assert {one["physical_offset"] for one in done["lost"]} == {half, committed}
    assert_same(rocketmq, store, SMALL, lost_entries(done))
    after = offsets(store, "TxA")
    assert set(before) - set(after) == {committed}
    with rocketmq.broker(store) as broker:
        more = works_on(rocketmq, broker, "TxA", set())
        received = rocketmq.consume(broker.names, "fresh", {"TxA": "*"}, at_least=len(after) + len(more))
    found = Counter(one["physical_offset"] for one in received)
    assert set(after) <= set(found)
    assert set(found.values()) == {1}
    assert more <= set(map(agreement.name_of, received))
    assert txstore_store("check", "--deep", store)["damages"] == []


def test_broker_continues_after_a_topic_and_a_group_were_deleted(rocketmq: Peer, tmp_path: Path) -> None:
    """They are gone from its configuration; a topic created again continues at its offset, and shows what its last
    queue file still names, as docs/operate/retention.md says.
    """
    path = tmp_path / "deleted.store"
    options: dict[str, Any] = SIZES | {"max_message_size": 1 << 14}
    with txstore.open(path, **options) as broker:
        with broker.producer("shop") as producer:
            for number in range(10):
                for topic in ("old", "kept"):
                    producer.send(Message(topic, b"x", keys=[f"{topic}-{number}"]), queue_id=0)
        for topic in ("old", "kept"):
            with broker.consumer(f"of-{topic}", topic) as consumer:
                consumer.poll(10)[0].retry(-1)
                consumer.acknowledge()
        assert broker.delete_topic("old") == 10
        assert broker.delete_group("of-kept", force=True) == 1
    with rocketmq.broker(path) as running:
        offsets = running.status()["offsets"]
        assert not [name for name in offsets if name.startswith(("old@", "kept@", "%RETRY%of-kept@"))]
        received = rocketmq.consume(running.names, "fresh", {"kept": "*"}, at_least=10)
        assert_once(received, {f"kept-{number}" for number in range(10)}, 0)
        with rocketmq.producer(running.names, "shop") as again:
            sent = again.send([message("old", b"x", keys=f"new-{n}", name=f"new-{n}", queue_id=0) for n in range(3)])
        assert [one["queue_offset"] for one in sent] == [10, 11, 12]
        received = rocketmq.consume(running.names, "fresh", {"old": "*"}, at_least=13)
        assert_once(received, {f"old-{n}" for n in range(10)} | {f"new-{n}" for n in range(3)}, 0)
    for name, table, names in (
        ("topics.json", "topicConfigTable", {"%RETRY%of-kept", "%DLQ%of-kept"}),
        ("subscriptionGroup.json", "subscriptionGroupTable", {"of-kept"}),
    ):
        assert not names & set(json.loads((path / "config" / name).read_text())[table])
    with txstore.open(path) as broker:
        assert [one.keys[0] for one in agreement.messages(broker.store) if one.topic == "old"] == [
            f"new-{number}" for number in range(3)
        ]
