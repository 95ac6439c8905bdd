"""Compares `txstore serve --grpc` with RocketMQ's proxy in local mode, by RocketMQ's own Java client for gRPC.

In:     `python -m benches.server.grpc_clients [--quick]`.
Out:    rows: sends, transactions, and receives with an acknowledgement of each message, by 1 and by 32 threads.
Always: both servers flush as they do by default, txstore also in a row without its syncs of half messages; each work
        runs on one, then on the other, and again, the first turn only to warm up; what was acknowledged is counted in
        the queues afterwards. The client shares the machine, so there are rows of what each process costs. A row
        names the load of the machine when it ended; its own threads are a part of it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import txstore
from benches.peers.table import Row, against, alone
from benches.peers.wire import _until_it_listens
from benches.python.measure import Measured, Scale, in_turns, scratch
from tests.certificates import Authority
from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.theirs import serve_theirs
from tests.peer import rocketmq
from tests.programs import Program

BODY_BYTES = 1024
THREADS = (1, 32)
QUEUES = 4
_OURS, _THEIRS = "txstore serve --grpc", "RocketMQ's proxy"
_STORE_OF_THEIRS: dict[str, Any] = {"flushDiskType": "ASYNC_FLUSH"}
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """`create`: a topic; `group`: a consumer group; `held`: how many messages a topic has."""

    endpoints: str
    pid: int
    create: Callable[[str], object]
    group: Callable[[str], object]
    held: Callable[[str], int]


@contextmanager
def ours(folder: Path, name: str = "ours", **settings: str) -> Iterator[Server]:
    """`txstore serve` in a process of its own, with settings that differ from the defaults."""
    listen, names, grpc = (f"127.0.0.1:{rocketmq.Peer.free_port()}" for _ in range(3))
    command = [sys.executable, "-m", "txstore.cli.main", "serve", str(folder / name)]
    command += [word for option, value in settings.items() for word in ("--set", f"{option}={value}")]
    command += ["--listen", listen, "--name-server", names, "--grpc", grpc]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until_it_listens(names)
        with txstore.connect(names) as broker:

            def held(topic: str) -> int:
                ranges = (broker.queue_range(topic, queue_id) for queue_id in broker.read_queues(topic))
                return sum(end - first for first, end in ranges)

            yield Server(grpc, process.pid, lambda topic: broker.create_topic(topic, QUEUES), broker.create_group, held)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def theirs(folder: Path, home: rocketmq.Home) -> Iterator[Server]:
    """A broker, its name server and its proxy in a Java process of their own."""
    broker_folder = folder / "theirs"
    broker_folder.mkdir()
    pair = Authority(folder / "authority").pair()
    with serve_theirs(home, broker_folder, pair, config=_STORE_OF_THEIRS, machine=rocketmq.FAST_MACHINE) as server:

        def held(topic: str) -> int:
            queues = server.broker.status()["queues"]
            return sum(end - first for name, _, first, end in queues if name == topic)

        yield Server(
            server.endpoints,
            server.broker.peer.pid,
            lambda topic: server.create_topic(topic, "MIXED"),
            lambda group: server.create_group(group, fifo=False, attempts=17),
            held,
        )


@dataclass(frozen=True, slots=True)
class Done:
    """How many operations, how many a second, and the processor time for each, in microseconds."""

    count: int
    rate: float
    server_us: float
    client_us: float


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """A client, and the servers."""

    def __init__(self, client: Program, servers: dict[str, Server], milliseconds: int, received: int) -> None:
        self._client, self._servers = client, servers
        self._milliseconds, self._received = milliseconds, received

    def compare(
        self, what: str, turns: int, work: Callable[[Server], Done], ours: Server | None = None
    ) -> Iterator[Row]:
        """Three rows. `ours`: another server of txstore instead of the default one."""
        servers = self._servers if ours is None else self._servers | {_OURS: ours}
        done: dict[str, list[Done]] = {name: [] for name in servers}

        def once(name: str) -> float:
            done[name].append(work(servers[name]))
            return done[name][-1].rate

        rates = in_turns(turns, {name: partial(once, name) for name in servers})
        load = f"load {os.getloadavg()[0]:.0f}"
        yield from against("grpc", f"{what} ({load})", rates, _OURS, [_THEIRS])
        # The turns that counted are the last ones.
        for whose, of in (("server", attrgetter("server_us")), ("client", attrgetter("client_us"))):
            costs = {name: Measured(tuple(map(of, found[-turns:]))) for name, found in done.items()}
            text = f"{what}: the {whose}'s processor time for each"
            yield from against("grpc", text, costs, _OURS, [_THEIRS], unit="µs", less_is_better=True)

    def _load(self, server: Server, command: str, **facts: Any) -> Done:
        """Raises AssertionError if anything failed."""
        pids = server.pid, self._client.pid
        before = [processor_seconds(pid) for pid in pids]
        result = self._client.call(command, **facts)
        used = [processor_seconds(pid) - so_far for pid, so_far in zip(pids, before, strict=True)]
        assert result["failed"] == 0, result
        return Done(result["done"], float(result["rate"]), *(one * 1e6 / result["done"] for one in used))

    def send(self, server: Server, topic: str, threads: int, *, transactions: bool, milliseconds: int = 0) -> Done:
        """Messages or transactions. Raises AssertionError if one that was acknowledged is missing."""
        server.create(topic)
        before = server.held(topic)
        facts: dict[str, Any] = {"endpoints": server.endpoints, "topics": [topic]}
        if transactions:
            facts["answers"] = {}
        producer = self._client.call("producer.start", **facts)
        done = self._load(
            server,
            "load.send",
            handle=producer,
            topic=topic,
            threads=threads,
            milliseconds=milliseconds or self._milliseconds,
            body_bytes=BODY_BYTES,
            transactions=transactions,
        )
        self._client.call("stop", handle=producer)
        deadline = time.monotonic() + 30
        while (stored := server.held(topic) - before) < done.count and time.monotonic() < deadline:
            time.sleep(0.1)
        assert stored == done.count, f"{stored} of {done.count} acknowledged ones are there"
        return done

    def receive(self, server: Server, threads: int) -> Done:
        """Messages, each received and acknowledged, by a new group from a new topic."""
        name = f"received-{threads}-{next(_numbers)}"
        server.create(name)
        server.group(name)
        while (held := server.held(name)) < self._received:
            self.send(server, name, 32, transactions=False, milliseconds=500)
        facts = {"endpoints": server.endpoints, "group": name, "topic": name, "await_s": 5}
        consumer = self._client.call("simple.start", **facts)
        wanted = min(held, self._received)
        done = self._load(server, "load.receive", handle=consumer, threads=threads, milliseconds=60_000, wanted=wanted)
        self._client.call("stop", handle=consumer)
        assert done.count >= wanted, done
        return done

    def warm_up(self, server: Server) -> None:
        """Lets Java's compilers see all of the server's and the client's work but the receives."""
        for transactions in (False, True):
            self.send(server, "warm", 32, transactions=transactions, milliseconds=4 * self._milliseconds)


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows; quick: a second each instead of five."""
    milliseconds, received = (5_000, 10_000) if scale.part == 1 else (1_000, 2_000)
    with scratch() as folder, ExitStack() as stack:
        home = rocketmq.Home.build(folder)
        program_home = folder / "client"
        program_home.mkdir()
        client = stack.enter_context(CLIENTS["java"].start(program_home))
        servers = {_OURS: stack.enter_context(ours(folder)), _THEIRS: stack.enter_context(theirs(folder, home))}
        unsynced = stack.enter_context(ours(folder, "unsynced", transaction_flush_disk_type="ASYNC_FLUSH"))
        bench = Bench(client, servers, milliseconds, received)
        for server in (*servers.values(), unsynced):
            bench.warm_up(server)
        # RocketMQ's default syncs nothing before it answers. txstore's default syncs each half message.
        for kind, how, server_of_ours in (
            ("transactions", ", neither side synced", unsynced),
            ("transactions", ", our halves synced", None),
            ("sends", "", None),
        ):
            for threads in THREADS:
                yield from bench.compare(
                    f"{kind} of 1 KiB, {threads} thread{'s' * (threads > 1)}{how}",
                    scale.turns,
                    lambda server, kind=kind, threads=threads: bench.send(  # type: ignore[misc]
                        server, f"{kind}-{threads}", threads, transactions=kind == "transactions"
                    ),
                    server_of_ours,
                )
        for threads in THREADS:
            yield from bench.compare(
                f"receive by 32 and acknowledge each, {threads} thread{'s' * (threads > 1)}",
                scale.turns,
                lambda server, threads=threads: bench.receive(server, threads),  # type: ignore[misc]
            )


if __name__ == "__main__":
    alone("grpc_clients", __doc__, rows, "server")
