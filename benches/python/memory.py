"""Measures the memory of `txstore serve` while very many messages pass through it, sent in batches and consumed.

In:     `python -m benches.python.memory [--messages N] [--folder FOLDER]` (10,000,000; about 400 bytes of disk each).
Out:    at each tenth, what the server holds: its own memory (RssAnon), pages of mapped files (RssFile), threads; and
        the rate.
Always: server, sender and consumer are processes of their own; each message is consumed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import txstore
from tests.peer.rocketmq import Peer
from txstore import Message

BODY_BYTES = 128
BATCH = 1_000
_TOPIC = "orders"
_PATIENT: dict[str, Any] = {"send_msg_timeout": 60, "request_timeout": 60}


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """An address, and the process that serves it."""
    address = f"127.0.0.1:{Peer.free_port()}"
    command = [sys.executable, "-m", "txstore.cli.main", "serve", str(folder / "store")]
    command += ["--listen", address, "--name-server", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("broker")
    try:
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def send(address: str, messages: int) -> None:
    """The sender's process."""
    body = b"x" * BODY_BYTES
    with txstore.connect(address, **_PATIENT) as broker:
        producer = broker.producer("senders")
        for number in range(messages // BATCH):
            producer.send_batch([Message(_TOPIC, body)] * BATCH, queue_id=number % 4)


def held(pid: int) -> dict[str, int]:
    """RssAnon and RssFile in KiB, and Threads, as the kernel counts them."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssFile:", "Threads:")}


def consume(address: str, pid: int, messages: int) -> None:
    """Reads all of it; yields a row at each tenth."""
    began, read, step = time.monotonic(), 0, messages // 10
    with (
        txstore.connect(address, pull_batch_size=1_024, pull_threshold_for_queue=8_192) as broker,
        broker.consumer("readers", _TOPIC) as consumer,
    ):
        due = 0
        while read < messages:
            if read >= due:
                tell(pid, read, time.monotonic() - began)
                due += step
            read += len(consumer.poll(1_024, 5.0))
        tell(pid, read, time.monotonic() - began)


def tell(pid: int, read: int, seconds: float) -> None:
    """A row."""
    facts = held(pid)
    own, mapped = facts["RssAnon"] / 1024, facts["RssFile"] / 1024
    rate = read / max(seconds, 0.001)
    words = f"{own:6.1f} MiB RssAnon {mapped:8.1f} MiB RssFile {facts['Threads']:3} threads {rate:8,.0f}/s"
    print(f"{read:>11,} consumed {words}", flush=True)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where the store is created, and removed")
    parser.add_argument("--send", metavar="ADDRESS", help="the sender's part alone")
    given = parser.parse_args()
    if given.send is not None:
        send(given.send, given.messages)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, served(Path(folder)) as (address, pid):
        command = [sys.executable, "-m", "benches.python.memory", "--messages", str(given.messages), "--send", address]
        with subprocess.Popen(command) as sender:
            try:
                consume(address, pid, given.messages)
            finally:
                sender.terminate()


if __name__ == "__main__":
    main()
