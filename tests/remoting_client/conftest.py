"""Fixtures of the remoting tests: a real RocketMQ, one for all tests of a run that need not kill it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from txstore.remoting.broker import RemoteBroker

# Checks soon, and retries after a second.
BROKER_SETTINGS: dict[str, Any] = peer.SHORT_TIMES | {"transactionCheckMax": 15}


@pytest.fixture(scope="session")
def peer_home(tmp_path_factory: pytest.TempPathFactory) -> peer.Home:
    """Where processes of the peer start; skips where Java or Maven's packages cannot be had."""
    try:
        return peer.Home.build(tmp_path_factory.mktemp("rocketmq"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def peer_process(peer_home: peer.Home) -> Iterator[peer.Peer]:
    with peer_home.start() as process:
        yield process


@pytest.fixture(scope="session")
def rocketmq_names(peer_process: peer.Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server's address of a real broker."""
    store = tmp_path_factory.mktemp("broker") / "store"
    config = peer.SMALL | peer.SHORT_DELAYS
    with peer_process.broker(store, config=config, settings=BROKER_SETTINGS) as broker:
        yield broker.names


@pytest.fixture(scope="session")
def serve_names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of txstore serve."""
    if not hasattr(txstore, "serve"):
        pytest.skip("this txstore has no server")
    options = {"transaction_time_out": 1, "transaction_check_interval": 1, "max_message_size": 1 << 16}
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
    path = tmp_path_factory.mktemp("serve") / "store"
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **options, **sizes) as server:
        yield server.name_server


@pytest.fixture(scope="session", params=["rocketmq", "serve"])
def names(request: pytest.FixtureRequest) -> str:
    """Where a broker is: a real RocketMQ, and txstore's own server."""
    address = request.getfixturevalue(f"{request.param}_names")
    assert isinstance(address, str)
    return address


@pytest.fixture
def remote(names: str) -> Iterator[RemoteBroker]:
    """A connection to it."""
    with txstore.connect(names, rebalance_interval=1, poll_name_server_interval=1) as broker:
        yield broker


_NUMBERS = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """One of its own for each test, since the broker is shared."""
    return f"orders{next(_NUMBERS)}"
