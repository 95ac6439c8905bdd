"""Compares `txstore serve` with and without a replica, and with RocketMQ's synchronous replication, by its Java client.

In:     `python -m benches.server.replicas [--quick]`.
Out:    rows: sends by 1, 8 and 32 threads to a source with one asynchronous replica, against one without; to a source
        with `--replicas-required 2`, against RocketMQ's SYNC_MASTER with a slave and inSyncReplicas=2.
Always: source and replica, master and slave are processes of their own on this machine. None of them syncs before it
        answers, but in the rows that say so. Each work runs on one, then on the other, and again, the first turn only
        to warm up. Acknowledged messages are counted in the queues afterwards. The next turn waits until the copies
        are complete; that time is not counted.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import txstore
from benches.peers.table import Row, against, alone
from benches.python.measure import Scale, in_turns, scratch
from tests.frames import Wire
from tests.peer import rocketmq
from txstore.client.options import ConnectConfig
from txstore.remoting.replication import ReplicationStatus
from txstore.server.replication import Source

BODY_BYTES = 1024
THREADS = (1, 8, 32)
_WITH, _WITHOUT = "one asynchronous replica", "no replica"
_MEMORY, _DISK, _THEIRS = "a required copy", "a required copy, both synced", "RocketMQ, SYNC_MASTER"
_DEADLINE_SECONDS = 120.0
_ATTEMPTS = 5
_NOTE_MASTER = 906  # EXCHANGE_BROKER_HA_INFO: tells a slave where its master is.
_BROKER: dict[str, Any] = {"timerWheelEnable": False, "flushDiskType": "ASYNC_FLUSH"}
_MASTER: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2}
_SETTINGS: dict[str, Any] = {"defaultTopicQueueNums": 4, "autoCreateTopicEnable": True}


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a name server, how many messages a topic has there, and whether the copies are complete."""

    names: str
    held: Callable[[str], int]
    complete: Callable[[], bool]


@contextmanager
def _process(folder: Path, name: str, listen: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "txstore.cli.main", "serve", str(folder / name), "--listen", listen, *options]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def ours(folder: Path, name: str, *options: str, copied: bool) -> Iterator[Server]:
    """A source, and its replica if it is copied."""
    source, names, copy = (f"127.0.0.1:{rocketmq.Peer.free_port()}" for _ in range(3))
    with ExitStack() as stack:
        stack.enter_context(_process(folder, name, source, "--name-server", names, *options))
        _until(lambda: _status(source) is not None, f"{name} answers")
        if copied:
            follow = ("--name-server", "none", "--replica-of", source)
            stack.enter_context(_process(folder, f"{name}-copy", copy, *follow))

        def complete() -> bool:
            found = _status(source)
            replicas = [] if found is None else found.replicas
            return (
                found is not None
                and found.accepts_writes
                and (not copied or bool(replicas))
                and all(one.connected and one.lag_bytes == 0 for one in replicas)
            )

        _until(complete, f"{name} is copied")
        broker = stack.enter_context(txstore.connect(names))

        def held(topic: str) -> int:
            ranges = (broker.queue_range(topic, queue_id) for queue_id in broker.read_queues(topic))
            return sum(end - first for first, end in ranges)

        yield Server(names, held, complete)


def _status(address: str) -> ReplicationStatus | None:
    try:
        with Source(address, ConnectConfig()) as server:
            return server.status()
    except txstore.TxStoreError:
        return None


@contextmanager
def theirs(folder: Path, home: rocketmq.Home) -> Iterator[Server]:
    """A master that waits for a copy, and its slave, each with a name server in a Java process of its own."""
    ha = rocketmq.Peer.free_port()
    with home.start(rocketmq.FAST_MACHINE) as one, home.start(rocketmq.FAST_MACHINE) as other:
        config = _BROKER | _MASTER | {"haListenPort": ha}
        slave = _BROKER | {"brokerRole": "SLAVE"}
        with (
            one.broker(folder / "master", config=config, settings=_SETTINGS) as master,
            other.broker(folder / "slave", config=slave, settings=_SETTINGS | {"brokerId": 1}) as copy,
        ):

            def held(topic: str) -> int:
                return sum(end - first for name, _, first, end in master.status()["queues"] if name == topic)

            def complete() -> bool:
                return bool(master.status()["max_physical_offset"] == copy.status()["max_physical_offset"])

            with Wire(copy.facts["address"]) as wire:
                facts = {"masterHaAddress": f"127.0.0.1:{ha}", "masterAddress": master.facts["address"]}
                answer = wire.call(_NOTE_MASTER, facts | {"masterFlushOffset": "0"})
                assert answer.code == 0, answer
            yield Server(master.names, held, complete)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_DEADLINE_SECONDS:g} s: {what}")
        time.sleep(0.05)


def _sent(client: rocketmq.Peer, server: Server, milliseconds: int, threads: int) -> float:
    """Messages a second."""
    topic = f"sends-{threads}"
    before = server.held(topic)
    facts = {"threads": threads, "milliseconds": milliseconds, "body_bytes": BODY_BYTES, "transactions": False}
    for attempt in range(_ATTEMPTS):
        try:
            result = client.call("load.send", names=server.names, topic=topic, **facts)
            break
        except rocketmq.PeerError:
            # On a busy machine the client may find no route in time, before it has sent anything.
            if attempt + 1 == _ATTEMPTS:
                raise
    assert result["failed"] == 0, result
    _until(lambda: server.held(topic) - before >= result["done"], f"all of {result['done']} acknowledged are there")
    _until(server.complete, "the copy is complete")
    return float(result["rate"])


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows; quick: a second each instead of five."""
    required = ("--replicas-required", "2")
    with scratch() as folder:
        home = rocketmq.Home.build(folder)
        with home.start(rocketmq.FAST_MACHINE) as client:
            with ours(folder, "alone", copied=False) as alone_, ours(folder, "copied", copied=True) as copied:
                yield from _compared(client, scale, {_WITH: copied, _WITHOUT: alone_})
            with theirs(folder, home) as master:
                with ours(folder, "memory", *required, "--replica-ack", "memory", copied=True) as server:
                    yield from _compared(client, scale, {_MEMORY: server, _THEIRS: master})
                with ours(folder, "disk", *required, copied=True) as server:
                    yield from _compared(client, scale, {_DISK: server, _THEIRS: master})


def _compared(client: rocketmq.Peer, scale: Scale, servers: dict[str, Server]) -> Iterator[Row]:
    one, *others = servers
    milliseconds = 5_000 if scale.part == 1 else 1_000
    for threads in THREADS:
        works = {name: partial(_sent, client, server, milliseconds, threads) for name, server in servers.items()}
        what = f"sends of 1 KiB, {threads} thread{'s' * (threads > 1)}"
        yield from against("replicas", what, in_turns(scale.turns, works), one, others)


if __name__ == "__main__":
    alone("replicas", __doc__, rows, "server")
