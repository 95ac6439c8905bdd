"""A server as a process of its own, to be killed and started again at the same address.

In:     a store's directory.
Out:    the address of its name server.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

__all__ = ["Server"]

SERVE = """
import sys, txstore
path, listen, names = sys.argv[1:]
options = dict(transaction_check_interval=1, transaction_timeout=1, mapped_file_size_commit_log=1 << 24)
with txstore.serve(path, listen=listen, name_server=names, **options):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Server:
    """The server as a process, at one address."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
        self.brokers = self._addresses[1]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, str(self.path), *self._addresses]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
