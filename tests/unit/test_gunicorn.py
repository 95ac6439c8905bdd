"""Guards a store that the workers of a real gunicorn share, with the application loaded before the fork or after it.

The process that writes is killed while the others serve. With `--preload` the workers' parent writes, so a worker is
killed there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txstore
from tests.ports import free_port
from tests.waiting import eventually
from txstore.broker.local_socket import read_holder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared stores are for Linux")
WORKERS = 4
APPLICATION = """
import os, txstore

broker = txstore.open({store!r}, shared=True)
producer = broker.producer("web")

def application(environ, start_response):
    producer.send(txstore.Message("orders", environ["QUERY_STRING"].encode()))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


@contextmanager
def gunicorn(folder: Path, *arguments: str) -> Iterator[tuple[int, str]]:
    """Serves the application; yields the parent's process id and the address."""
    (folder / "application.py").write_text(APPLICATION.format(store=str(folder / "store")))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gunicorn", "application", "--workers", str(WORKERS), "--bind", address]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--no-control-socket", *arguments], cwd=folder, stderr=log)
        try:
            yield process.pid, address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0, (folder / "log").read_text()
            finally:
                process.kill()
                process.wait()


class Shop:
    """A client of the application, which remembers what was acknowledged."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: list[bytes] = []
        self._next = 0

    def order(self) -> int | None:
        """Sends one order; returns the worker that answered, or None if none did."""
        body, self._next = f"order-{self._next}", self._next + 1
        try:
            with urllib.request.urlopen(f"http://{self.address}/?{body}", timeout=60) as answer:
                worker = int(answer.read())
        except (urllib.error.URLError, ConnectionError):
            return None
        self.acknowledged.append(body.encode())
        return worker

    def order_from(self, workers: int) -> set[int]:
        """Orders until that many workers have answered; returns them."""
        answered: set[int] = set()

        def has_all() -> bool:
            worker = self.order()
            if worker is not None:
                answered.add(worker)
            return len(answered) >= workers

        eventually(has_all)
        return answered


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "each worker for itself"])
def test_workers_share_a_store_over_the_death_of_one(tmp_path: Path, preload: bool) -> None:
    with gunicorn(tmp_path, *(["--preload"] if preload else [])) as (parent, address):
        shop = Shop(address)
        workers = shop.order_from(WORKERS)
        holder = read_holder(str(tmp_path / "store"))
        assert holder is not None
        if preload:
            assert holder.pid == parent
        else:
            assert holder.pid in workers
        killed = min(workers) if preload else holder.pid
        os.kill(killed, signal.SIGKILL)
        after = shop.order_from(WORKERS)
        assert killed not in after
    with txstore.open(tmp_path / "store") as broker, broker.consumer("readers", "orders") as consumer:
        stored: list[bytes] = []
        while batch := consumer.poll(100, timeout=0.1):
            stored += [message.body for message in batch]
        assert len(stored) == len(set(stored))
        assert set(shop.acknowledged) <= set(stored)
