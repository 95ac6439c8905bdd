"""Wrong variants of `txstore serve`, which the histories must find.

python -m tests.histories.wrong VARIANT serve …

    visible   readers see what is not copied yet
    copies    a message is acknowledged before its copies exist; readers see only what is copied
    epoch     a source that was replaced continues to write
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import txstore.server.server
from txstore.cli.main import main
from txstore.server.listening import listen as right_listen
from txstore.server.node_calls import NodeCalls
from txstore.server.server import Server

right_init = Server.__init__


def _always(show: Callable[[Server], None]) -> None:
    """Lets each server show something again and again, until it ends."""

    def repeat(server: Server) -> None:
        while not server.closed:
            show(server)
            time.sleep(0.001)

    def begin(self: Server, *arguments: Any, **options: Any) -> None:
        right_init(self, *arguments, **options)
        threading.Thread(target=repeat, args=(self,), daemon=True).start()

    Server.__init__ = begin  # type: ignore[method-assign]


def visible() -> None:
    _always(lambda server: server.broker.store.show_up_to(server.broker.store.appended_end))


def copies() -> None:
    def listen(broker: Any, config: Any, secrets: Any, local: Any) -> Any:
        return right_listen(broker, dataclasses.replace(config, replicas_required=1), secrets, local)

    def show(server: Server) -> None:
        for row in server.native.replicas():
            server.broker.store.show_up_to(row[1])

    txstore.server.server.listen = listen  # type: ignore[attr-defined]
    _always(show)


def epoch() -> None:
    def accept_epoch(self: NodeCalls, epoch: int, source: str, store_id: str) -> int:
        return int(self._broker.store.appended_end)

    NodeCalls.accept_epoch = accept_epoch  # type: ignore[method-assign]


if __name__ == "__main__":
    {"visible": visible, "copies": copies, "epoch": epoch}[sys.argv.pop(1)]()
    sys.exit(main())
