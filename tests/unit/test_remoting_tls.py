"""Guards TLS: nobody on the way reads the traffic, and a peer that cannot prove its identity gets no connection.

A server and clients with certificates that are made here; also invalid files, failed handshakes and bad clients. Java's
own client is in tests/remoting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.certificates import Authority, Pair
from tests.frames import Response, Wire
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig, errors
from txstore.server.listening import warn
from txstore.server.secrets import Secrets, TlsFiles

SEND_V2, PULL = 310, 11
SENDING = {"a": "g", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
PULLING = {
    "consumerGroup": "c", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no client or server trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@contextmanager
def serving(broker: EmbeddedBroker, pair: Pair, **options: Any) -> Iterator[Server]:
    config = ServerConfig("127.0.0.1:0", name_server="127.0.0.1:0", **pair.options, **options)
    with Server(broker, config) as server:
        yield server


def sends(address: str | None, tls: ssl.SSLContext | None) -> Response:
    """Sends one message over a connection of its own."""
    assert address is not None
    with Wire(address, tls=tls) as wire:
        return wire.call(SEND_V2, SENDING, b"x")


def stored(broker: EmbeddedBroker) -> int:
    return len(broker.store.scan(0, 1000)[0])


# Connections that work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_messages_go_both_ways(broker: EmbeddedBroker, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.context()
    context.maximum_version = context.minimum_version = version
    with serving(broker, authority.pair()) as server:
        assert sends(server.address, context).code == 0
        assert sends(server.name_server, context).code == 0
        assert server.address is not None
        with Wire(server.address, tls=context, binary=True) as wire:
            assert wire.call(PULL, PULLING).fields["nextBeginOffset"] == "2"
        assert server.counters()["handshakes_failed"] == 0


def test_large_response_arrives_though_it_is_read_late(broker: EmbeddedBroker, authority: Authority) -> None:
    """More than sockets and TLS hold: the rest is written when the client reads."""
    broker.create_topic("orders", 1)
    for number in range(8):
        broker.append(Message("orders", b"%d" % number * 60_000), 0)
    whole = b"".join(message.record for message in broker.read("orders", 0, 0)[0])
    with serving(broker, authority.pair()) as server:
        assert server.address is not None
        with Wire(server.address, tls=authority.context(), timeout=60) as wire:
            asked = [wire.write(PULL, PULLING) for _ in range(40)]
            eventually(lambda: server.counters()["bytes_out"] > 1 << 20)
            answers = [wire.read() for _ in asked]
            assert {answer.body for answer in answers} == {whole}
            assert sorted(answer.opaque for answer in answers) == asked
            body = b"y" * 65_000
            for _ in range(100):
                wire.write(SEND_V2, SENDING, body)
            assert [wire.read().code for _ in range(100)] == [0] * 100


def check(message: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


@pytest.mark.parametrize("way", ["file", "context"])
def test_our_clients_use_tls(broker: EmbeddedBroker, authority: Authority, way: str) -> None:
    tls = authority.file if way == "file" else authority.context()

    async def asynchronously(address: str) -> bytes:
        async with txstore.aio.connect(address, tls=tls) as there:
            async with there.transaction_producer("p", check_listener=check).transaction(Message("orders", b"two")):
                pass
            async with there.consumer("c2", "orders") as consumer:
                bodies = [message.body async for message in _first(consumer, 2)]
        return b" ".join(sorted(bodies))

    with serving(broker, authority.pair()) as server:
        assert server.name_server is not None
        with txstore.connect(server.name_server, tls=tls) as there:
            with there.transaction_producer("p", check_listener=check).transaction(Message("orders", b"one")):
                pass
            with there.consumer("c1", "orders") as consumer:
                assert [message.body for message in consumer.poll(timeout=20)] == [b"one"]
        assert asyncio.run(asynchronously(server.name_server)) == b"one two"


async def _first(consumer: txstore.aio.Consumer, count: int) -> Any:
    async for message in consumer:
        yield message
        count -= 1
        if not count:
            return


def test_permissive_accepts_plain_connections_too(broker: EmbeddedBroker, authority: Authority) -> None:
    with serving(broker, authority.pair(), tls="permissive") as server:
        for tls in (None, authority.context()):
            assert sends(server.address, tls).code == 0
            assert sends(server.name_server, tls).code == 0
        assert server.counters()["handshakes_failed"] == 0


def test_permissive_warns_where_others_can_listen(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """An address beyond this machine with accounts and TLS is fine, unless plain connections are accepted, too."""
    pair = authority.pair()
    for mode, warned in (("enforcing", False), ("permissive", True)):
        config = ServerConfig("192.0.2.1:10911", name_server=None, tls=mode, **pair.options)
        files = TlsFiles.read(config.tls_cert, config.tls_key, config.tls_ca, config.tls, 10.0)
        warn(config, Secrets(files, [], None))
        assert ("plain connections are accepted" in caplog.text) == warned


def test_unix_socket_stays_plain(broker: EmbeddedBroker, authority: Authority, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with serving(broker, authority.pair(), unix=path):
        assert sends(path, None).code == 0


def test_new_files_are_used_for_new_connections(
    broker: EmbeddedBroker, authority: Authority, stranger: Authority
) -> None:
    pair, other = authority.pair(), stranger.pair()
    with serving(broker, pair) as server:
        assert server.address is not None
        with Wire(server.address, tls=authority.context()) as old:
            good = pair.certificate.read_bytes()
            pair.certificate.write_bytes(b"nothing")
            with pytest.raises(errors.InvalidOptionError, match="tls_cert"):
                server.reload()
            assert sends(server.address, authority.context()).code == 0, "nothing changes"
            pair.certificate.write_bytes(other.certificate.read_bytes())
            pair.key.write_bytes(other.key.read_bytes())
            server.reload()
            assert sends(server.address, stranger.context()).code == 0
            assert old.call(SEND_V2, SENDING, b"x").code == 0
        assert good != pair.certificate.read_bytes()


# Peers that are refused -----------------------------------------------------------------------------------------------


def test_plain_connections_are_refused(broker: EmbeddedBroker, authority: Authority) -> None:
    with serving(broker, authority.pair()) as server:
        assert server.address is not None
        with Wire(server.address) as wire, pytest.raises(ConnectionError):
            wire.call(SEND_V2, SENDING, b"x")
        with pytest.raises(errors.BrokerUnreachableError, match="it may require TLS"):
            txstore.connect(str(server.name_server))
        eventually(lambda: server.counters()["connections"] == 0)
        counters = server.counters()
        assert (counters["handshakes_failed"], counters["connections_dropped"]) == (2, 2)
        assert sends(server.address, authority.context()).code == 0
    assert stored(broker) == 1


def test_client_sends_nothing_to_an_untrusted_server(
    broker: EmbeddedBroker, authority: Authority, stranger: Authority
) -> None:
    wrong = {
        "its authority as tls=FILE": serving(broker, stranger.pair()),
        "must name the address's host": serving(broker, authority.pair("elsewhere.test")),
    }
    for hint, context in wrong.items():
        with context as server:
            with pytest.raises(errors.BrokerUnreachableError, match=hint):
                txstore.connect(str(server.name_server), tls=authority.file)
            eventually(lambda counters=server.counters: counters()["handshakes_failed"] >= 1)  # type: ignore[misc]
    assert stored(broker) == 0


def test_clients_show_a_certificate_when_required(
    broker: EmbeddedBroker, authority: Authority, stranger: Authority
) -> None:
    with serving(broker, authority.pair(), tls_ca=authority.file) as server:
        assert sends(server.address, authority.context(authority.pair())).code == 0
        for pair in (None, stranger.pair()):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                sends(server.address, authority.context(pair))
            with pytest.raises(errors.BrokerUnreachableError):
                txstore.connect(str(server.name_server), tls=authority.context(pair))
        eventually(lambda: server.counters()["handshakes_failed"] == 4)
        with txstore.connect(str(server.name_server), tls=authority.context(authority.pair())) as there:
            there.producer("g").send(Message("orders", b"x"))
    assert stored(broker) == 2


def test_incomplete_handshake_does_not_block_others(broker: EmbeddedBroker, authority: Authority) -> None:
    """Also one that comes byte by byte, or sends nothing at all; other clients are served meanwhile."""
    hello = ssl.MemoryBIO()
    context = authority.context()
    client = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    first = hello.read()
    with serving(broker, authority.pair(), tls_handshake_timeout=4.0) as server:
        assert server.address is not None
        host, _, port = server.address.rpartition(":")
        lines = [socket.create_connection((host, int(port)), 15) for _ in range(3)]
        try:
            lines[0].sendall(first[:40])
            lines[1].sendall(first)
            assert sends(server.address, context).code == 0
            for line in lines:
                with contextlib.suppress(ConnectionError):
                    while line.recv(4096):  # The server's own half of the handshake, then the connection's end.
                        pass
        finally:
            for line in lines:
                line.close()
        eventually(lambda: server.counters()["handshakes_failed"] == 3)


def test_malformed_handshake_closes_the_connection(broker: EmbeddedBroker, authority: Authority) -> None:
    with serving(broker, authority.pair(), tls="permissive") as server:
        assert server.address is not None
        for garbage in (b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x16" + b"\0" * 100):
            with Wire(server.address) as wire:
                try:
                    wire.socket.sendall(garbage)
                    while wire.socket.recv(4096):
                        pass
                except ConnectionError:
                    pass
        eventually(lambda: server.counters()["handshakes_failed"] == 2)


def test_bytes_changed_on_the_way_close_the_connection(broker: EmbeddedBroker, authority: Authority) -> None:
    with serving(broker, authority.pair()) as server:
        assert server.address is not None
        with Wire(server.address, tls=authority.context()) as wire:
            assert wire.call(SEND_V2, SENDING, b"x").code == 0
            # A TLS record from a peer without the key, sent below the TLS of this side.
            os.write(wire.socket.fileno(), b"\x17\x03\x03\x00\x40" + b"\x55" * 64)
            assert wire.closed()
        eventually(lambda: server.counters()["connections"] == 0)
        assert (server.counters()["frames_malformed"], server.counters()["connections_dropped"]) == (1, 1)
    assert stored(broker) == 1


def test_close_does_not_wait_for_a_handshake(broker: EmbeddedBroker, authority: Authority) -> None:
    with serving(broker, authority.pair(), tls_handshake_timeout=600) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            eventually(lambda: server.counters()["connections"] == 1)
            server.close()
            assert wire.closed()


# Files ----------------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"tls_key": None}, "tls_key is missing"),
    "no certificate": ({"tls_cert": None}, "tls_cert is missing"),
    "an authority alone": ({"tls_cert": None, "tls_key": None}, "tls_cert is missing"),
    "missing": ({"tls_cert": "nowhere.pem"}, "tls_cert 'nowhere.pem' cannot be read: No such file"),
    "a directory": ({"tls_key": os.curdir}, "tls_key '.' cannot be read: Is a directory"),
    "certificate for key": ({"tls_key": "CERT"}, "tls_key.*expected a private key in PEM"),
    "key for certificate": ({"tls_cert": "KEY"}, "tls_cert.*there is no certificate in it"),
    "key for authority": ({"tls_ca": "KEY"}, "tls_ca.*there is no certificate in it"),
    "another's key": ({"tls_key": "OTHER"}, "tls_key.*not the certificate's key"),
    "torn certificate": ({"tls_cert": "TORN"}, "tls_cert.*no certificate"),
    "unknown mode": ({"tls": "maybe"}, "must be enforcing or permissive"),
    "no time": ({"tls_handshake_timeout": 0}, "tls_handshake_timeout"),
}


@pytest.mark.parametrize("name", FILES)
def test_invalid_files_are_reported(broker: EmbeddedBroker, authority: Authority, tmp_path: Path, name: str) -> None:
    changes, told = FILES[name]
    pair = authority.pair()
    torn = tmp_path / "torn.pem"
    torn.write_bytes(b"-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    known = {"CERT": pair.certificate, "KEY": pair.key, "OTHER": authority.pair().key, "TORN": torn}
    options = pair.options | {"tls_ca": authority.file} | changes
    options = {key: known.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
    with pytest.raises(errors.InvalidOptionError, match=told) as caught:
        Server(broker, ServerConfig("127.0.0.1:0", name_server=None, **options))
    assert caught.value.option in (*changes, "tls_cert")
    assert "hint:" in str(caught.value) or name in ("torn certificate", "unknown mode", "no time")


def test_client_reports_what_is_wrong_with_its_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for given, told in (
        (tmp_path / "nowhere", "No such file"),
        (empty, "contains no certificate"),
        (17, "expected a bool"),
    ):
        with pytest.raises(errors.InvalidOptionError, match=told) as caught:
            txstore.connect("127.0.0.1:9", tls=given)  # type: ignore[arg-type]
        assert caught.value.option == "tls"


def test_account_is_revoked_though_a_certificate_is_invalid(
    broker: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    """A certificate that is half replaced keeps no account valid."""
    pair, accounts = authority.pair(), tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text('[shop-app]\nsecret_key = "secret-of-the-shop"\nadmin = true\n')
    with serving(broker, pair, accounts=accounts) as server:
        pair.certificate.write_bytes(b"half a certificate")
        accounts.write_text('[operator]\nsecret_key = "secret-of-the-operator"\nadmin = true\n')
        server._reload_if_changed()
        assert not server.native.may_send("shop-app", "orders")
        assert server.native.may_send("operator", "orders")
