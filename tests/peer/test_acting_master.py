"""Measures RocketMQ's own escape, by the same test as ours has (test_escape.py): 10 transactions are pending, the
master is killed, its slave lets them escape to another broker, is killed after a send, and the master comes back.

RocketMQ keeps no record of what it sends. What has escaped is sent again if the slave is killed before it has stored
its progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

import txstore
from tests.peer.acting import CAUGHT_UP_S, GROUP, SETTINGS, SIZES, TOPIC, Registered, halves, is_finished, members
from tests.peer.rocketmq import SMALL, EmbeddedBroker, Facts, Home, Peer, message
from tests.ports import free_port
from tests.unit.test_escape import delivered, pending
from tests.unit.test_replica import Committing, serve
from tests.waiting import eventually

pytestmark = pytest.mark.peer

NO_CHECKS = {"transactionTimeOut": 3_600_000, "transactionCheckInterval": 3_600_000}
BODIES = [b"%d" % number for number in range(10)]


class Group:
    """A master and its slave, RocketMQ's, under one name server."""

    def __init__(self, directory: Path, home: Home, names: str, stack: ExitStack) -> None:
        self._directory, self._home, self._names, self._stack = directory, home, names, stack
        self._own: Facts = {
            "master": {"listenPort": free_port(below=2), "brokerId": 0},
            "slave": {"listenPort": free_port(below=2), "brokerId": 1},
        }
        self._ports = {name: free_port() for name in self._own}
        self._processes: dict[str, Peer] = {}

    def start(self, name: str, **settings: int) -> EmbeddedBroker:
        role = "ASYNC_MASTER" if name == "master" else "SLAVE"
        self._processes[name] = process = self._stack.enter_context(self._home.start())
        return process.member(
            self._directory / name,
            self._names,
            config=SIZES | {"brokerRole": role, "haListenPort": self._ports[name]},
            settings=SETTINGS | self._own[name] | settings,
        )

    def kill(self, name: str) -> None:
        self._processes.pop(name).kill()


@contextmanager
def committing(process: Peer, names: str, topic: str) -> Iterator[None]:
    """A producer that is asked by each broker of the cluster. It knows those of the topics that it has sent to."""
    with process.producer(names, GROUP, otherwise=("COMMIT",)) as producer:
        assert producer.send([message(topic, b"known")])[0]["status"] == "SEND_OK"
        yield


class Other(Protocol):
    """The broker to which transactions escape."""

    def arrived(self) -> int:
        """How many half messages it has."""

    def finish(self) -> Counter[bytes]:
        """Lets a producer commit all of them. Returns what consumers see."""


class Txstore:
    """A txstore as the other broker."""

    def __init__(self, directory: Path, names: str, stack: ExitStack) -> None:
        checks = {"transaction_timeout": 0.1, "transaction_check_interval": 0.2, "transaction_check_max": 1_000}
        options = {"broker_name": "elsewhere", "cluster_name": "peers"} | checks
        self._server = stack.enter_context(serve(directory / "other", **options))
        self._server.broker.create_topic(TOPIC, 4)
        stack.callback(Registered(names, self._server).close)

    def arrived(self) -> int:
        return len(self._server.broker.transactions())

    def finish(self) -> Counter[bytes]:
        with txstore.connect(str(self._server.address)) as client, client.transaction_producer(GROUP, Committing()):
            eventually(lambda: pending(self._server) == set())
        return Counter(delivered(self._server))


class RocketMQ:
    """Another RocketMQ as the other broker."""

    def __init__(self, directory: Path, names: str, stack: ExitStack, process: Peer) -> None:
        self._names, self._process = names, process
        settings = SETTINGS | {"brokerName": "elsewhere", "brokerId": 0, "enableSlaveActingMaster": False}
        # With short times it asks again before the end of a slow producer is in its log, and doubles messages itself.
        settings |= {"transactionCheckInterval": 10_000}
        self._broker = process.member(directory / "other", names, config=SMALL, settings=settings)
        stack.callback(self._broker.stop)
        facts = {"handle": self._broker.facts["handle"], "topic": TOPIC, "queues": 4, "type": "MIXED"}
        process.call("broker.topic", **facts)

    def arrived(self) -> int:
        return halves(self._broker)

    def finish(self) -> Counter[bytes]:
        with committing(self._process, self._names, "Known"):
            eventually(lambda: is_finished(self._broker), CAUGHT_UP_S)
        found = self._process.call("broker.messages", handle=self._broker.facts["handle"], topic=TOPIC)
        return Counter(one["body"].encode() for one in found)


@pytest.fixture
def names(rocketmq: Peer) -> str:
    return rocketmq.name_server(acting=True)


def committed(broker: EmbeddedBroker) -> int:
    """How many messages consumers of a RocketMQ broker see."""
    return sum(end for topic, _, _, end in broker.status()["queues"] if topic == TOPIC)


@pytest.mark.parametrize("what", ["nothing else", "slave killed", "master asked"])
@pytest.mark.parametrize("kind", ["txstore", "RocketMQ"])
def test_escape_of_rocketmq(rocketmq_home: Home, names: str, tmp_path: Path, kind: str, what: str) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, rocketmq_home, names, stack)
        clients = stack.enter_context(rocketmq_home.start())
        group.start("master", **({} if what == "master asked" else NO_CHECKS))
        eventually(lambda: members(names).keys() == {"0"}, CAUGHT_UP_S)
        slave = group.start("slave")
        eventually(lambda: members(names).keys() == {"0", "1"}, CAUGHT_UP_S)
        # As after the first minute: both have the same version of the offsets, and on disk.
        eventually((tmp_path / "master" / "config" / "consumerOffset.json").exists, CAUGHT_UP_S)
        assert slave.follow() is not None
        with clients.producer(names, GROUP) as producer:
            told = producer.transactions([message(TOPIC, one, answers=["UNKNOWN"]) for one in BODIES])
            assert [one.get("status") for one in told] == ["SEND_OK"] * len(BODIES), told
        eventually(lambda: halves(slave) >= len(BODIES), CAUGHT_UP_S)
        # Only now, so that all of them were sent to the master.
        is_ours = kind == "txstore"
        other: Other = Txstore(tmp_path, names, stack) if is_ours else RocketMQ(tmp_path, names, stack, clients)
        # The slave takes its master's progress once a minute, so it has each copy that the master has put back since.
        eventually(lambda: what != "master asked" or halves(slave) >= 2 * len(BODIES), CAUGHT_UP_S)
        group.kill("master")
        eventually(lambda: other.arrived() >= 1, CAUGHT_UP_S)
        if what == "slave killed":
            group.kill("slave")
            slave = group.start("slave")
        eventually(lambda: other.arrived() >= len(BODIES) and is_finished(slave), CAUGHT_UP_S)
        there = other.finish()
        master = group.start("master")
        eventually(lambda: members(names).keys() == {"0", "1"}, CAUGHT_UP_S)
        with committing(clients, names, "KnownAgain"):
            eventually(lambda: is_finished(master) and is_finished(slave), CAUGHT_UP_S)
        here = committed(master)
        print(f"to {kind}, {what}: {there.total()} messages at the other broker, {here} at the master")
        assert set(there) == set(BODIES)
        if is_ours:
            assert (there.total(), here) == (len(BODIES), 0)
