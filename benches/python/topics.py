"""Measures what many topics cost: creating them, closing the store, and opening it after its process was killed.

In:     a folder and the number of topics.
Out:    seconds of each step.
Always: default settings. The killed process is a child that ends by SIGKILL after it sent to each topic.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import txstore
from txstore import Message

__all__ = ["seconds_of"]

_ROOT = Path(__file__).resolve().parents[2]


def seconds_of(folder: Path, topics: int) -> Mapping[str, float]:
    """Returns the seconds that each step took with that many topics."""
    path = folder / "store"
    found = {}
    start = time.perf_counter()
    broker = txstore.open(path)
    for number in range(topics):
        broker.create_topic(f"topic-{number}", 1)
    found["creating them, one call each"] = time.perf_counter() - start
    start = time.perf_counter()
    broker.close()
    found["closing the store after that"] = time.perf_counter() - start
    command = [sys.executable, "-m", "benches.python.topics", str(path), str(topics)]
    killed = subprocess.run(command, cwd=_ROOT, check=False)
    if killed.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the child ended with {killed.returncode} instead of SIGKILL")
    start = time.perf_counter()
    broker = txstore.open(path)
    found["opening after a kill, with a message in each"] = time.perf_counter() - start
    broker.close()
    return found


def _send_and_be_killed(path: str, topics: int) -> None:
    broker = txstore.open(path)
    producer = broker.producer("topics")
    for number in range(topics):
        producer.send(Message(f"topic-{number}", b"x" * 100))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _send_and_be_killed(sys.argv[1], int(sys.argv[2]))
