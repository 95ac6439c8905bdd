"""`txstore serve` in a process of its own, which tests stop, kill and start again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txstore
from tests.database.conftest import SMALL
from tests.ports import free_port
from tests.process import paused

__all__ = ["TXSTORE", "Served", "served", "store"]

TXSTORE = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]
_SETTINGS = [f"--set={name}={value}" for name, value in SMALL.items()]


class Served:
    """`txstore serve`, which a test stops, kills and starts again at the same address."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [*TXSTORE, "serve", str(self._store), "--listen", self.address, "--name-server", "none", *_SETTINGS]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert self.address in self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        with paused(self.pid):
            yield


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the topic of the messages."""
    path = tmp_path / "store"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 1)
    return path


@pytest.fixture
def served(store: Path) -> Iterator[Served]:
    made = Served(store)
    made.start()
    yield made
    made.kill()
