"""Guards Java's own clients with TLS and accounts: they work with `txstore serve`, and learn nothing without them.

RocketMQ's rocketmq-client 5.4.0 with `tls.enable=true`, in a process that trusts only one authority; and with its own
AclClientRPCHook, against a server with accounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.certificates import Authority
from tests.peer import rocketmq as peer
from tests.remoting.test_java_clients import bodies, names_of, produce, push
from tests.waiting import eventually
from txstore import Server, ServerConfig

pytestmark = pytest.mark.peer

SHORT = {"transaction_timeout": 0.5, "transaction_check_interval": 0.5}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def java_by_tls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[peer.Peer]:
    """RocketMQ's clients with TLS; skips if Java or Maven's packages are not available."""
    try:
        home = peer.Home.build(tmp_path_factory.mktemp("java"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))
    believes = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.file,
        # Waits long enough for a machine with other work.
        "com.rocketmq.remoting.client.connect.timeout": 30_000,
    }
    with home.start((*peer.QUICK_MACHINE, *(f"-D{name}={value}" for name, value in believes.items()))) as process:
        yield process


def serve(path: Path, authority: Authority, **options: object) -> Server:
    config = ServerConfig(
        listen=f"127.0.0.1:{peer.Peer.free_port()}", name_server="127.0.0.1:0", **authority.pair().options
    )
    return txstore.serve(path, config=config, **SHORT, **options)  # type: ignore[arg-type]


def test_java_connects_with_tls(java_by_tls: peer.Peer, authority: Authority, tmp_path: Path) -> None:
    with serve(tmp_path / "store", authority) as server:
        with java_by_tls.producer(names_of(server), "payments") as producer:
            plans = {b"committed": ["COMMIT"], b"not": ["ROLLBACK"], b"checked": ["UNKNOWN", "COMMIT"]}
            producer.transactions([peer.message("orders", body, answers=plan) for body, plan in plans.items()])
            eventually(lambda: not server.broker.transactions(), 60)
        assert sorted(bodies(server, "orders")) == [b"checked", b"committed"]
        assert len(push(java_by_tls, server, 2)) == 2
        assert server.counters()["handshakes_failed"] == 0


def test_java_refuses_an_untrusted_server(java_by_tls: peer.Peer, tmp_path: Path) -> None:
    with serve(tmp_path / "store", Authority(tmp_path / "stranger")) as server:
        with pytest.raises(peer.PeerError):
            produce(java_by_tls, server, 1)
        eventually(lambda: server.counters()["handshakes_failed"] > 0)
        assert bodies(server, "orders") == []


def test_plain_java_client_is_refused(java: peer.Peer, authority: Authority, tmp_path: Path) -> None:
    with serve(tmp_path / "store", authority) as server:
        with pytest.raises(peer.PeerError):
            produce(java, server, 1)
        eventually(lambda: server.counters()["handshakes_failed"] > 0)
        assert bodies(server, "orders") == []
    with serve(tmp_path / "other", authority, tls="permissive") as server:
        assert produce(java, server, 3)["errors"] == []


# Accounts -------------------------------------------------------------------------------------------------------------

SHOP, READER, OPERATOR = (
    ("shop-app", "secret-of-the-shop"),
    ("reader-app", "secret-of-reader"),
    ("operator", "secret-of-op"),
)
ACCOUNTS = """
[shop-app]
secret_key = "secret-of-the-shop"
topics = { orders = "PUB" }

[reader-app]
secret_key = "secret-of-reader"
default_topic_perm = "SUB"
groups = { shipping = "SUB", lite = "SUB" }

[operator]
secret_key = "secret-of-op"
admin = true
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    """A store that is served to these accounts."""
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    config = ServerConfig(f"127.0.0.1:{peer.Peer.free_port()}", name_server="127.0.0.1:0", accounts=accounts)
    with txstore.serve(tmp_path / "store", config=config, **SHORT) as server:  # type: ignore[arg-type]
        yield server


def test_java_signs_its_requests(java: peer.Peer, guarded: Server) -> None:
    """Producers, checks, push and lite pull consumers with retries, mqadmin: all with RocketMQ's AclClientRPCHook."""
    names = names_of(guarded)
    with java.producer(names, "payments", account=SHOP) as producer:
        plans = {b"committed": ["COMMIT"], b"not": ["ROLLBACK"], b"checked": ["UNKNOWN", "COMMIT"]}
        producer.transactions([peer.message("orders", body, answers=plan) for body, plan in plans.items()])
        eventually(lambda: not guarded.broker.transactions(), 60)
        assert producer.batch([peer.message("orders", b"a"), peer.message("orders", b"b")])["status"] == "SEND_OK"
    assert sorted(bodies(guarded, "orders")) == [b"a", b"b", b"checked", b"committed"]
    assert produce(java, guarded, 4, **peer.signing(SHOP))["errors"] == []
    received = push(java, guarded, 9, fail="k2", times=1, timeout_ms=60_000, **peer.signing(READER))
    assert len({(message["topic"], message["body"], message["keys"]) for message in received}) == 8
    lite = java.call(
        "remote.lite_pull", names=names, group="lite", topic="orders", tags="*", wanted=8, **peer.signing(READER)
    )
    assert len(lite) == 8
    listed = java.call("remote.admin", names=names, arguments=["topicList", "-n", names], **peer.signing(OPERATOR))
    assert "orders" in listed
    assert (guarded.counters()["requests_not_signed"], guarded.counters()["requests_not_allowed"]) == (0, 0)


def test_java_reports_missing_permissions(java: peer.Peer, guarded: Server) -> None:
    wrong = {
        "nobody": ("No route info", "requests_not_signed", {}),
        "wrong": ("No route info", "requests_not_signed", peer.signing(("shop-app", "not-the-secret"))),
        "reader": ("may not send to topic orders", "requests_not_allowed", peer.signing(READER)),
    }
    for told, counter, account in wrong.values():
        before = guarded.counters()[counter]
        with pytest.raises(peer.PeerError, match=told):
            produce(java, guarded, 1, **account)
        assert guarded.counters()[counter] > before
    assert push(java, guarded, 1, timeout_ms=1_000, **peer.signing(SHOP)) == []
    assert guarded.broker.topics() == []
