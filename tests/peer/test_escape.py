"""Guards escapes to a real RocketMQ broker, with a replica that is killed after its intent and after its send.

RocketMQ cannot tell whether it has a half message, so nothing that may be there is sent again: it is in doubt, and no
message is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.peer.rocketmq import EmbeddedBroker, Peer
from tests.ports import free_port
from tests.unit.test_cli_serve import serving
from tests.unit.test_escape import Lossy, begin, delivered, pending
from tests.unit.test_replica import Committing, serve
from tests.waiting import eventually
from txstore import Server
from txstore.broker.escape_journal import read_escapes
from txstore.transactions.escaped import EscapeState

pytestmark = pytest.mark.peer

_BODIES = [b"%d" % number for number in range(10)]


@dataclass
class Cluster:
    """A source and its replica, and a RocketMQ broker that clients reach by a way that loses what a test wants."""

    directory: Path
    address: str
    theirs: EmbeddedBroker
    names: Lossy
    way: Lossy
    stack: ExitStack

    def source(self, **options: Any) -> Server:
        return self.stack.enter_context(serve(self.directory / "source", listen=self.address, **options))

    @property
    def options(self) -> list[str]:
        chosen = ["--replica-of", self.address, "--escape-to", self.names.address, "--escape-after", "0.1"]
        return [*chosen, "--set", "transaction_timeout=0.1"]

    def states(self) -> Counter[EscapeState]:
        return Counter(one.state for one in read_escapes(self.directory / "copy"))

    def received(self, at_least: int) -> Counter[bytes]:
        """What a consumer of the RocketMQ broker gets."""
        found: Counter[bytes] = Counter()
        with txstore.connect(self.theirs.names) as client, client.consumer("reading", "orders") as consumer:

            def enough() -> bool:
                found.update(one.body for one in consumer.poll(timeout=1.0))
                return found.total() >= at_least

            eventually(enough)
            # A message that comes twice comes within a check or two.
            found.update(one.body for one in consumer.poll(timeout=5.0))
        return found


@pytest.fixture
def cluster(tmp_path: Path, rocketmq: Peer) -> Iterator[Cluster]:
    with ExitStack() as stack:
        port = free_port(2)
        theirs = rocketmq.broker(tmp_path / "theirs", settings=_settings(port))
        stack.callback(theirs.stop)
        way = stack.enter_context(Lossy(port))
        names = stack.enter_context(Lossy(int(theirs.names.rpartition(":")[2])))
        # Both have as many digits, so that the route has the same length.
        names.written_over = {f"127.0.0.1:{port}".encode(): way.address.encode()}
        yield Cluster(tmp_path, f"127.0.0.1:{free_port()}", theirs, names, way, stack)


def _settings(port: int) -> dict[str, Any]:
    return {
        "transactionTimeOut": 1_000,
        "transactionCheckInterval": 1_000,
        "transactionCheckMax": 15,
        "transactionOpBatchInterval": 200,
        "defaultTopicQueueNums": 4,
        "listenPort": port,
    }


def test_transactions_escape_to_rocketmq_which_ends_them(cluster: Cluster) -> None:
    source = cluster.source()
    begin(cluster.address, *_BODIES)
    with serving(cluster.directory / "copy", *cluster.options):
        eventually(lambda: [one.lag_bytes for one in source.nodes.replicas()] == [0])
        source.close()
        eventually(lambda: cluster.states() == {EscapeState.SENT: len(_BODIES)})
        with txstore.connect(cluster.theirs.names) as client, client.transaction_producer("shop", Committing()):
            assert cluster.received(len(_BODIES)) == Counter(_BODIES)
        source = cluster.source(transaction_timeout=0, transaction_check_interval=0.05)
        with txstore.connect(cluster.address) as client, client.transaction_producer("shop", Committing()):
            eventually(lambda: pending(source) == set())
    assert delivered(source) == []


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_replica_that_is_killed_leaves_one_in_doubt_and_none_lost(cluster: Cluster, lost: str) -> None:
    source = cluster.source()
    begin(cluster.address, *_BODIES)
    with serving(cluster.directory / "copy", *cluster.options) as (process, _):
        eventually(lambda: [one.lag_bytes for one in source.nodes.replicas()] == [0])
        cluster.way.loses = lost
        source.close()
        assert cluster.way.lost.wait(60)
        process.kill()
        process.wait()
    cluster.way.loses = None
    cluster.way.flows.set()
    with serving(cluster.directory / "copy", *cluster.options):
        eventually(lambda: cluster.states() == {EscapeState.SENT: len(_BODIES) - 1, EscapeState.IN_DOUBT: 1})
        (doubtful,) = [one for one in read_escapes(cluster.directory / "copy") if one.state is EscapeState.IN_DOUBT]
        with txstore.connect(cluster.theirs.names) as client, client.transaction_producer("shop", Committing()):
            there = cluster.received(len(_BODIES) - (lost == "request"))
        source = cluster.source(transaction_timeout=0, transaction_check_interval=0.05)
        with txstore.connect(cluster.address) as client, client.transaction_producer("shop", Committing()):
            eventually(lambda: pending(source) == set())
            trace = client.transaction(doubtful.transaction_id)
            assert "in doubt to broker" in trace.explain()
    # The source asks about the one in doubt: it is here, and perhaps there, too.
    here = delivered(source)
    assert len(here) == 1
    total = there + Counter(here)
    assert set(total) == set(_BODIES)
    assert total.total() == len(_BODIES) + (lost == "answer")
