"""Guards consumer offsets when another process takes a shared store over: what was acknowledged is not read again, and
no offset of another owner or of an operator is overwritten.

The processes and their ends are real.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.process import stop
from tests.unit.test_shared import Process, start, store
from tests.waiting import eventually
from txstore import Message, errors
from txstore.message import ConsumeFromWhere

__all__ = ["start", "store"]

_NEVER = 3600
_CONSUME = """
    consumer = broker.consumer("group", "orders")
    found = []
    for _ in range(60):
        found += [message.queue_offset for message in consumer.poll(timeout=0.5)]
        if len(found) >= 10:
            break
    consumer.acknowledge()
    print(len(found))
"""
_HAS_REPORTED = """
    session = broker._here().session
    connection = session.client.live_connection(session.client.brokers()[0])
    print(connection is session.offset_store._known and not session.offsets.unreported())
"""


def acknowledged(broker: txstore.SharedBroker) -> int | None:
    """Returns the group's offset, as the writer knows it; None if it knows none, or ended meanwhile."""
    try:
        return next((row.consumer_offset for row in broker.lag("group") if row.topic == "orders"), None)
    except errors.BrokerUnreachableError:
        return None


def takes_over(broker: txstore.SharedBroker) -> bool:
    acknowledged(broker)
    return broker.is_writer


def send(broker: txstore.SharedBroker, count: int) -> None:
    broker.producer("senders").send_batch([Message("orders", b"%d" % number) for number in range(count)])


@pytest.fixture
def writer(store: Path, start: Callable[..., Process]) -> Process:
    """Another process, which writes the store. It has a topic with one queue, and a group."""
    started = start(f"shared=True, flush_consumer_offset_interval={_NEVER}")
    started.run("broker.create_topic('orders', 1); broker.create_group('group')")
    return started


def test_offsets_of_the_writer_are_on_disk_before_it_is_killed(store: Path, writer: Process) -> None:
    def on_disk() -> int | None:
        with txstore.open(store, read_only=True) as reader:
            return reader.consumer_offset("orders", "group", 0)

    with txstore.open(store, shared=True) as broker:
        send(broker, 10)
        assert writer.run(_CONSUME) == "10"
        eventually(lambda: on_disk() == 10)
        writer.kill()
        eventually(lambda: takes_over(broker))
        assert acknowledged(broker) == 10


def test_offsets_that_only_a_killed_writer_knew_are_reported_again(store: Path, writer: Process) -> None:
    with txstore.open(store, shared=True) as broker:
        send(broker, 10)
        with broker.consumer("group", "orders") as consumer:
            eventually(lambda: (consumer.poll(timeout=0.5), acknowledged(broker) == 10)[1])
            writer.kill()
            eventually(lambda: takes_over(broker))
            eventually(lambda: acknowledged(broker) == 10)


@pytest.fixture
def stopped(store: Path, start: Callable[..., Process], writer: Process) -> Process:
    """A process that has acknowledged ten messages, and is stopped while the writer is killed."""
    reader = start("shared=True, writer=False")
    with txstore.open(store, shared=True, writer=False) as broker:
        send(broker, 10)
        assert reader.run(_CONSUME) == "10"
        eventually(lambda: acknowledged(broker) == 10)
    stop(reader.pid)
    writer.kill()
    return reader


def test_offset_of_another_owner_is_not_moved_back(store: Path, stopped: Process) -> None:
    with txstore.open(store, shared=True) as broker:
        send(broker, 10)
        with broker.consumer("group", "orders") as consumer:
            eventually(lambda: (consumer.poll(timeout=0.5), acknowledged(broker) == 20)[1])
            stopped.kill(signal.SIGCONT)
            eventually(lambda: stopped.run(_HAS_REPORTED) == "True")
            assert acknowledged(broker) == 20


def test_reset_while_a_consumer_is_away_is_kept(store: Path, stopped: Process) -> None:
    with txstore.open(store, shared=True) as broker:
        eventually(lambda: takes_over(broker))
        assert broker.reset_offsets("group", "orders", ConsumeFromWhere.FIRST) == {0: 0}
        stopped.kill(signal.SIGCONT)
        assert stopped.run(_CONSUME.replace('consumer = broker.consumer("group", "orders")', "")) == "10"
