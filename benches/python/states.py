"""Stores as a service leaves them, created and opened in processes of their own.

In:     `python -m benches.python.states fill PATH …` and `… open PATH`, or the functions that start these.
Out:    one line of JSON with seconds and memory.
Always: each opening is a new process, so its memory is the opening's alone; a crash is SIGKILL.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import txstore
from benches.python.loads import BATCH, BODY, GROUP, NOT_SYNCED, TOPIC
from benches.python.measure import anonymous_bytes
from txstore import LocalTransactionState, Message

__all__ = ["Opening", "copied", "filled", "opened"]

_ROOT = Path(__file__).resolve().parents[2]
_HALF_BODY = BODY[:128]


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening a store took."""

    seconds: float
    processor_seconds: float
    anonymous_bytes: int
    scanned_bytes: int
    pending: int
    pending_table_bytes: int
    clean: bool


def filled(path: Path, *, messages: int = 0, halves: int = 0, pending: int = 0, crash: bool = False) -> None:
    """Creates a store in a child; `pending` of its `halves` stay open. `crash`: it ends by SIGKILL."""
    numbers = [f"--messages={messages}", f"--halves={halves}", f"--pending={pending}"]
    command = [sys.executable, "-m", "benches.python.states", "fill", str(path), *numbers]
    run = subprocess.run([*command, *(["--crash"] if crash else [])], cwd=_ROOT, check=False)
    if run.returncode != (-signal.SIGKILL if crash else 0):
        raise RuntimeError(f"filling {path} ended with {run.returncode}")


def opened(path: Path, *, crash: bool = False) -> Opening:
    """Opens the store in a child and closes it again (`crash`: does not)."""
    command = [sys.executable, "-m", "benches.python.states", "open", str(path), *(["--crash"] if crash else [])]
    run = subprocess.run(command, cwd=_ROOT, check=False, capture_output=True, text=True)
    if run.returncode != (-signal.SIGKILL if crash else 0):
        raise RuntimeError(f"opening {path} ended with {run.returncode}: {run.stderr}")
    return Opening(**json.loads(run.stdout))


def copied(store: Path, to: Path) -> None:
    """A copy with its holes: most of a store's files are sparse. It is synced, as the files of a process that was
    killed some time ago: else a sync while opening would wait for the copy's bytes.
    """
    subprocess.run(["cp", "-r", "--sparse=always", store, to], check=True)
    subprocess.run(["sync", *(path for path in to.rglob("*") if path.is_file())], check=True)


def _fill(path: str, messages: int, halves: int, pending: int) -> None:
    day = timedelta(days=1)
    # However long it takes, no snapshot comes between the opening and the end.
    broker = txstore.open(path, transaction_timeout=day, snapshot_interval=day, **NOT_SYNCED)
    broker.create_topic(TOPIC)
    batch, queues = [Message(TOPIC, BODY)] * BATCH, [0] * BATCH
    for _ in range(messages // BATCH):
        broker.append_many(batch, queues)
    half, every = Message(TOPIC, _HALF_BODY), halves // pending if pending else 0
    for number in range(halves):
        sent = broker.prepare(half, 0, GROUP)
        if not every or number % every:
            broker.end_transaction(sent, LocalTransactionState.ROLLBACK, producer_group=GROUP)
    _leave(broker)


def _open(path: str) -> None:
    before = anonymous_bytes()
    start, processor = time.perf_counter(), time.process_time()
    broker = txstore.open(path, transaction_timeout=timedelta(days=1))
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    anonymous, stat, report = anonymous_bytes() - before, broker.stat(), broker.open_report
    facts = {
        "seconds": seconds,
        "processor_seconds": processor,
        "anonymous_bytes": anonymous,
        "scanned_bytes": report.scanned_bytes,
        "pending": stat.pending_transactions,
        "pending_table_bytes": stat.pending_table_bytes,
        "clean": report.clean,
    }
    print(json.dumps(facts), flush=True)
    _leave(broker)


def _leave(broker: txstore.EmbeddedBroker) -> None:
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.states")
    parser.add_argument("what", choices=["fill", "open"])
    parser.add_argument("path")
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--halves", type=int, default=0)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--crash", action="store_true", help="ends by SIGKILL")
    arguments = parser.parse_args()
    if arguments.what == "fill":
        _fill(arguments.path, arguments.messages, arguments.halves, arguments.pending)
    else:
        _open(arguments.path)


if __name__ == "__main__":
    main()
