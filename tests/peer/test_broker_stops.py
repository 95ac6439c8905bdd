"""Guards the peer itself: a broker that was stopped has let go of its ports, so the next one can listen there."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.peer.rocketmq import SHORT_TIMES, SMALL, Peer
from tests.ports import free_port

pytestmark = pytest.mark.peer


def test_ports_are_free_when_a_broker_has_stopped(rocketmq: Peer, tmp_path: Path) -> None:
    port, slaves = free_port(below=2), free_port()
    taken = (port, port - 2, slaves)
    for _ in range(3):
        settings = SHORT_TIMES | {"listenPort": port}
        with rocketmq.broker(tmp_path / "store", config=SMALL | {"haListenPort": slaves}, settings=settings):
            for one in taken:
                with closing(socket.create_connection(("127.0.0.1", one), 10)):
                    pass
        for one in taken:
            with closing(socket.create_server(("", one))):
                pass
