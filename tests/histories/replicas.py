"""Runs clients against a source and its replica: either one is killed, the network between them fails, and in the end
the source's machine is lost; returns the history.

In:     a seed, a duration, a number of clients.
Out:    the history of the promoted replica, and statistics of what happened.
Always: the clients know both nodes. In the last moment of the source nothing reaches the replica any more, so that what
        was read or acknowledged without a copy would be lost.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import txstore
from tests.histories.checker import anomalies
from tests.histories.clients import NEW, TOPIC
from tests.histories.proxy import FaultyProxy
from tests.histories.run import (
    CLIENTS_OF_A_PROCESS,
    ENTRY,
    QUEUES,
    Clients,
    Report,
    Server,
    history_of,
    settle,
    statistics_of,
)
from tests.peer.rocketmq import Peer
from tests.waiting import eventually
from txstore.client.options import ConnectConfig
from txstore.errors import TxStoreError
from txstore.remoting.replication import ReplicationStatus
from txstore.server.replication import Source

WRONG = ("-m", "tests.histories.visible_early")
_LAST_SECONDS = 1.5


def run_replica_history(
    folder: Path, seed: int, seconds: float, clients: int, kills: int, *, entry: Sequence[str] = tuple(ENTRY)
) -> Report:
    """Runs once in a folder of its own. `kills`: of the source and of the replica, by turns. `entry`: of the source."""
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    paths = folder / "source", folder / "copy"
    with txstore.open(paths[0], **NEW) as broker:
        broker.create_topic(TOPIC, QUEUES)
    ports = Peer.free_port(), Peer.free_port()
    with ExitStack() as stack:
        to_source, to_copy = (stack.enter_context(FaultyProxy(port, seed)) for port in ports)
        between = stack.enter_context(FaultyProxy(ports[0], seed + 1))
        required = ("--replicas-required", "2", "--replica-timeout", "3")
        source = stack.enter_context(Server(paths[0], to_source.address, ports[0], *required, entry=entry))
        follow = ("--replica-of", between.address)
        copy = stack.enter_context(Server(paths[1], to_copy.address, ports[1], *follow))
        eventually(lambda: _status(ports[0]).accepts_writes)
        groups = [
            stack.enter_context(
                Clients(
                    f"{to_source.address};{to_copy.address}",
                    folder / f"clients-{first}.jsonl",
                    seed,
                    first,
                    min(CLIENTS_OF_A_PROCESS, clients - first),
                    ("threads", "asyncio")[first // CLIENTS_OF_A_PROCESS % 2],
                )
            )
            for first in range(0, clients, CLIENTS_OF_A_PROCESS)
        ]
        for group in groups:
            group.ready()
        between.faults = 0.02
        for turn in range(kills):
            time.sleep(seconds / (kills + 1))
            killed = (source, copy)[turn % 2]
            killed.end(kill=True)
            time.sleep(chance.uniform(0.0, 0.5))
            killed.start()
        time.sleep(seconds / (kills + 1))
        between.faults = 0.0
        eventually(lambda: _status(ports[0]).accepts_writes)
        lost = _lose(source, paths[0], between)
        if chance.random() < 0.5:
            copy.end(kill=True)
            copy.start()
        _promote(copy.port)
        time.sleep(seconds / (kills + 1))
        for group in groups:
            group.tell("stop")
        waited = settle(paths[1], groups)
        for group in groups:
            group.end()
        copy.end(kill=False)
    delivered = to_source.delivered + to_copy.delivered
    history = history_of(paths[1], [group.log for group in groups], delivered)
    statistics = statistics_of(history) | dict(sorted(between.happened.items()))
    statistics |= {"bytes that only the source had": lost, "seconds to settle": round(waited)}
    return Report(seed, anomalies(history), statistics)


def _lose(source: Server, path: Path, between: FaultyProxy) -> int:
    """Loses the source's machine. Returns how many bytes of its log the replica did not say that it has."""
    between.flows.clear()
    time.sleep(_LAST_SECONDS)
    lag = max(one.lag_bytes for one in _status(source.port).replicas)
    source.end(kill=True)
    shutil.rmtree(path)
    between.flows.set()
    between.drop_all()
    return lag


def _promote(port: int) -> None:
    """Promotes a replica. With two copies nothing is lost, so it must not need `lose_messages`."""
    with Source(f"127.0.0.1:{port}", ConnectConfig()) as server:
        server.call("promote", timeout=60.0, lose_messages=False)
    eventually(lambda: _status(port).accepts_writes)


def _status(port: int) -> ReplicationStatus:
    while True:
        try:
            with Source(f"127.0.0.1:{port}", ConnectConfig()) as server:
                return server.status()
        except TxStoreError:
            time.sleep(0.1)
