"""Fixtures of the remoting tests: a real RocketMQ and txstore's own server, one each for all tests of a run.

What runs on RocketMQ is in the tier `peer`; the same on txstore's server and on a store in this process in `test`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from txstore.client.broker import RemoteBroker

# Checks soon, and retries after a second.
BROKER_SETTINGS: dict[str, Any] = peer.SHORT_TIMES | {"transactionCheckMax": 15}
# Changes are seen soon; timeouts suit a machine with other work.
SOON: dict[str, Any] = {
    "rebalance_interval": 1,
    "poll_name_server_interval": 1,
    "send_msg_timeout": 15,
    "request_timeout": 10,
    "end_timeout": 10,
}
STORE_SETTINGS: dict[str, Any] = {
    "transaction_timeout": 1,
    "transaction_check_interval": 1,
    "max_message_size": 1 << 16,
    "mapped_file_size_commit_log": 1 << 20,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
ON_ROCKETMQ = pytest.param("rocketmq", marks=pytest.mark.peer)


@pytest.fixture(scope="session")
def peer_home(tmp_path_factory: pytest.TempPathFactory) -> peer.Home:
    """The folder in which peer processes start; skips if Java or Maven's packages are not available."""
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
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[txstore.Server]:
    """A store served as `txstore serve` does it."""
    path = tmp_path_factory.mktemp("serve") / "store"
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **STORE_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def serve_names(served: txstore.Server) -> str:
    """Its address."""
    assert served.name_server is not None
    return served.name_server


@pytest.fixture(scope="session", params=[ON_ROCKETMQ, "serve"])
def names(request: pytest.FixtureRequest) -> str:
    """The address of a broker: a real RocketMQ, and txstore's own server."""
    address = request.getfixturevalue(f"{request.param}_names")
    assert isinstance(address, str)
    return address


@pytest.fixture
def remote(names: str) -> Iterator[RemoteBroker]:
    """A connection to it."""
    with txstore.connect(names, **SOON) as broker:
        yield broker


_NUMBERS = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A topic of its own for each test, since the broker is shared."""
    return f"orders{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[txstore.EmbeddedBroker]:
    with txstore.open(tmp_path_factory.mktemp("embedded") / "store", **STORE_SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="session", params=["embedded", "serve", ON_ROCKETMQ])
def any_broker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The store in this process, txstore's own server, and a real RocketMQ: the same program, one line changed."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    names = request.getfixturevalue(f"{request.param}_names")
    with txstore.connect(names, **SOON) as broker:
        yield broker
