"""Guards transactions of Java's clients on a server that is killed and restarted: acknowledged messages exist,
committed ones exactly once, rolled back ones never; the checks settle what the kill left open.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer

_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())", "serve"]
_SETTINGS = ["transaction_timeout=1", "transaction_check_interval=1", "mapped_file_size_commit_log=1048576"]
_THREADS = 4


class Killable:
    """A server's process at fixed ports, to be killed and started again."""

    def __init__(self, path: Path) -> None:
        self.names = f"127.0.0.1:{peer.Peer.free_port()}"
        listen = f"127.0.0.1:{peer.Peer.free_port()}"
        settings = [word for setting in _SETTINGS for word in ("--set", setting)]
        # The largest body must fit the small files.
        settings += ["--set", "max_message_size=65536"]
        self._command = [*_ENTRY, str(path), "--listen", listen, "--name-server", self.names, *settings]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("broker")

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.peer
@pytest.mark.kill
def test_transactions_survive_a_killed_server(java: peer.Peer, tmp_path: Path) -> None:
    server = Killable(tmp_path / "store")
    kills = int(os.environ.get("TXSTORE_SERVER_KILLS", "3"))
    stopped = threading.Event()
    answers: list[dict[str, Any]] = []
    try:
        with java.producer(server.names, "payments", otherwise=["ROLLBACK"]) as producer:

            def send(thread: int) -> None:
                for number in itertools.count():
                    if stopped.wait(0.002):
                        return
                    answers.extend(producer.transactions([planned(thread, number)]))

            with ThreadPoolExecutor(_THREADS) as threads:
                sending = [threads.submit(send, thread) for thread in range(_THREADS)]
                for _ in range(kills):
                    time.sleep(1.0)
                    server.kill()
                    server.start()
                time.sleep(1.0)
                stopped.set()
            for future in sending:
                future.result()
            with txstore.open(tmp_path / "store", read_only=True) as broker:
                until_settled(broker)
    finally:
        server.stop()
    with txstore.open(tmp_path / "store", read_only=True) as broker:
        found = Counter(
            message.body.decode()
            for queue_id in broker.read_queues("orders")
            for message in broker.read("orders", queue_id, 0, 10_000)[0]
        )
    acknowledged = {answer["name"] for answer in answers if answer.get("status") == "SEND_OK"}
    assert len(acknowledged) > 100, Counter(str(answer.get("error"))[:200] for answer in answers)
    assert len(acknowledged) < len(answers), "no kill hit anything"
    assert [body for body, times in found.items() if times > 1] == [], "committed twice"
    assert {body for body in found if body.startswith("rollback")} == set(), "rolled back, but read"
    assert {body for body in acknowledged if body.startswith("commit")} - set(found) == set(), "lost"


def planned(thread: int, number: int) -> dict[str, Any]:
    """A transaction that is named by its body: every other one is to be rolled back."""
    plan = ("commit", "rollback")[number % 2]
    name = f"{plan}-{thread}-{number}"
    return peer.message("orders", name.encode(), name=name, answers=[plan.upper()])


def until_settled(broker: txstore.EmbeddedBroker) -> None:
    """Waits until no transaction has been pending for two seconds."""
    end, quiet = time.monotonic() + 60, 0.0
    while quiet < 2:
        assert time.monotonic() < end, broker.transactions()
        time.sleep(0.1)
        quiet = 0 if broker.transactions() else quiet + 0.1
