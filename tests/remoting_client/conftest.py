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


@pytest.fixture
def remote(rocketmq_names: str) -> Iterator[RemoteBroker]:
    """A connection to a real RocketMQ."""
    with txstore.connect(rocketmq_names, rebalance_interval=1, poll_name_server_interval=1) as broker:
        yield broker


_NUMBERS = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """One of its own for each test, since the broker is shared."""
    return f"orders{next(_NUMBERS)}"
