"""A RocketMQ master that a replica of ours follows, and that replica, each at addresses that stay the same.

In:     the directories of their stores.
Out:    what they say of themselves, and the bytes of their logs.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.peer.rocketmq import SHORT_DELAYS, SMALL, EmbeddedBroker, Facts, Peer
from tests.peer.theirs import TIMES, Work
from tests.ports import free_port
from tests.unit.test_cli_serve import serving
from tests.waiting import eventually
from txstore._native import HALF_TOPIC, OP_TOPIC
from txstore.client.options import ConnectConfig
from txstore.errors import TxStoreError
from txstore.remoting.replication import ReplicationStatus
from txstore.server.replication import Source
from txstore.server.rocketmq_node import RocketMQNode

CAUGHT_UP_S = 180.0
# No checks, so that the log comes to rest.
AT_REST: Facts = {"transactionCheckInterval": 3_600_000, "transactionTimeOut": 3_600_000}


class Master:
    """A RocketMQ broker that always listens at the same ports."""

    def __init__(self, path: Path, **sizes: object) -> None:
        """`sizes`: settings of the store besides those of small files."""
        self.path = path
        port = free_port(below=2)
        self.address = f"127.0.0.1:{port}"
        self.settings: Facts = {"listenPort": port, "brokerIP2": "127.0.0.1"}
        self.sizes: Facts = SMALL | {"haListenPort": free_port()} | sizes

    def work(self, seed: int, *, killed: bool) -> Work:
        return Work(seed, killed=killed, sizes=self.sizes, settings=self.settings)

    def start(self, rocketmq: Peer) -> EmbeddedBroker:
        return rocketmq.broker(self.path, config=self.sizes | SHORT_DELAYS, settings=TIMES | AT_REST | self.settings)

    def end(self) -> int:
        with RocketMQNode(self.address, ConnectConfig(), seconds=5) as node:
            return node.extent()[1]

    def is_up(self) -> bool:
        try:
            return self.end() > 0
        except TxStoreError:
            return False


class Copy:
    """A replica's process at a fixed address."""

    def __init__(self, path: Path, master: str, *, broker_name: str = "peer", cluster_name: str = "peers") -> None:
        """`master` is its address, the names are the master's."""
        self.path, self._master = path, master
        self._names = {"broker_name": broker_name, "cluster_name": cluster_name}
        self.pid = 0
        """Of the process that runs."""
        self.log = ""
        """What those that have ended have logged."""
        self.address, self.names = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

    @contextlib.contextmanager
    def running(self, number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        """It runs meanwhile. A signal ends it."""
        settings = self._names | {"transaction_check_interval": "0.2", "transaction_timeout": "0"}
        options = ["--listen", self.address, "--name-server", self.names, "--replica-of", self._master]
        for name, value in settings.items():
            options += ["--set", f"{name}={value}"]
        with serving(self.path, *options) as (process, _):
            self.pid = process.pid
            try:
                yield
            except BaseException:
                process.kill()
                print(process.communicate()[1])
                raise
            process.send_signal(number)
            _, log = process.communicate(timeout=120)
            assert "Traceback" not in log, log
            self.log += log

    def status(self) -> ReplicationStatus:
        with Source(self.address, ConnectConfig()) as node:
            return node.status()

    def has(self, end: int) -> bool:
        found = self.status()
        assert found.failure is None, found.failure
        return found.end >= end and found.visible_end == found.end

    def offsets(self) -> set[tuple[str, str, int, int]]:
        with Source(self.address, ConnectConfig()) as node:
            rows = node.state()["offsets"]
        found = {(str(topic), str(group), int(queue), int(offset)) for topic, group, queue, offset in rows}
        return {row for row in found if row[0] not in (HALF_TOPIC, OP_TOPIC)}

    def promote(self) -> None:
        with Source(self.address, ConnectConfig()) as node:
            node.call("promote", timeout=120, lose_messages=True)
        eventually(self._is_source, CAUGHT_UP_S)

    def _is_source(self) -> bool:
        try:
            return self.status().accepts_writes
        except TxStoreError:
            return False


def log_of(path: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]" * 20)))[:end]


def at_rest(broker: EmbeddedBroker) -> int:
    """Waits until nothing is written any more. Returns the log's end."""
    found: list[int] = []

    def rests() -> bool:
        found.append(int(broker.status()["max_physical_offset"]))
        time.sleep(0.5)
        return len(found) > 6 and len(set(found[-6:])) == 1

    eventually(rests, CAUGHT_UP_S)
    return found[-1]
