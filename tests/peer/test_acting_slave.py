"""Measures a slave of RocketMQ that acts as master for a txstore, and lets pending transactions escape to another one.

The other txstore recognizes what the slave sends again. But a slave of RocketMQ looks at 32 op messages only before it
lets half messages escape, so ended transactions escape, too, and it tells its master nothing certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import txstore
from tests.peer.acting import CAUGHT_UP_S, SETTINGS, SIZES, TOPIC, Registered, is_finished
from tests.peer.rocketmq import SIZES as OUR_SIZES
from tests.peer.rocketmq import EmbeddedBroker, Home, Peer
from tests.ports import free_port
from tests.unit.test_administration import Unknown
from tests.unit.test_escape import begin, committed_at, pending
from tests.unit.test_replica import serve
from tests.unit.test_slaves import register
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, Server

pytestmark = pytest.mark.peer

OP_MESSAGES = 32
"""How many a slave of RocketMQ reads before it lets half messages escape."""


class Ending(Unknown):
    """Commits at once."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


@pytest.fixture
def names(rocketmq: Peer) -> str:
    return rocketmq.name_server(acting=True)


@pytest.fixture
def other(names: str, tmp_path: Path) -> Iterator[Server]:
    checks = {"transaction_timeout": 0.1, "transaction_check_interval": 0.2, "transaction_check_max": 1_000}
    with serve(tmp_path / "other", broker_name="elsewhere", cluster_name="peers", **checks) as server:
        server.broker.create_topic(TOPIC, 4)
        registered = Registered(names, server)
        yield server
        registered.close()


class Source:
    """A txstore at fixed ports, which the name server knows while it runs."""

    def __init__(self, path: Path, names: str) -> None:
        self._path, self._names = path, names
        self.address = f"127.0.0.1:{free_port(below=2)}"
        self._ha = f"127.0.0.1:{free_port()}"
        self.server: Server
        self._registered: Registered | None = None

    def start(self, **options: object) -> Server:
        addresses = {"listen": self.address, "ha_listen": self._ha, "broker_name": "peer", "cluster_name": "peers"}
        self.server = serve(self._path, **OUR_SIZES, **(addresses | options))
        self._registered = Registered(self._names, self.server)
        return self.server

    def stop(self) -> None:
        if self._registered is not None:
            self._registered.close()
        self.server.close()

    def followed_by(self, slave: EmbeddedBroker) -> None:
        register(self.server, slave.address)
        eventually(lambda: slave.follow() == self.address, CAUGHT_UP_S)
        end = self.server.broker.stat().max_physical_offset

        def has_all() -> bool:
            status = slave.status()
            return (status["max_physical_offset"], status["undispatched_bytes"]) == (end, 0)

        eventually(has_all, CAUGHT_UP_S)


@pytest.fixture
def source(names: str, tmp_path: Path) -> Iterator[Source]:
    source = Source(tmp_path / "source", names)
    source.start()
    yield source
    source.stop()


@dataclass
class Slaves:
    """The slave, each time in a new process."""

    home: Home
    path: Path
    names: str
    stack: ExitStack

    def __post_init__(self) -> None:
        self._settings = SETTINGS | {"listenPort": free_port(below=2)}
        self.process: Peer

    def start(self) -> EmbeddedBroker:
        self.process = self.stack.enter_context(self.home.start())
        return self.process.slave(self.path, self.names, config=SIZES, settings=self._settings)


@pytest.fixture
def slaves(rocketmq_home: Home, names: str, tmp_path: Path) -> Iterator[Slaves]:
    with ExitStack() as stack:
        yield Slaves(rocketmq_home, tmp_path / "slave", names, stack)


@pytest.mark.parametrize("is_killed", [False, True], ids=["nothing else", "the slave is killed after a send"])
def test_pending_transactions_escape_from_a_slave_of_rocketmq(
    source: Source, slaves: Slaves, other: Server, is_killed: bool
) -> None:
    bodies = [b"%d" % number for number in range(10)]
    ids = set(begin(source.address, *bodies))
    slave = slaves.start()
    source.followed_by(slave)
    source.stop()
    eventually(lambda: len(pending(other)) > 0, CAUGHT_UP_S)
    if is_killed:
        slaves.process.kill()
        slave = slaves.start()
    eventually(lambda: pending(other) == ids and is_finished(slave), CAUGHT_UP_S)
    committed_at(other, *bodies)
    # The source is not told: it asks, too.
    server = source.start(transaction_timeout=0, transaction_check_interval=0.05)
    committed_at(server, *bodies)


@pytest.mark.parametrize("count", [30, 100])
def test_ended_transactions_escape_from_a_slave_of_rocketmq(
    source: Source, slaves: Slaves, other: Server, count: int
) -> None:
    """Those after a pending one. The slave has each end in its log, and reads the first 32 op messages only."""
    ids = set(begin(source.address, b"pending"))
    with txstore.connect(source.address) as client, client.transaction_producer("shop", Ending()) as producer:
        for number in range(count):
            producer.send_in_transaction(Message(TOPIC, b"%d" % number))
    assert pending(source.server) == ids
    slave = slaves.start()
    source.followed_by(slave)
    source.stop()
    eventually(lambda: is_finished(slave) and ids <= pending(other), CAUGHT_UP_S)
    print(f"{len(pending(other))} of {count + 1} transactions have escaped, of which one was pending")
    committed_at(other, b"pending", *(b"%d" % number for number in range(OP_MESSAGES, count)))


def test_slave_of_rocketmq_passes_what_it_could_not_send(source: Source, slaves: Slaves, other: Server) -> None:
    """A txstore refuses the parts of a transaction of several messages: each would be asked about by itself."""
    with txstore.connect(source.address) as client, client.transaction_producer("shop", Unknown()) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction([Message(TOPIC, b"1"), Message(TOPIC, b"2")]):
            raise ZeroDivisionError
        single = str(producer.send_in_transaction(Message(TOPIC, b"3")).transaction_id)
    slave = slaves.start()
    source.followed_by(slave)
    source.stop()
    eventually(lambda: is_finished(slave), CAUGHT_UP_S)
    assert pending(other) == {single}
