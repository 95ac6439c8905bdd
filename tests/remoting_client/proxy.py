"""A proxy between clients and a port: its target can change, and it cuts connections within a frame.

In:     a local port.
Out:    another one.
Always: bytes are passed on in order, also those before a cut. Only the port in a name server's response is replaced.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Listens as soon as it is created."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.written_over: dict[bytes, bytes] = {}
        """Texts to replace in responses, each with another of the same length."""
        self.cuts: random.Random | None = None
        """While it is set, each connection is cut at a random byte."""
        self.cut = 0
        """The number of cut connections."""
        self.flows = threading.Event()
        """While it is not set, responses are held back."""
        self.flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop_all(self) -> None:
        """Closes every connection now."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.flows.set()
        self.drop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for one, other, back in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass_on, args=(one, other, back), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        left = self.cuts.randrange(200, 30_000) if self.cuts is not None else None
        with suppress(OSError):
            while data := one.recv(65_536):
                if left is not None and self.cuts is None:
                    left = None
                if left is not None and len(data) > left:
                    other.sendall(data[:left])
                    self.cut += 1
                    break
                left = None if left is None else left - len(data)
                for old, new in self.written_over.items() if back else ():
                    data = data.replace(old, new)
                if back:
                    self.flows.wait()
                other.sendall(data)
        self._end(one, other)

    def _end(self, one: socket.socket, other: socket.socket) -> None:
        """Closes one connection of the proxy."""
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= {one, other}
