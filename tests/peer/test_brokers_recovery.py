"""Guards stores that a real broker recovered by itself: they become txstore's then, and the broker's again.

A broker is killed in the middle of its writes; on some of the stores the machine loses power, too, and with it pages of
the log that no sync covered. RocketMQ recovers by moving its end and zeroes nothing: what it cut is still in its files.
It continues, and is stopped or killed. What txstore finds then is what RocketMQ itself serves, read-only without a
change to any file; txstore continues, closes, and the broker takes the store back.

Seeds are printed; TXSTORE_PEER_SEED sets the first one, TXSTORE_PEER_STORES the number of stores, TXSTORE_PEER_AT_ONCE
how many at a time.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.golden import reader
from tests.peer import agreement, theirs
from tests.peer.rocketmq import SHORT_DELAYS, SIZES, SMALL, Facts, Home, Peer, message
from tests.peer.test_theirs_to_ours import assert_same, hashes
from tests.peer.theirs import Work
from txstore import Message
from txstore._native import Store

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")

pytestmark = pytest.mark.peer

STORES = int(os.environ.get("TXSTORE_PEER_STORES", "3"))
AT_ONCE = int(os.environ.get("TXSTORE_PEER_AT_ONCE", "3"))
SEED = int(os.environ.get("TXSTORE_PEER_SEED", random.randrange(1 << 30)))
SECTOR = 512
BODY_AT = 88
"""Bytes of a record before its body."""


@dataclass
class Life:
    """What happened to one store, for a reader of a failure."""

    seed: int
    loss: str = ""
    first_end: int = 0
    sent_after: int = 0
    end: str = ""
    stale_bytes: int = 0
    stale_units: int = 0


def test_store_that_a_broker_recovered_is_read_unchanged(rocketmq_home: Home, rocketmq: Peer, tmp_path: Path) -> None:
    lives: list[Life] = []

    def attempt(seed: int) -> None:
        life = Life(seed)
        lives.append(life)
        try:
            directory = tmp_path / str(seed)
            directory.mkdir()
            live(rocketmq_home, rocketmq, directory / "store", life)
            print(f"found as it is: {life}")
            shutil.rmtree(directory)
        except BaseException as problem:
            problem.add_note(f"the store's life: {life}")
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, range(SEED, SEED + STORES)))
    print(f"{len(lives)} stores: {dict(Counter((life.loss.split(' ')[0], life.end) for life in lives))}")
    # Whether a broker leaves stale bytes is a matter of luck for one store, not for many.
    assert STORES < 20 or any(life.stale_bytes for life in lives)


def live(home: Home, rocketmq: Peer, store: Path, life: Life) -> None:
    chance = random.Random(life.seed)
    theirs.write(home, rocketmq, store, Work(life.seed, killed=True))
    life.first_end = max((one.physical_offset + len(one.raw) for one in whole_records(store)), default=0)
    life.loss = lose(store, chance, life.seed % 3)
    served = recover(home, rocketmq, store, chance, life)
    life.stale_bytes = stale_bytes(store)
    before = hashes(store)
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert_as_served(store, ours, served)
        life.stale_units = stale_units(store, ours)
        # RocketMQ trusts old units when it loads a queue, and serves what they lead to; txstore does not.
        if not life.stale_units:
            assert_same(rocketmq, store, ours)
        found = ours.stat().max_physical_offset
    assert hashes(store) == before, "a read-only opening changed a file"
    assert pa.table(txstore.scan(store, view="commitlog", columns=["size"])).num_rows == count(store)
    sizes: dict[str, Any] = dict(SIZES)
    with txstore.open(store, **sizes) as broker:
        assert broker.stat().max_physical_offset >= found
        producer = broker.producer("go-on")
        for number in range(20):
            producer.send(Message(chance.choice(theirs.TOPICS), f"more {number}".encode(), keys=[f"more-{number}"]))
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert ours.open_report.warnings == []
        assert_same(rocketmq, store, ours)
    # Handed back: the broker continues from there.
    with home.start() as process, process.broker(store, config=SMALL | SHORT_DELAYS) as broker_again:
        producer_again = rocketmq.producer(broker_again.names, theirs.GROUP)
        told = producer_again.send([message(theirs.TOPICS[0], b"handed back", name=f"back-{n}") for n in range(3)])
        producer_again.stop()
        assert all("error" not in one for one in told), told
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert_same(rocketmq, store, ours)


def whole_records(store: Path) -> list[reader.Record]:
    """Every record of the log by the small reader, up to the first bytes that are not a record."""
    found: list[reader.Record] = []
    with suppress(ValueError, IndexError, struct.error):
        for one in reader.records(store):
            found.append(one)
    return found


def count(store: Path) -> int:
    """Records up to the end that txstore finds, by the small reader."""
    with closing(Store.open(str(store), read_only=True)) as ours:
        end = ours.stat().max_physical_offset
    return sum(one.physical_offset < end for one in whole_records(store))


def lose(store: Path, chance: random.Random, kind: int) -> str:
    """Takes from the log what no sync covered: sectors, or a part of a record. The checkpoint's records are kept."""
    checkpoint = store / "checkpoint"
    physic_ms = struct.unpack(">q", checkpoint.read_bytes()[:8])[0] if checkpoint.exists() else 0
    records = whole_records(store)
    safe = max((n for n, one in enumerate(records) if one.store_timestamp_ms <= physic_ms), default=-1)
    lost = records[safe + 1 :]
    if kind == 0 or not lost:
        return "none"
    one = chance.choice(lost)
    path, base = file_of(store, one.physical_offset)
    with path.open("r+b") as file:
        if kind == 1:
            start = max(one.physical_offset - base, 0)
            file.seek(start)
            file.write(bytes(chance.choice([len(one.raw), SECTOR, 3 * SECTOR])))
            return f"hole at {one.physical_offset}"
        # RocketMQ verifies the body alone: a record that is torn after it counts as complete, with other properties.
        torn = min(len(one.raw) // 2, BODY_AT)
        file.seek(one.physical_offset - base + torn)
        file.write(chance.randbytes(len(one.raw) - torn))
        return f"torn at {one.physical_offset}"


def file_of(store: Path, offset: int) -> tuple[Path, int]:
    size = int(SMALL["mappedFileSizeCommitLog"])
    base = offset // size * size
    return store / "commitlog" / f"{base:020}", base


def recover(home: Home, rocketmq: Peer, store: Path, chance: random.Random, life: Life) -> Facts:
    """The broker finds its end, sends continue or not, and it is stopped, or killed again. Returns what it served
    last.
    """
    life.end = chance.choice(["stopped", "stopped", "killed"])
    life.sent_after = chance.choice([0, 1, 1, 4, 30])
    with ExitStack() as stack:
        process = stack.enter_context(home.start())
        broker = process.broker(store, config=SMALL | SHORT_DELAYS, settings=theirs.TIMES)
        producer = rocketmq.producer(broker.names, theirs.GROUP)
        for number in range(life.sent_after):
            body = chance.randbytes(chance.choice([1, 40, 300, 1500]))
            told = producer.send([message(chance.choice(theirs.TOPICS), body, name=f"after-{number}")])
            assert "error" not in told[0], told
        producer.stop()
        served = broker.status()
        if life.end == "killed":
            process.kill()
        else:
            broker.stop()
    return served


def assert_as_served(store: Path, ours: Store, served: Facts) -> None:
    """Each queue has what the broker served, and what its last moments have brought; and what the log says."""
    found = agreement.queues(ours)
    for topic, queue_id, first, end in served["queues"]:
        if end > first:
            assert found[topic, queue_id][0] == first, (topic, queue_id)
            assert found[topic, queue_id][1] >= end, (topic, queue_id)
    end = ours.stat().max_physical_offset
    assert end >= served["max_physical_offset"]
    expected = {
        one.physical_offset: (one.topic, one.queue_id, one.queue_offset)
        for one in whole_records(store)
        if one.physical_offset < end and one.sys_flag & 0xC in (0, 0x8)
    }
    assert {
        one.physical_offset: (one.topic, one.queue_id, one.queue_offset) for one in agreement.messages(ours)
    } == expected


def stale_units(store: Path, ours: Store) -> int:
    """Queues whose file has entries after their end."""
    entries = int(SMALL["mappedFileSizeConsumeQueue"]) // 20
    stale = 0
    for topic, queue_id, _, end in ours.queues():
        path = store / "consumequeue" / topic / str(queue_id) / f"{end // entries * entries * 20:020}"
        stale += path.exists() and any(path.read_bytes()[end % entries * 20 :][:20])
    return stale


def stale_bytes(store: Path) -> int:
    """Bytes after the end that txstore finds which are not zeros."""
    with closing(Store.open(str(store), read_only=True)) as ours:
        end = ours.stat().max_physical_offset
    path, base = file_of(store, end)
    return len(path.read_bytes()[end - base :].rstrip(b"\0")) if path.exists() else 0
