"""Runs clients in processes, a server that is killed and stopped, and a faulty network between them; returns the
history.

In:     a seed, a duration, a number of clients.
Out:    the history, and statistics of what happened.
Always: the store is opened here in the end, when no transaction is pending and all was read, or a time has passed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

import txstore
from tests.histories.checker import MISSING, Anomaly, History, anomalies, events_of
from tests.histories.clients import NEW, SETTINGS, TOPIC
from tests.histories.lost_tail import LostTail
from tests.histories.proxy import FAULTS, FaultyProxy
from tests.hostile import FLOODS
from tests.peer.rocketmq import Peer
from tests.process import Watch
from tests.waiting import eventually

_ROOT = Path(__file__).resolve().parents[2]
QUEUES = 16
CLIENTS_OF_A_PROCESS = 8
_SETTLE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a run was, and what is wrong with it."""

    seed: int
    anomalies: list[Anomaly]
    statistics: dict[str, int]

    def __str__(self) -> str:
        words = ", ".join(f"{count} {what}" for what, count in self.statistics.items())
        kinds = Counter(anomaly.kind for anomaly in self.anomalies)
        return f"seed {self.seed}: {words}; anomalies: {dict(kinds) or 'none'}"


ENTRY = ["-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]


class Server:
    """`txstore serve` in a process, at a fixed port."""

    def __init__(
        self, path: Path, advertised: str, port: int, *options: str, entry: Sequence[str] = tuple(ENTRY)
    ) -> None:
        """`options`: more of its arguments, which `start` can replace. `entry`: the program's arguments of Python."""
        settings = [word for name, value in NEW.items() for word in ("--set", f"{name}={value}")]
        addresses = ["--listen", f"127.0.0.1:{port}", "--name-server", "none", "--advertise", advertised]
        self._command = [sys.executable, *entry, "serve", str(path), *addresses, *settings]
        self._log = path.with_name(f"{path.name}.log")
        self._options = options
        self.port: int = port
        self.start()

    def start(self, *options: str) -> None:
        self._options = options or self._options
        command = [*self._command, *self._options]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_ROOT)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("broker"), self._log.read_text()[-2_000:]

    def end(self, *, kill: bool) -> None:
        (self.process.kill if kill else self.process.terminate)()
        assert self.process.wait(60) == (-9 if kill else 0)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.end(kill=True)


class Clients:
    """A process of clients."""

    def __init__(self, address: str, log: Path, seed: int, first: int, count: int, how: str) -> None:
        self.log = log
        words = [address, str(log), str(seed), str(first), str(count), how]
        command = [sys.executable, "-m", "tests.histories.clients", *words]
        with log.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT,
                env=os.environ,
            )  # fmt: skip

    def ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._errors()

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self.tell("end")
        self._process.communicate(timeout=120)
        assert self._process.returncode == 0, self._errors()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _errors(self) -> str:
        return self.log.with_suffix(".err").read_text()[-4_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()


Load: TypeAlias = Literal["none", "floods", "busy"]
"""The additional load: none, a client that floods the server in each way for 2 s, or two processes that compute,
which is as much processor load without connections."""


def run_history(folder: Path, seed: int, seconds: float, clients: int, restarts: int, *, load: Load = "none") -> Report:
    """Runs once in a folder of its own. `restarts`: the server is killed and stopped properly, by turns."""
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    store = folder / "store"
    with txstore.open(store, **NEW) as broker:
        broker.create_topic(TOPIC, QUEUES)
    port = Peer.free_port()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultyProxy(port, seed))
        server = stack.enter_context(Server(store, proxy.address, port))
        groups = [
            stack.enter_context(
                Clients(
                    proxy.address,
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
        proxy.faults = 0.02
        memory = stack.enter_context(Watch(lambda: server.process.pid))
        for number, command in enumerate(_commands_of(load, f"127.0.0.1:{port}")):
            stack.enter_context(_running(command, folder / f"load-{number}.err"))
        for turn in range(restarts):
            time.sleep(seconds / (restarts + 1))
            server.end(kill=turn % 2 == 0)
            time.sleep(chance.uniform(0.0, 1.0))
            server.start()
        time.sleep(seconds / (restarts + 1))
        eventually(lambda: all(proxy.happened[fault] > 3 for fault in FAULTS))
        for group in groups:
            group.tell("stop")
        proxy.faults = 0.0
        waited = settle(store, groups)
        for group in groups:
            group.end()
        server.end(kill=False)
    history = history_of(store, [group.log for group in groups], proxy.delivered)
    statistics = statistics_of(history) | dict(sorted(proxy.happened.items())) | {"seconds to settle": round(waited)}
    statistics |= {"MiB at most": memory.peak_bytes >> 20} | _tenths(memory.samples)
    return Report(seed, anomalies(history), statistics)


def _commands_of(load: Load, address: str) -> list[list[str]]:
    if load == "floods":
        # Long sends differ from short ones in size only, and would fill the disk in an hour.
        return [[sys.executable, "-m", "tests.hostile", address, "1e9", *sorted(FLOODS.keys() - {"long sends"})]]
    return [[sys.executable, "-c", "while True: pass"]] * (2 if load == "busy" else 0)


@contextmanager
def _running(command: list[str], errors: Path) -> Iterator[None]:
    """Runs a process until the end."""
    with errors.open("w") as file:
        process = subprocess.Popen(command, stderr=file, cwd=_ROOT)
    try:
        yield
        assert process.poll() is None, errors.read_text()[-4_000:]
    finally:
        process.kill()
        process.wait()


def settle(store: Path, groups: Sequence[Clients]) -> float:
    """Waits until no transaction is pending and all that is stored was read. Returns how long that took."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < _SETTLE_SECONDS:
        time.sleep(0.5)
        with txstore.open(store, read_only=True) as broker:
            if broker.transactions():
                continue
            names = {name for queue in _stored(broker).values() for name in queue}
        read = History(events_of(group.log for group in groups), {}, {}).rows()
        if names <= {name for _, name in read}:
            break
    return waited


def history_of(store: Path, logs: list[Path], delivered: Counter[str], tail: LostTail | None = None) -> History:
    """`tail`: what was lost, of which clients were told."""
    clients = events_of(logs)
    if tail is not None:
        clients = tail.without(clients)
    with txstore.open(store, **SETTINGS) as broker:
        halves = {event["name"]: event["id"] for client in clients for event in client if event["what"] == "half"}
        outcomes = {name: _outcome(broker, half) for name, half in halves.items()}
        return History(clients, delivered, _stored(broker), outcomes)


def _outcome(broker: txstore.EmbeddedBroker, half: str) -> str:
    try:
        return broker.transaction(half).state.value
    except txstore.TransactionNotFoundError:
        return MISSING


def _stored(broker: txstore.EmbeddedBroker) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for queue in broker.read_queues(TOPIC):
        found[queue], at = [], 0
        while True:
            messages, at = broker.read(TOPIC, queue, at, 1_000)
            if not messages:
                break
            assert [message.queue_offset for message in messages] == list(range(len(found[queue]), at))
            found[queue] += [message.body.decode() for message in messages]
    return found


def _tenths(samples: list[int]) -> dict[str, int]:
    """The least memory of the server in each tenth of the run, in MiB. Memory that it never frees shows as a rise."""
    size = max(1, len(samples) // 10)
    return {f"MiB at least, tenth {at + 1}": min(samples[at * size :][:size], default=0) >> 20 for at in range(10)}


def statistics_of(history: History) -> dict[str, int]:
    times = sorted(event["ms"] for event in history.of("sent")) or [0.0]
    told = Counter(event["outcome"] for event in history.of("told"))
    return {
        "sends acknowledged": sum(1 for _ in history.of("sent")),
        **{f"ms of a send, p{part}": round(times[len(times) * part // 100]) for part in (50, 99)},
        "half messages": sum(1 for _ in history.of("half")),
        **dict(sorted(told.items())),
        "failed": sum(1 for _ in history.of("failed")),
        "stored": sum(map(len, history.stored.values())),
        "reads": sum(1 for _ in history.rows()),
    }
