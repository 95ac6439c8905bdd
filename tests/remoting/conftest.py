"""Fixtures of the server's tests with real clients: a Java process, and a store that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.peer import rocketmq as peer
from txstore import Server, ServerConfig


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peer.Peer]:
    """One process with RocketMQ's clients; skips if Java or Maven's packages are not available."""
    try:
        home = peer.Home.build(tmp_path_factory.mktemp("java"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))
    with home.start() as process:
        yield process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A store that is served, with checks that come soon."""
    # A fixed port: ids of messages contain it.
    config = ServerConfig(listen=f"127.0.0.1:{peer.Peer.free_port()}", name_server="127.0.0.1:0")
    # A client that has just started must answer a check before the next is sent.
    short = {"transaction_timeout": 1.5, "transaction_check_interval": 2, "transaction_check_max": 3}
    with txstore.serve(tmp_path / "store", config=config, **short) as server:  # type: ignore[arg-type]
        yield server
