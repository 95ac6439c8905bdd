"""The story: a Java team's own clients come by TLS to `txstore serve`, and are told nothing where they do not.

RocketMQ's rocketmq-client 5.4.0 with `tls.enable=true`, in a process that believes one authority alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.certificates import Authority
from tests.peer import rocketmq as peer
from tests.remoting.test_java_clients import bodies, names_of, produce, push, until
from txstore import Server, ServerConfig

SHORT = {"transaction_time_out": 0.5, "transaction_check_interval": 0.5}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def java_by_tls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[peer.Peer]:
    """RocketMQ's clients by TLS; skips where Java or Maven's packages cannot be had."""
    try:
        home = peer.Home.build(tmp_path_factory.mktemp("java"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))
    believes = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.file,
    }
    with home.start((*peer.QUICK_MACHINE, *(f"-D{name}={value}" for name, value in believes.items()))) as process:
        yield process


def serve(path: Path, authority: Authority, **options: object) -> Server:
    config = ServerConfig(
        listen=f"127.0.0.1:{peer.Peer.free_port()}", name_server="127.0.0.1:0", **authority.pair().options
    )
    return txstore.serve(path, config=config, **SHORT, **options)  # type: ignore[arg-type]


def test_java_comes_by_tls(java_by_tls: peer.Peer, authority: Authority, tmp_path: Path) -> None:
    with serve(tmp_path / "store", authority) as server:
        with java_by_tls.producer(names_of(server), "payments") as producer:
            plans = {b"committed": ["COMMIT"], b"not": ["ROLLBACK"], b"checked": ["UNKNOWN", "COMMIT"]}
            producer.transactions([peer.message("orders", body, answers=plan) for body, plan in plans.items()])
            until(lambda: not server.broker.transactions(), 30)
        assert sorted(bodies(server, "orders")) == [b"checked", b"committed"]
        assert len(push(java_by_tls, server, 2)) == 2
        assert server.counters()["handshakes_failed"] == 0


def test_java_does_not_talk_to_whom_it_does_not_believe(java_by_tls: peer.Peer, tmp_path: Path) -> None:
    with serve(tmp_path / "store", Authority(tmp_path / "stranger")) as server:
        with pytest.raises(peer.PeerError):
            produce(java_by_tls, server, 1)
        until(lambda: server.counters()["handshakes_failed"] > 0)
        assert bodies(server, "orders") == []


def test_plain_java_is_told_nothing(java: peer.Peer, authority: Authority, tmp_path: Path) -> None:
    with serve(tmp_path / "store", authority) as server:
        with pytest.raises(peer.PeerError):
            produce(java, server, 1)
        until(lambda: server.counters()["handshakes_failed"] > 0)
        assert bodies(server, "orders") == []
    with serve(tmp_path / "other", authority, tls="permissive") as server:
        assert produce(java, server, 3)["errors"] == []
