"""Runs clients against a source and its replica: either one is killed, the network between them fails, and in the end
another node is the source; returns the history.

In:     a seed, a duration, a number of clients.
Out:    the history of the promoted node, and statistics of what happened.
Always: the clients know both nodes. Replicas are promoted by `txstore replica promote`. Where the source's machine is
        lost, nothing reaches the replica any more in its last moment, so that what was read or acknowledged without a
        copy is lost.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import txstore
from tests.histories.checker import Anomaly, Event, History, anomalies, events_of
from tests.histories.clients import NEW, TOPIC
from tests.histories.lost_tail import LostTail
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

_LAST_SECONDS = 1.5
_TWO_COPIES = ("--replicas-required", "2", "--replica-timeout", "3")


def wrong(variant: str) -> tuple[str, ...]:
    """The entry of a wrong variant of the server."""
    return ("-m", "tests.histories.wrong", variant)


@dataclass(slots=True)
class _Nodes:
    """A source, its replica, the network between them, and their clients."""

    source: Server
    copy: Server
    stores: tuple[Path, Path]
    proxies: tuple[FaultyProxy, FaultyProxy]
    """Between the clients and each of the two."""
    between: FaultyProxy
    groups: list[Clients]
    chance: random.Random
    seed: int

    def trouble(self, seconds: float, kills: int) -> None:
        """Lets the network fail, and kills the source and the replica by turns."""
        self.between.faults = 0.02
        for turn in range(kills):
            time.sleep(seconds / (kills + 1))
            killed = (self.source, self.copy)[turn % 2]
            killed.end(kill=True)
            time.sleep(self.chance.uniform(0.0, 0.5))
            killed.start()
        time.sleep(seconds / (kills + 1))
        self.between.faults = 0.0
        eventually(lambda: status(self.source.port).accepts_writes)
        eventually(lambda: status(self.copy.port).following)

    def stop_sending(self) -> None:
        for group in self.groups:
            group.tell("stop")

    def events(self) -> list[Any]:
        return events_of(group.log for group in self.groups)

    def settled(self, store: Path) -> int:
        """Waits until a store has nothing pending and all is read, then ends the clients. Returns seconds."""
        waited = settle(store, self.groups)
        for group in self.groups:
            group.end()
        return round(waited)

    def history(self, store: Path, tail: LostTail | None = None) -> History:
        return history_of(store, [group.log for group in self.groups], self.delivered(), tail)

    def delivered(self) -> Any:
        return self.proxies[0].delivered + self.proxies[1].delivered

    def report(self, history: History, found: list[Anomaly], **more: int) -> Report:
        happened = dict(sorted(self.between.happened.items()))
        return Report(self.seed, found, statistics_of(history) | happened | more)


@contextmanager
def _nodes(
    folder: Path, seed: int, clients: int, *options: str, entry: Sequence[str] = tuple(ENTRY)
) -> Iterator[_Nodes]:
    """Starts two nodes and the clients. `options` and `entry` are those of the source."""
    folder.mkdir(exist_ok=True)
    stores = folder / "source", folder / "copy"
    with txstore.open(stores[0], **NEW) as broker:
        broker.create_topic(TOPIC, QUEUES)
    ports = Peer.free_port(), Peer.free_port()
    with ExitStack() as stack:
        to_source, to_copy = (stack.enter_context(FaultyProxy(port, seed)) for port in ports)
        between = stack.enter_context(FaultyProxy(ports[0], seed + 1))
        source = stack.enter_context(Server(stores[0], to_source.address, ports[0], *options, entry=entry))
        copy = stack.enter_context(Server(stores[1], to_copy.address, ports[1], "--replica-of", between.address))
        eventually(lambda: status(ports[0]).accepts_writes)
        eventually(lambda: status(ports[1]).following)
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
        yield _Nodes(source, copy, stores, (to_source, to_copy), between, groups, random.Random(seed), seed)


def run_replica_history(
    folder: Path, seed: int, seconds: float, clients: int, kills: int, *, entry: Sequence[str] = tuple(ENTRY)
) -> Report:
    """Loses the machine of a source that waits for two copies. `kills`: of the source and of the replica, by turns."""
    with _nodes(folder, seed, clients, *_TWO_COPIES, entry=entry) as nodes:
        nodes.trouble(seconds, kills)
        copied_end, end = _cut_off(nodes)
        _lose(nodes)
        _promote(nodes.copy.port)
        time.sleep(seconds / (kills + 1))
        eventually(lambda: _is_enough(nodes.events(), clients))
        nodes.stop_sending()
        waited = nodes.settled(nodes.stores[1])
        nodes.copy.end(kill=False)
    history = nodes.history(nodes.stores[1])
    lost = {"bytes that only the source had": end - copied_end, "seconds to settle": waited}
    return nodes.report(history, anomalies(history), **lost)


def _is_enough(clients: list[list[Event]], count: int) -> bool:
    """Whether that many clients have done enough."""
    events = [event for client in clients for event in client]
    sent = sum(event["what"] == "sent" for event in events)
    outcomes = Counter(event["outcome"] for event in events if event["what"] == "told")
    return sent > count and outcomes["committed"] > count / 4 and outcomes["rolled_back"] > 0


def run_asynchronous_history(folder: Path, seed: int, seconds: float, clients: int, kills: int) -> Report:
    """Loses the machine of a source that waits for no copies. What it alone had is lost, and nothing else."""
    with _nodes(folder, seed, clients) as nodes:
        nodes.trouble(seconds, kills)
        copied_end, _ = _cut_off(nodes)
        nodes.source.end(kill=True)
        before = nodes.events()
        tail = LostTail.of(nodes.stores[0], copied_end)
        _lose(nodes)
        done = _promote(nodes.copy.port, "--lose-messages")
        assert done["start"] == copied_end, done
        time.sleep(seconds / (kills + 1))
        nodes.stop_sending()
        waited = nodes.settled(nodes.stores[1])
        nodes.copy.end(kill=False)
    history = nodes.history(nodes.stores[1], tail)
    found = [*anomalies(history), *tail.survivors(history, before)]
    lost = {"acknowledged messages lost": len(tail.acknowledged(before)), "halves lost": len(tail.halves)}
    return nodes.report(history, found, **lost, **{"ends lost": len(tail.ended), "seconds to settle": waited})


def run_handed_over_history(
    folder: Path, seed: int, seconds: float, clients: int, kills: int, *, entry: Sequence[str] = tuple(ENTRY)
) -> Report:
    """Hands the writing over to the replica and back while clients send, which loses nothing, also with one copy."""
    with _nodes(folder, seed, clients, entry=entry) as nodes:
        source, copy = nodes.source, nodes.copy
        nodes.trouble(seconds, kills)
        _promote(copy.port)
        time.sleep(seconds / (kills + 1))
        source.end(kill=nodes.chance.random() < 0.5)
        source.start("--replica-of", f"127.0.0.1:{copy.port}")
        eventually(lambda: status(source.port).following)
        kept = len(list((nodes.stores[0] / "txstore").glob("diverged-*")))
        _promote(source.port)
        time.sleep(seconds / (kills + 1))
        nodes.stop_sending()
        waited = nodes.settled(nodes.stores[0])
        copy.end(kill=False)
        copy.start()
        eventually(lambda: status(copy.port).following and status(copy.port).end == status(source.port).end)
        source.end(kill=False)
        copy.end(kill=False)
    history = nodes.history(nodes.stores[0])
    found = [*anomalies(history), *_differences(nodes)]
    return nodes.report(history, found, **{"logs cut": kept, "seconds to settle": waited})


def _differences(nodes: _Nodes) -> Iterator[Anomaly]:
    """Log files that are not the same in both stores."""
    logs = [
        {file.name: file.read_bytes() for file in sorted((store / "commitlog").iterdir())} for store in nodes.stores
    ]
    for name in sorted({*logs[0], *logs[1]}):
        if logs[0].get(name) != logs[1].get(name):
            yield Anomaly("other log", f"{name} differs")


def _cut_off(nodes: _Nodes) -> tuple[int, int]:
    """Lets nothing reach the replica, until its source knows of all that it has, and has more. Returns up to where the
    copy goes as the replica reported it last, and an end of the source's log later.
    """
    nodes.between.flows.clear()
    time.sleep(_LAST_SECONDS)
    ends = 0, 0

    def all_is_reported() -> bool:
        nonlocal ends
        there = status(nodes.source.port)
        ends = max(one.copied_end for one in there.replicas), there.end
        return ends[0] == status(nodes.copy.port).end < ends[1]

    eventually(all_is_reported)
    return ends


def _lose(nodes: _Nodes) -> None:
    """Loses the source's machine."""
    if nodes.source.process.poll() is None:
        nodes.source.end(kill=True)
    shutil.rmtree(nodes.stores[0])
    nodes.between.flows.set()
    nodes.between.drop_all()
    if nodes.chance.random() < 0.5:
        nodes.copy.end(kill=True)
        nodes.copy.start()


def _promote(port: int, *options: str) -> dict[str, Any]:
    """Promotes a replica as an operator does. If nothing is lost, it needs no options."""
    words = ("replica", "promote", f"127.0.0.1:{port}", "--json", *options)
    done = subprocess.run([sys.executable, *ENTRY, *words], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    eventually(lambda: status(port).accepts_writes)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def status(port: int) -> ReplicationStatus:
    """Asks a node that runs, also while it opens its store."""
    while True:
        try:
            with Source(f"127.0.0.1:{port}", ConnectConfig()) as server:
                return server.status()
        except TxStoreError:
            time.sleep(0.1)
