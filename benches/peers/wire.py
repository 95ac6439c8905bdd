"""Compares `txstore serve` with a real broker in turns, by RocketMQ's own Java client.

In:     `python -m benches.peers.wire [--quick]`.
Out:    rows; rates of the client, which runs in a process of its own, as does each server.
Always: both servers flush asynchronously, as RocketMQ does by default; each work is run against one, then the other,
        and again, the first turn only to warm up; acknowledged sends and transactions are counted in the queues
        afterwards.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import txstore
from benches.peers.table import Row, against, alone
from benches.python.measure import Scale, in_turns, scratch
from tests.peer import rocketmq

BODY_BYTES = 1024
THREADS = (1, 8, 32)
_OURS, _THEIRS = "txstore serve", "RocketMQ"
# A broker as it is by default, except the name server's port and the timer wheel's file of 38 MB.
_BROKER: dict[str, Any] = {"timerWheelEnable": False, "flushDiskType": "ASYNC_FLUSH"}


@dataclass(frozen=True, slots=True)
class Server:
    """A server: the address of its name server, and how many messages a topic has there."""

    names: str
    held: Callable[[str], int]


@contextmanager
def ours(folder: Path, name: str = "ours", **settings: str) -> Iterator[Server]:
    """`txstore serve` in a process of its own, with settings that differ from the defaults."""
    listen, address = (f"127.0.0.1:{rocketmq.Peer.free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "txstore.cli.main", "serve", str(folder / name)]
    command += [word for option, value in settings.items() for word in ("--set", f"{option}={value}")]
    with (folder / f"{name}.log").open("wb") as log:
        command += ["--listen", listen, "--name-server", address]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until_it_listens(address)
        with txstore.connect(address) as broker:

            def held(topic: str) -> int:
                ranges = (broker.queue_range(topic, queue_id) for queue_id in broker.read_queues(topic))
                return sum(end - first for first, end in ranges)

            yield Server(address, held)
    finally:
        process.terminate()
        process.wait(60)


def _until_it_listens(address: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with txstore.connect(address) as broker:
                broker.write_queues("warm")
            return
        except txstore.TxStoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextmanager
def theirs(folder: Path, home: rocketmq.Home) -> Iterator[Server]:
    """A broker and its name server in a Java process of their own."""
    with home.start(rocketmq.FAST_MACHINE) as peer:
        settings = {"defaultTopicQueueNums": 4, "autoCreateTopicEnable": True}
        with peer.broker(folder / "theirs", config=_BROKER, settings=settings) as broker:

            def held(topic: str) -> int:
                return sum(end - first for name, _, first, end in broker.status()["queues"] if name == topic)

            yield Server(broker.names, held)


class Bench:
    """A client, and the two servers."""

    def __init__(self, client: rocketmq.Peer, servers: dict[str, Server], milliseconds: int) -> None:
        self._client, self._servers, self._milliseconds = client, servers, milliseconds

    def compare(
        self, what: str, turns: int, work: Callable[[Server], float], ours: Server | None = None
    ) -> Iterator[Row]:
        """A row of the table. `ours`: another server of txstore instead of the default one."""

        def of(server: Server) -> Callable[[], float]:
            return lambda: work(server)

        servers = self._servers if ours is None else self._servers | {_OURS: ours}
        found = in_turns(turns, {name: of(server) for name, server in servers.items()})
        yield from against("wire", what, found, _OURS, [_THEIRS])

    def send(self, server: Server, topic: str, threads: int, *, transactions: bool) -> float:
        """Messages or transactions a second. Raises AssertionError if one that was acknowledged is missing."""
        before = server.held(topic)
        result = self._client.call(
            "load.send",
            names=server.names,
            topic=topic,
            threads=threads,
            milliseconds=self._milliseconds,
            body_bytes=BODY_BYTES,
            transactions=transactions,
        )
        assert result["failed"] == 0, result
        deadline = time.monotonic() + 30
        while (stored := server.held(topic) - before) < result["done"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert stored == result["done"], f"{stored} of {result['done']} acknowledged ones are there"
        return float(result["rate"])

    def push(self, server: Server, topic: str, count: int) -> float:
        """Messages a second through a push consumer of a new group."""
        result = self._client.call("load.push", names=server.names, topic=topic, wanted=count)
        assert result["all"], result
        return float(result["rate"])


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows; quick: a second each instead of five."""
    turns, milliseconds, pushed = (scale.turns, 5_000, 200_000) if scale.part == 1 else (scale.turns, 1_000, 20_000)
    with scratch() as folder, ExitStack() as stack:
        home = rocketmq.Home.build(folder)
        client = stack.enter_context(home.start(rocketmq.FAST_MACHINE))
        servers = {_OURS: stack.enter_context(ours(folder)), _THEIRS: stack.enter_context(theirs(folder, home))}
        unsynced = stack.enter_context(ours(folder, "unsynced", transaction_flush_disk_type="ASYNC_FLUSH"))
        bench = Bench(client, servers, milliseconds)
        # RocketMQ's default syncs nothing before it answers. txstore's default syncs each half message.
        for kind, how, server_of_ours in (
            ("transactions", ", neither side synced", unsynced),
            ("transactions", ", our halves synced", None),
            ("sends", "", None),
        ):
            for threads in THREADS:
                yield from bench.compare(
                    f"{kind} of 1 KiB by Java's client, {threads} thread{'s' * (threads > 1)}{how}",
                    turns,
                    lambda server, kind=kind, threads=threads: bench.send(  # type: ignore[misc]
                        server, f"{kind}-{threads}", threads, transactions=kind == "transactions"
                    ),
                    server_of_ours,
                )
        for server in servers.values():
            while server.held("sends-32") < pushed:
                bench.send(server, "sends-32", 32, transactions=False)
        yield from bench.compare(
            f"push consumption of {pushed:,}", turns, lambda server: bench.push(server, "sends-32", pushed)
        )


if __name__ == "__main__":
    alone("wire", __doc__, rows)
