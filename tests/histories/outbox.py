"""Runs processes that send messages within their own database transactions; kills and stops them, the broker and the
forwarder; returns what is wrong with the log afterwards.

In:     a database, a way to the log, a seed, a duration, a number of processes.
Out:    anomalies: a committed order without its message, with two, or a message without its order; a message group
        whose messages are not in the order of their commits.
Always: the database is the truth, because an order and its message are rows of one transaction. Rows are taken over
        after a shorter time than by default, so that many are, also from processes that continue later.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import txstore
from tests.database.conftest import SMALL, Kind
from tests.database.outbox_worker import group_of
from tests.histories.checker import Anomaly
from tests.histories.run import Report
from tests.ports import free_port
from tests.process import stop
from txstore.database import Database

__all__ = ["run_outbox_history", "wrong"]

_ROOT = Path(__file__).resolve().parents[2]
_TAKE_OVER_SECONDS = 1.0
_NUMBERS = 1_000_000  # Of the orders of one process.
_SETTLE_SECONDS = 600.0
_ENTRY = "import sys; from txstore.cli.main import main; sys.exit(main())"
_QUICK_ENTRY = f"import txstore.client.outbox_log as log; log._TAKE_OVER_SECONDS = {_TAKE_OVER_SECONDS}; {_ENTRY}"

_WORKERS_LOG, _FORWARDER_LOG = "workers.log", "forwarder.log"

Log = Literal["server", "shared"]


def run_outbox_history(folder: Path, kind: Kind, log: Log, seed: int, seconds: float, processes: int) -> Report:
    """Runs once in a folder of its own."""
    store = folder / "store"
    with txstore.open(store, **SMALL) as broker:
        broker.create_topic("orders", 1)
    Database(kind.address).create_table()
    run = _Run(folder, kind, store, log, random.Random(seed))
    try:
        run.start(processes)
        run.disturb(seconds)
        run.end()
    finally:
        run.kill_all()
    run.settle()
    with txstore.open(store, **SMALL) as broker:
        sent = [int(message.body) for message in _all_of(broker)]
    order = "rowid" if kind.name == "sqlite3" else "number"
    committed = [int(number) for (number,) in kind.rows(f"SELECT number FROM orders ORDER BY {order}")]
    (waiting,) = kind.rows("SELECT count(*) FROM txstore_outbox")[0]
    anomalies = wrong(committed, sent, in_commit_order=kind.name == "sqlite3")
    if waiting:
        anomalies.append(Anomaly("left", f"{waiting} rows are left"))
    return Report(seed, anomalies, {"committed": len(committed), **run.statistics, "taken over": run.taken_over()})


def wrong(committed: Sequence[int], sent: Sequence[int], *, in_commit_order: bool) -> list[Anomaly]:
    """Returns what is wrong with a log whose messages are `sent`, in its order.

    `in_commit_order`: `committed` has the order of the commits, and no transactions overlapped. Otherwise only the
    transactions of one process did not, and their numbers rise.
    """
    times = Counter(sent)
    known = set(committed)
    found = [Anomaly("lost", f"order {number} has no message") for number in committed if number not in times]
    found += [Anomaly("duplicate", f"order {number} has {many} messages") for number, many in times.items() if many > 1]
    found += [Anomaly("phantom", f"message {number} has no order") for number in times if number not in known]
    expected, there = (_by_group(numbers, in_commit_order) for numbers in (committed, sent))
    for group, numbers in there.items():
        if numbers != expected.get(group):
            found.append(Anomaly("order", f"group {group}: {_first_difference(expected.get(group, []), numbers)}"))
    return found


def _by_group(numbers: Iterable[int], in_commit_order: bool) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for number in numbers:
        group = group_of(number)
        if group is not None:
            found.setdefault((group, 0 if in_commit_order else number // _NUMBERS), []).append(number)
    return found


def _first_difference(expected: Sequence[int], there: Sequence[int]) -> str:
    for index, (one, other) in enumerate(itertools.zip_longest(expected, there)):
        if one != other:
            return f"at {index}, {other} instead of {one}"
    return "none"


def _all_of(broker: txstore.EmbeddedBroker) -> Iterable[txstore.StoredMessage]:
    for _, queue_id, offset, end in broker.queues("orders"):
        while offset < end:
            messages, offset = broker.read("orders", queue_id, offset, 256)
            yield from messages


@dataclass
class _Run:
    """The processes of a run."""

    folder: Path
    kind: Kind
    store: Path
    log: Log
    chance: random.Random
    statistics: dict[str, int] = field(default_factory=Counter)
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    forwarder: subprocess.Popen[str] | None = None
    server: subprocess.Popen[str] | None = None
    later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.to = str(self.store) if self.log == "shared" else f"127.0.0.1:{free_port()}"
        self.number = iter(self.numbers).__next__

    def start(self, processes: int) -> None:
        if self.log == "server":
            self.start_server()
        self.workers = [self.worker() for _ in range(processes)]
        self.start_forwarder()
        for worker in self.workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "open\n"

    def disturb(self, seconds: float) -> None:
        """Does so for some time, and until something of everything has happened."""
        until, pause = time.monotonic() + seconds, 0.1
        while (now := time.monotonic()) < until or not self.has_tried_all():
            while self.later and self.later[0][0] <= now:
                heapq.heappop(self.later)[2]()
            if now > until:
                pause *= 1.2  # A busy machine kills processes before they take anything over, unless they live longer.
            time.sleep(self.chance.uniform(0.2, 2) * pause)
            if self.forwarder is not None and self.forwarder.poll() is not None:
                self.start_forwarder()  # It ends if there is no broker when it starts.
            event = self.chance.random()
            if event < 0.2:
                self.kill_worker(self.chance.randrange(len(self.workers)))
            elif event < 0.35:
                self.stop_worker(self.chance.randrange(len(self.workers)))
            elif event < 0.4 and self.forwarder is not None:
                _kill(self.forwarder)
                self.forwarder = None
                self.statistics["forwarders killed"] += 1
                self.after(self.chance.uniform(0, 1), self.start_forwarder)
            elif event < 0.5 and self.server is not None:
                _kill(self.server)
                self.server = None
                self.statistics["brokers killed"] += 1
                self.after(self.chance.uniform(0, 2 * _TAKE_OVER_SECONDS), self.start_server)

    def has_tried_all(self) -> bool:
        events = ["processes killed", "processes stopped", *(["brokers killed"] if self.log == "server" else [])]
        return all(self.statistics[event] for event in events) and self.taken_over() > 0

    def end(self) -> None:
        """Lets everything that waits happen, so that stopped processes continue."""
        for _, _, action in sorted(self.later):
            action()
        self.later.clear()
        time.sleep(2 * _TAKE_OVER_SECONDS)  # The rows of stopped processes have been taken over: they send them, too.

    def settle(self) -> None:
        """Forwards what is left."""
        if self.log == "server":
            self.start_server()
        try:
            command = [sys.executable, "-c", _ENTRY, "forward", self.kind.address, "--to", self.to, "--once"]
            began = time.monotonic()
            subprocess.run(command, check=True, capture_output=True, timeout=_SETTLE_SECONDS)
            self.statistics["seconds to settle"] = round(time.monotonic() - began)
        finally:
            self.kill_all()

    def kill_all(self) -> None:
        for process in [*self.workers, self.forwarder, self.server]:
            if process is not None:
                _kill(process)
        self.workers, self.forwarder, self.server = [], None, None

    def taken_over(self) -> int:
        """Returns how many messages of others the processes have sent, as they say."""
        said = "".join((self.folder / name).read_text() for name in (_WORKERS_LOG, _FORWARDER_LOG))
        return sum(int(count) for count in re.findall(r"(\d+) messages that a process left", said))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.later, (time.monotonic() + seconds, self.number(), action))

    def kill_worker(self, index: int) -> None:
        _kill(self.workers[index])
        self.workers[index] = self.worker()
        self.statistics["processes killed"] += 1

    def stop_worker(self, index: int) -> None:
        """Stops a process, often for longer than until its rows are taken over."""
        stopped = self.workers[index]
        stop(stopped.pid)
        self.statistics["processes stopped"] += 1

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(stopped.pid, signal.SIGCONT)

        self.after(self.chance.uniform(0, 4 * _TAKE_OVER_SECONDS), resume)

    def worker(self) -> subprocess.Popen[str]:
        first, seed = self.number() * _NUMBERS, self.chance.randrange(1 << 30)
        command = [sys.executable, "-m", "tests.database.outbox_worker", self.kind.address, self.to]
        with (self.folder / _WORKERS_LOG).open("a") as log:
            return subprocess.Popen(
                [*command, str(first), "0", str(seed), str(_TAKE_OVER_SECONDS)], cwd=_ROOT, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def start_forwarder(self) -> None:
        command = [sys.executable, "-c", _QUICK_ENTRY, "forward", self.kind.address, "--to", self.to]
        with (self.folder / _FORWARDER_LOG).open("a") as log:
            self.forwarder = subprocess.Popen(command, stdout=log, stderr=log, text=True)

    def start_server(self) -> None:
        settings = [f"--set={name}={value}" for name, value in SMALL.items()]
        command = [sys.executable, "-c", _ENTRY, "serve", str(self.store), "--listen", self.to, "--name-server", "none"]
        with (self.folder / "server.log").open("a") as log:
            self.server = subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.server.stdout is not None
        assert self.to in self.server.stdout.readline()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
