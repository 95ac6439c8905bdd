"""Guards a store against two writers, one of them a real broker: the second one gets an error and harms nothing.

Our guard file keeps a broker out before it looks at any lock, also after a kill; the lock that a broker holds keeps
txstore out. A read-only opening works next to either.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import txstore
from tests.copies import killed_copy
from tests.peer import agreement
from tests.peer.rocketmq import SIZES, SMALL, Facts, Home, Peer, PeerError, message
from tests.peer.test_theirs_to_ours import hashes
from txstore import Message, errors
from txstore._native import Store

pytestmark = pytest.mark.peer

GUARD = "commitlog/!txstore-open"
KILLED = """
import os, signal, sys, txstore
broker = txstore.open(sys.argv[1], mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000)
broker.producer("g").send(txstore.Message("Orders", b"before the kill"))
os.kill(os.getpid(), signal.SIGKILL)
"""


OPTIONS: Facts = dict(SIZES)
# A broker creates its own database before it looks at the store. At exit, also where it refuses, it writes the
# tables that it has read in config/ again, and removes `abort`.
THEIR_OWN = ("rocksdbstore", "compaction", "config", "abort")
# Live values for readers, ours.
LIVE = "txstore/published"


def of_the_store(found: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in found.items() if path.split("/")[0] not in THEIR_OWN and path != LIVE}


def test_broker_cannot_open_a_store_that_is_open_here(rocketmq_home: Home, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with rocketmq_home.start() as peer, txstore.open(store, **OPTIONS) as broker:
        producer = broker.producer("g")
        first = producer.send(Message("Orders", b"before"))
        # Nothing is left that the housekeeping would write meanwhile.
        broker.store.snapshot()
        before = hashes(store)
        with pytest.raises(PeerError, match="the broker refuses to initialize"):
            peer.broker(store)
        assert GUARD.partition("/")[2] in peer.log, "RocketMQ does not name what keeps it out"
        assert of_the_store(hashes(store)) == of_the_store(before)
        with pytest.raises(errors.StoreLockedError):
            txstore.open(store)
        second = producer.send(Message("Orders", b"after"))
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert ours.open_report.clean
        bodies = {ours.read_at(sent.physical_offset).body for sent in (first, second)}
        assert bodies == {b"before", b"after"}


def test_broker_cannot_open_a_store_that_a_kill_left(rocketmq_home: Home, tmp_path: Path) -> None:
    """Nor may it recover what it does not understand; after healing it may open the store."""
    store = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(store)], check=False)
    assert killed.returncode == -9
    before = hashes(store)
    with rocketmq_home.start() as peer:
        with pytest.raises(PeerError, match="the broker refuses to initialize"):
            peer.broker(store)
        assert of_the_store(hashes(store)) == of_the_store(before)
        Store.open(str(store)).close()
        with peer.broker(store) as broker:
            status = broker.status()
            assert [end - first for topic, _, first, end in status["queues"] if topic == "Orders" and end] == [1]


def test_txstore_cannot_open_a_store_that_a_broker_has_open(rocketmq: Peer, tmp_path: Path) -> None:
    """A reader can, while the broker continues: what the broker's clients were told is there."""
    store = tmp_path / "store"
    with rocketmq.broker(store) as broker, rocketmq.producer(broker.names, "g") as producer:
        told = producer.send([message("Orders", f"one {n}".encode(), keys=f"k-{n}") for n in range(20)])
        names = {path: path.stat().st_size for path in store.rglob("*") if path.is_file()}
        with pytest.raises(errors.StoreLockedError, match=str(rocketmq.pid)) as refused:
            txstore.open(store)
        assert refused.value.pid == rocketmq.pid
        with closing(Store.open(str(store), read_only=True)) as ours:
            assert [m.body for m in ours.query("Orders", "k-7")] == [b"one 7"]
            assert sum(end - first for topic, _, first, end in ours.queues() if topic == "Orders") == 20
            for sent in told:
                assert ours.read_at(int(sent["offset_message_id"][-16:], 16)).message_id == sent["message_id"]
            (more,) = producer.send([message("Orders", b"next to a reader", queue_id=told[0]["queue_id"])])
            at = int(more["offset_message_id"][-16:], 16)
            ours.wait_for_messages(at, 5000)
            found, _ = ours.read("Orders", more["queue_id"], more["queue_offset"])
            assert [m.body for m in found] == [b"next to a reader"]
        assert not (store / GUARD).exists()
        assert not (store / "txstore").exists()
        assert {path for path in names if not path.exists()} == set()
    copy = tmp_path / "copy"
    killed_copy(store, copy)
    with closing(Store.open(str(store), read_only=True)) as ours:
        dump = rocketmq.dump(copy, config=SMALL)
        agreement.assert_same_store(dump, ours, [], [])
        assert len(dump["messages"]) == 21


def test_reader_does_not_keep_a_broker_out(rocketmq: Peer, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with txstore.open(store, **OPTIONS) as broker:
        broker.producer("g").send(Message("Orders", b"ours"))
    with closing(Store.open(str(store), read_only=True)) as ours, rocketmq.broker(store) as theirs:
        assert [q for q in theirs.status()["queues"] if q[0] == "Orders" and q[3]]
        assert [m.body for topic, queue, _, end in ours.queues() if end for m in ours.read(topic, queue, 0)[0]] == [
            b"ours"
        ]
