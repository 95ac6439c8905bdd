"""Measures what hostile clients do to an honest one, and to the memory of `txstore serve`.

In:     `python -m benches.server.floods [--seconds N] [--only WORD] [--crowd CONNECTIONS]`.
Out:    for each flood the times of an honest client's sends and pulls, its refused requests, and the server's memory
        and open files.
Always: server, honest client and flood run in processes of their own, each flood against a new server.

`--crowd` lets so many connections do one thing each instead, for the memory alone. "unsigned" floods a server with
accounts without one; "signed" by an account that may do little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tests.frames import Wire
from tests.hostile import CROWDS, FLOODS, TOPIC, Target
from tests.process import Watch
from tests.remoting_requests import PULL, SEND_V2, pulling, sending

Key = tuple[str, str]
Work = Callable[[Target], None]
HONEST: Key = ("honest-app", "secret-of-the-honest")
FLOODER: Key = ("flood-app", "secret-of-the-flooder")
ACCOUNTS = f"""
[{HONEST[0]}]
secret_key = "{HONEST[1]}"
topics = {{ orders = "PUB|SUB" }}
groups = {{ c = "SUB" }}

[{FLOODER[0]}]
secret_key = "{FLOODER[1]}"
topics = {{ {TOPIC} = "PUB|SUB" }}
default_group_perm = "SUB"
"""
_SPAWN = multiprocessing.get_context("spawn")
_PAUSE_SECONDS = 0.002


@dataclass
class Seen:
    """What an honest client experienced; times in seconds."""

    sends: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)
    refused: int = 0


@dataclass(frozen=True)
class Served:
    """A server's process."""

    address: str
    memory: Watch


@contextmanager
def serving(*, accounts: bool) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="txstore-floods-") as folder:
        entry = "import sys; from txstore.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", entry, "serve", f"{folder}/store", "--listen", "127.0.0.1:0"]
        command += ["--name-server", "none"]
        if accounts:
            file = Path(folder, "accounts.toml")
            file.touch(0o600)
            file.write_text(ACCOUNTS)
            command += ["--accounts", str(file)]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with Watch(lambda: process.pid) as memory:
                yield Served(address, memory)
        finally:
            process.terminate()
            process.wait(60)


def behave(address: str, account: Key | None, line: Connection) -> None:
    """An honest client: sends and pulls, until it is told to stop."""
    seen = Seen()
    with Wire(address, timeout=120, account=account) as wire:
        line.send("ready")
        while not line.poll():
            for times, code, fields, body in (
                (seen.sends, SEND_V2, sending(), b"x" * 100),
                (seen.pulls, PULL, pulling(), b""),
            ):
                began = time.perf_counter()
                answer = wire.call(code, fields, body)
                times.append(time.perf_counter() - began)
                seen.refused += answer.code != 0
            time.sleep(_PAUSE_SECONDS)
    line.send(seen)


def busy_loops(target: Target) -> None:
    """The load of a flood without its connections: a loop for the flooding client and one for the server's work."""
    other = _SPAWN.Process(target=_spin, args=(target.until,))
    other.start()
    _spin(target.until)
    other.join()


def _spin(until: float) -> None:
    while time.monotonic() < until:
        pass


def flood(work: Work, address: str, account: Key | None, seconds: float) -> None:
    work(Target(address, time.monotonic() + seconds, account))


def measure(work: Work | None, how: str, seconds: float) -> tuple[Seen, Watch]:
    """The honest client's times while the flood lasts, and the peaks of the server's memory and open files."""
    with serving(accounts=how != "open") as served:
        mine, its = _SPAWN.Pipe()
        honest = _SPAWN.Process(target=behave, args=(served.address, None if how == "open" else HONEST, its))
        honest.start()
        its.close()  # So that an end of the honest client is noticed.
        assert mine.recv() == "ready"
        if work is None:
            time.sleep(seconds)
        else:
            key = FLOODER if how == "signed" else None
            hostile = _SPAWN.Process(target=flood, args=(work, served.address, key, seconds))
            hostile.start()
            hostile.join()
        mine.send("stop")
        seen = mine.recv()
        honest.join()
        assert isinstance(seen, Seen)
        return seen, served.memory


def row(times: list[float]) -> str:
    """p50, p99 and the longest, in milliseconds."""
    ordered = sorted(times)
    picked = (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1])
    return " / ".join(f"{1000 * one:.1f}" for one in picked)


def report(name: str, how: str, work: Work | None, seconds: float) -> None:
    seen, peaks = measure(work, how, seconds)
    cells = (name, how, row(seen.sends), row(seen.pulls), seen.refused, peaks.peak_bytes >> 20, peaks.peak_files)
    print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each flood lasts")
    parser.add_argument("--only", default="", help="floods whose names have this word")
    parser.add_argument("--crowd", type=int, default=0, help="so many connections of each kind, for the memory alone")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{os.cpu_count()} processors, load {load}; times in ms: p50 / p99 / longest; "
        "memory: anonymous, peak; files: open, peak\n"
    )
    print("| flood | accounts | sends | pulls | refused | MiB | files |\n|---|---|---|---|---|---|---|")
    works: dict[str, Work] = dict(FLOODS)
    if arguments.crowd:
        works = {f"{arguments.crowd} x {name}": partial(_crowd, name, arguments.crowd) for name in CROWDS}
    for how in ("open",) if arguments.crowd else ("open", "unsigned", "signed"):
        report("none", how, None, arguments.seconds)
        if not arguments.crowd:
            report("busy loops instead", how, busy_loops, arguments.seconds)
        for name, work in works.items():
            if arguments.only in name:
                report(name, how, work, arguments.seconds)


def _crowd(name: str, count: int, target: Target) -> None:
    CROWDS[name](target, count)


if __name__ == "__main__":
    main()
