"""Brokers in processes of their own, at fixed addresses, to be killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pytest

from tests.peer import rocketmq as peer
from tests.ports import free_port
from tests.remoting_client.proxy import Proxy


class Restarted(Protocol):
    """A broker that may be killed and started again."""

    names: str
    may_ask_again: bool
    """Whether it checks transactions that it has committed."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class RocketMQ:
    """The real one; its name server's port changes, so clients connect through a proxy."""

    may_ask_again = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._home: peer.Home = request.getfixturevalue("peer_home")
        self._store = request.getfixturevalue("tmp_path") / "store"
        # RocketMQ listens at the port two below, too.
        self._settings = peer.SHORT_TIMES | {"transactionCheckMax": 15, "listenPort": free_port(below=2)}
        self._proxy = Proxy(1)
        self.names = self._proxy.address
        self._process: peer.Peer | None = None

    def start(self) -> None:
        self._process = self._home.start()
        broker = self._process.broker(self._store, config=peer.SMALL | peer.SHORT_DELAYS, settings=self._settings)
        self._proxy.target = int(broker.names.rpartition(":")[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
        self._proxy.close()


SOON_CHECKED = {"transaction_timeout": 1, "transaction_check_interval": 1}
SMALL = {
    "max_message_size": 1 << 16,
    "mapped_file_size_commit_log": 1 << 20,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}
SERVE = """
import json, sys, txstore
path, broker, names, options = sys.argv[1:]
with txstore.serve(path, listen=f"127.0.0.1:{broker}", name_server=f"127.0.0.1:{names}", **json.loads(options)):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Serve:
    """txstore serve."""

    may_ask_again = False

    def __init__(self, store: Path, **options: int) -> None:
        """The options are those of the store, in addition to short times of checks."""
        self.store = store
        self._options = json.dumps(SOON_CHECKED | options)
        self._ports = [str(free_port()), str(free_port())]
        self.names = f"127.0.0.1:{self._ports[1]}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, str(self.store), *self._ports, self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()


def _serve(request: pytest.FixtureRequest) -> Serve:
    return Serve(request.getfixturevalue("tmp_path") / "store", **SMALL)


BROKERS: dict[str, Any] = {"rocketmq": RocketMQ, "serve": _serve}
