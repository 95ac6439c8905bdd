"""Measures the web console on a large store: how long each page takes, what it costs in memory, and in sends.

In:     `python -m benches.server.console [--pending N] [--topics N] [--store PATH] [--seconds N]`. A store at PATH is
        kept, and used again.
Out:    the median and the longest time of each page; the server's memory without a console, and with one after all
        pages; the rate of a client's sends with the overview and the transactions loaded every second, relative to
        the rate without.
Always: server and client are processes of their own; runs with and without viewers alternate, and the median counts.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import txstore
from tests.process import anonymous_bytes
from txstore import Message

DAY = 86_400
_ROUNDS = 15
_PAIRS = 15
_GROUPS = 1_000
_SERVER = """
import sys, txstore
later = {"transaction_check_interval": 86400, "transaction_timeout": 86400}
with txstore.serve(sys.argv[1], listen="127.0.0.1:0", name_server=None, console=sys.argv[2] or None, **later) as one:
    print(one.address, one.console, flush=True)
    sys.stdin.read()
"""
_VIEWER = """
import http.client, sys, time
while True:
    for path in ("/", "/transactions"):
        line = http.client.HTTPConnection(sys.argv[1], timeout=60)
        line.request("GET", path)
        line.getresponse().read()
        line.close()
    print(flush=True)
    time.sleep(1)
"""
PAGES = {
    "overview": "/",
    "pending, first page": "/transactions",
    "pending, far down": "/transactions?after={far}",
    "pending, by group": "/transactions?group=producers-7",
    "pending, by topic": "/transactions?topic=topic-00077",
    "pending, nothing fits": "/transactions?prefix=zzz",
    "by key": "/transactions?key=customer-{far}",
    "discarded": "/transactions?state=discarded",
    "topics": "/topics",
    "topics, by name": "/topics?q=99",
    "topic": "/topic?topic=topic-00005",
    "messages": "/messages?topic=topic-00005",
    "groups": "/groups",
    "group": "/group?group=group-0005",
    "dead letters": "/dead-letters",
    "delayed": "/delayed",
    "outbox": "/outbox",
    "settings": "/settings",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benches.server.console", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run of sends")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.store or Path(folder) / "store"
        if not path.exists():
            fill(path, chosen.pending, chosen.topics)
        with served(path, "") as (process, _, _):
            without = memory(process)
        with served(path, "127.0.0.1:0") as (process, address, console):
            show_pages(console, chosen.pending)
            print(f"memory: {without:,} MiB without a console, {memory(process):,} MiB after all pages")
            show_sends(address, console, chosen.seconds)


def fill(path: Path, pending: int, topics: int) -> None:
    """Makes the store: a message in each topic, and pending transactions of 50 producer groups."""
    config = txstore.BrokerConfig(
        transaction_flush_disk_type="ASYNC_FLUSH", transaction_check_interval=DAY, transaction_timeout=DAY
    )
    with txstore.open(path, config=config) as broker:
        for number in range(topics):
            broker.create_topic(f"topic-{number:05}", 4)
            broker.append(Message(f"topic-{number:05}", b"x"), 0)
        broker.create_groups([f"group-{number:04}" for number in range(_GROUPS)])
        for number in range(min(_GROUPS, topics)):
            broker.set_consumer_offset(f"topic-{number:05}", f"group-{number:04}", 0, number % 2)
        for number in range(pending):
            half = Message(f"topic-{number % topics:05}", b"half %d" % number, keys=[f"customer-{number}"])
            broker.prepare(half, 0, f"producers-{number % 50}", 0)


@contextmanager
def served(path: Path, console: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A server's process, its address, and its console's."""
    command = [sys.executable, "-c", _SERVER, str(path), console]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address, url = process.stdout.readline().split()
        yield process, address, url.removeprefix("http://")
        process.stdin.close()


def memory(process: subprocess.Popen[str]) -> int:
    """The process's own memory in MiB, without the pages of files."""
    return anonymous_bytes(process.pid) >> 20


def load(console: str, path: str) -> float:
    """Loads a page; returns the seconds."""
    began = time.perf_counter()
    line = http.client.HTTPConnection(console, timeout=60)
    line.request("GET", path)
    answer = line.getresponse()
    assert answer.status == 200, (path, answer.status)
    answer.read()
    line.close()
    return time.perf_counter() - began


def show_pages(console: str, pending: int) -> None:
    for name, path in PAGES.items():
        times = [load(console, path.format(far=pending * 9 // 10)) for _ in range(_ROUNDS)]
        print(
            f"{name:<22} median {statistics.median(times) * 1e3:6.1f} ms, longest {max(times) * 1e3:6.1f} ms",
            flush=True,
        )


def show_sends(address: str, console: str, seconds: float) -> None:
    ratios = []
    with txstore.connect(address) as broker:
        producer = broker.producer("bench")
        for _ in range(_PAIRS):
            alone = sends(producer, seconds)
            command = [sys.executable, "-c", _VIEWER, console]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as viewer:
                assert viewer.stdout is not None
                viewer.stdout.readline()  # Its start is not a viewer's cost.
                watched = sends(producer, seconds)
                viewer.kill()
            ratios.append(watched / alone)
            print(f"sends: {alone:,.0f} a second alone, {watched:,.0f} with viewers", flush=True)
    print(f"sends with viewers: {statistics.median(ratios):.3f} of those without")


def sends(producer: txstore.Producer, seconds: float) -> float:
    """Messages a second that one client sends."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        producer.send(Message("topic-00001", b"x" * 100))
        count += 1
    return count / took


if __name__ == "__main__":
    main()
