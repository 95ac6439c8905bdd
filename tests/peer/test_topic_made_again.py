"""Guards topics that an operator deleted and created again on a real broker, while the old records stay in the log.

Their message queues begin at 0 again. What the broker serves then is what txstore reads, read-only and writing, and
what a broker serves again when the store is handed back.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.copies import killed_copy
from tests.peer.rocketmq import SIZES, SMALL, Peer, message
from txstore import Message
from txstore._native import Store

pytestmark = pytest.mark.peer

TOPIC, OTHER = "MadeAgain", "Untouched"


def _served(rocketmq: Peer, store: Path, copy: Path) -> dict[int, list[int]]:
    """The physical offsets of each message queue of the topic, as RocketMQ finds them. A dump changes files."""
    killed_copy(store, copy)
    dump = rocketmq.dump(copy)
    assert dump["loaded"], dump
    found: dict[int, list[int]] = {}
    for stored in dump["messages"]:
        if stored["topic"] == TOPIC:
            found.setdefault(stored["queue_id"], []).append(stored["physical_offset"])
    return found


def _read(store: Store) -> dict[int, list[int]]:
    found = {}
    for topic, queue_id, first, end in store.queues():
        if topic == TOPIC and first < end:
            found[queue_id] = [stored.physical_offset for stored in store.read(TOPIC, queue_id, first, 1000)[0]]
    return found


@pytest.mark.parametrize("new", [2, 12], ids=["fewer", "more"])
def test_topic_created_again_is_read_as_the_broker_serves_it(rocketmq: Peer, tmp_path: Path, new: int) -> None:
    store = tmp_path / "store"
    # The queues in a snapshot of ours are older than their deletion.
    options: dict[str, Any] = {**SIZES}
    with closing(Store.open(str(store), **options)) as ours:
        for queue_id in range(4):
            ours.append(Message(TOPIC, b"ours"), queue_id)
        ours.append(Message(OTHER, b"ours"), 0)
    # RocketMQ 5.4.0 deletes no topic without its timer.
    with_timer = {**SMALL, "timerWheelEnable": True}
    with rocketmq.broker(store, config=with_timer) as broker, rocketmq.producer(broker.names, "PG_AGAIN") as producer:

        def admin(*arguments: str) -> None:
            said = rocketmq.call("remote.admin", names=broker.names, arguments=[*arguments, "-n", broker.names])
            assert "success" in str(said), said

        create = ("updateTopic", "-c", "peers", "-t", TOPIC, "-r", "4", "-w", "4")
        admin(*create)
        sent = producer.send([message(TOPIC, b"old", queue_id=n % 4) for n in range(20)])
        assert all("error" not in one for one in sent), sent
        admin("deleteTopic", "-c", "peers", "-t", TOPIC)
        admin(*create)
        # One message queue of the four stays without a message.
        sent = producer.send([message(TOPIC, b"new", queue_id=n % 3) for n in range(new * 3)])
        assert all("error" not in one for one in sent), sent
        producer.send([message(OTHER, b"theirs")])
    served = _served(rocketmq, store, tmp_path / "copy")
    assert {queue_id: len(offsets) for queue_id, offsets in served.items()} == {0: new, 1: new, 2: new}
    with closing(Store.open(str(store), read_only=True)) as reader:
        assert _read(reader) == served
    for _ in range(2):
        with closing(Store.open(str(store))) as writer:
            assert _read(writer) == served
    assert _served(rocketmq, store, tmp_path / "handed-back") == served
