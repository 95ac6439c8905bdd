"""Guards backups of a store that a real broker writes: a restored copy has all that its clients were told, and a broker
continues in it after txstore has opened it once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txstore
from tests.backups import must_be_whole, restored
from tests.peer.rocketmq import Peer, Producer, message
from txstore import Message
from txstore.backup import take_backup
from txstore.inspection.deep import look

pytestmark = pytest.mark.peer

BODY = bytes(2_000)


def send(producer: Producer, first: int, count: int) -> set[str]:
    """Sends messages with their numbers as keys; returns the keys of those that were acknowledged."""
    told = producer.send([message("Orders", BODY, keys=f"k-{number}") for number in range(first, first + count)])
    assert [one["error"] for one in told if "error" in one] == []
    return {f"k-{number}" for number in range(first, first + count)}


def test_backup_of_a_store_that_a_broker_writes(rocketmq: Peer, tmp_path: Path) -> None:
    store, folder, stop = tmp_path / "store", tmp_path / "backups", threading.Event()
    with rocketmq.broker(store) as broker, rocketmq.producer(broker.names, "g") as producer:
        acknowledged = send(producer, 0, 1_200)
        first = take_backup(store, folder)

        def load() -> int:
            number = 1_200
            while not stop.is_set():
                acknowledged.update(send(producer, number, 20))
                number += 20
            return number

        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(load)
            try:
                for _ in range(3):
                    before = set(acknowledged)
                    backup = take_backup(store, folder)
                    must_be_whole(backup.path)
                    assert backup.linked_bytes >= first.end // first.file_size * first.file_size > 0
            finally:
                stop.set()
            assert sent.result() > 1_200
        assert not (store / "txstore").exists()
    copy = restored(backup.path, tmp_path / "restored")
    assert look(str(copy)).findings.damages == []
    with txstore.open(copy) as ours:
        found = [
            one.keys[0]
            for _, queue_id, at, _ in ours.queues("Orders")
            for one in ours.read("Orders", queue_id, at, 100_000)[0]
        ]
        assert len(found) == len(set(found))
        assert before <= set(found)
        with ours.producer("g") as mine:
            mine.send(Message("Orders", b"ours", keys=["k-ours"]))
    with rocketmq.broker(copy) as broker:
        consumed = rocketmq.consume(broker.names, "readers", {"Orders": "*"}, at_least=len(found) + 1)
        assert {one["keys"] for one in consumed} == {*found, "k-ours"}
