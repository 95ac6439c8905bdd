"""Guards what protects a server from gRPC clients: TLS, accounts, and the limits that all clients share.

Requests as RocketMQ's Python client encodes them, signed, unsigned and signed by others; sockets by hand.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.grpc_wire import GrpcClient, GrpcWire, code, message, signed
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig

GRPC = ServerConfig(listen=None, name_server=None, grpc="127.0.0.1:0")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
ACCOUNTS = """
[shop-app]
secret_key = "secret-of-the-shop"
topics = { orders = "PUB" }

[reader-app]
secret_key = "secret-of-reader"
topics = { orders = "SUB" }
"""
SHOP = ("shop-app", "secret-of-the-shop")
READER = ("reader-app", "secret-of-reader")


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=0.1, transaction_check_max=10_000)
    broker.create_topic("orders")
    return broker


@pytest.fixture
def guarded(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Server]:
    """A server with accounts."""
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    with Server(broker, dataclasses.replace(GRPC, accounts=accounts)) as server:
        yield server


def connect(grpc_wire: GrpcWire, server: Server, client_id: str | None = None, **options: Any) -> GrpcClient:
    assert server.grpc is not None
    return grpc_wire.client(server.grpc, client_id, **options)


def connection(server: Server) -> socket.socket:
    assert server.grpc is not None
    host, _, port = server.grpc.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def is_closed(wire: socket.socket) -> bool:
    """Reads to the end; False if the server keeps the connection."""
    try:
        while wire.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# Accounts


def test_account_sends_to_its_topics_only(grpc_wire: GrpcWire, guarded: Server) -> None:
    shop, reader = connect(grpc_wire, guarded, account=SHOP), connect(grpc_wire, guarded, account=READER)
    assert code(shop.send(message("orders"))) == "OK"
    assert code(shop.send(message("salaries"))) == "FORBIDDEN"
    assert code(reader.send(message("orders"))) == "FORBIDDEN"
    assert guarded.counters()["requests_not_allowed"] == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "", "x-mq-date-time": ""},
        signed("shop-app", "another secret"),
        signed("nobody-here", "secret-of-the-shop"),
        {"x-mq-date-time": "20990101T000000Z"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=shop-app, SignedHeaders=x-mq-date-time, Signature=zz"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=shop-app, SignedHeaders=host, Signature=00"},
        {"authorization": "Basic c2hvcC1hcHA6eA=="},
    ],
    ids=["unsigned", "empty", "wrong-secret", "unknown", "other-date", "not-hex", "other-headers", "basic"],
)
def test_request_without_a_valid_signature_is_refused(
    grpc_wire: GrpcWire, guarded: Server, headers: dict[str, str]
) -> None:
    client = connect(grpc_wire, guarded, account=SHOP, headers=headers)
    if not headers:
        client.account = None
    assert code(client.call("QueryRoute", {"topic": {"name": "orders"}})) == "UNAUTHORIZED"
    assert code(client.send(message("orders"))) == "UNAUTHORIZED"
    assert client.telemetry().read()["ended"] == "UNAUTHENTICATED"
    assert guarded.broker.describe_topic("orders").messages == 0


@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace("shop-app", "shop-app//Rocketmq")])
def test_signatures_as_other_clients_write_them(grpc_wire: GrpcWire, guarded: Server, change: Any) -> None:
    headers = signed(*SHOP)
    start, _, signature = headers["authorization"].rpartition("=")
    text = start + "=" + signature.upper() if change is str.upper else change(headers["authorization"])
    client = connect(grpc_wire, guarded, headers=headers | {"authorization": text})
    assert code(client.send(message("orders"))) == "OK"


def test_end_needs_the_permission_for_the_half_message_itself(grpc_wire: GrpcWire, guarded: Server) -> None:
    shop, reader = connect(grpc_wire, guarded, account=SHOP), connect(grpc_wire, guarded, account=READER)
    entry = shop.send_half("orders")
    assert code(reader.end("orders", entry, "COMMIT")) == "FORBIDDEN"
    assert code(reader.end("news", entry, "COMMIT")) == "FORBIDDEN"
    assert code(shop.end("orders", entry, "COMMIT")) == "OK"


def test_check_reaches_only_an_account_that_may_publish(grpc_wire: GrpcWire, guarded: Server) -> None:
    shop, reader = connect(grpc_wire, guarded, account=SHOP), connect(grpc_wire, guarded, account=READER)
    listening = reader.telemetry()
    listening.publish("orders")
    entry = shop.send_half("orders")
    asked = shop.telemetry().read()["recover_orphaned_transaction_command"]
    assert asked["transaction_id"] == entry["transaction_id"]
    assert listening.read_if_any(0) is None


def test_client_id_of_another_account_is_another_client(grpc_wire: GrpcWire, guarded: Server) -> None:
    mine = connect(grpc_wire, guarded, "same", account=SHOP).telemetry()
    mine.publish("orders")
    theirs = connect(grpc_wire, guarded, "same", account=READER)
    theirs.telemetry().publish("orders")
    assert code(theirs.call("NotifyClientTermination", {})) == "OK"
    assert code(mine.publish("orders")) == "OK", "the stream is still there"


# TLS


def test_one_port_serves_tls_and_plain_connections(grpc_wire: GrpcWire, broker: EmbeddedBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    config = dataclasses.replace(GRPC, tls="permissive", **authority.pair().options)
    with Server(broker, config) as server:
        assert code(connect(grpc_wire, server, authority=authority.file).send(message("orders"))) == "OK"
        assert code(connect(grpc_wire, server).send(message("orders"))) == "OK"


def test_plain_connection_is_closed_where_tls_is_required(
    grpc_wire: GrpcWire, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    with Server(broker, dataclasses.replace(GRPC, **authority.pair().options)) as server:
        assert code(connect(grpc_wire, server, authority=authority.file).send(message("orders"))) == "OK"
        with connection(server) as plain:
            plain.sendall(PREFACE + SETTINGS)
            assert is_closed(plain)
        # It is counted after it was closed.
        eventually(lambda: server.counters()["handshakes_failed"] == 1)


# Limits


def test_connections_above_the_limit_are_closed(grpc_wire: GrpcWire, broker: EmbeddedBroker) -> None:
    with Server(broker, dataclasses.replace(GRPC, connections_max=2)) as server:
        with connection(server) as one, connection(server) as two:
            for kept in (one, two):
                kept.sendall(PREFACE + SETTINGS)
            eventually(lambda: server.counters()["connections"] == 2)
            with connection(server) as third:
                assert is_closed(third)
        assert server.counters()["connections_refused"] == 1
        eventually(lambda: server.counters()["connections"] == 0)


def test_more_clients_than_connections_are_refused(grpc_wire: GrpcWire, broker: EmbeddedBroker) -> None:
    with Server(broker, dataclasses.replace(GRPC, connections_max=2)) as server:
        client = connect(grpc_wire, server)
        for number in range(3):
            client.id = f"client-of-many-{number}"
            expected = "OK" if number < 2 else "TOO_MANY_REQUESTS"
            assert code(client.call("Heartbeat", {})) == expected


def test_connection_that_does_not_begin_is_closed(broker: EmbeddedBroker) -> None:
    with Server(broker, dataclasses.replace(GRPC, first_frame_timeout=0.2)) as server, connection(server) as wire:
        wire.sendall(PREFACE[:10])
        assert is_closed(wire)
        eventually(lambda: server.counters()["connections_dropped"] == 1)


def test_silent_connection_is_closed(broker: EmbeddedBroker) -> None:
    with Server(broker, dataclasses.replace(GRPC, idle_timeout=0.3)) as server, connection(server) as wire:
        wire.sendall(PREFACE + SETTINGS)
        assert is_closed(wire)


def test_bytes_that_are_not_http2_are_counted_and_logged(broker: EmbeddedBroker) -> None:
    with Server(broker, GRPC) as server, connection(server) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\0" * 64)
        assert is_closed(wire)
        eventually(lambda: server.counters()["frames_malformed"] == 1)


def test_clients_are_counted(grpc_wire: GrpcWire, broker: EmbeddedBroker) -> None:
    with Server(broker, GRPC) as server:
        client = connect(grpc_wire, server)
        client.telemetry().publish("orders")
        assert code(client.send(message("orders"))) == "OK"
        counters = server.counters()
        assert (counters["connections"], counters["grpc_clients"]) == (1, 1)
        assert counters["commands_in"] >= 2
        client.disconnect()
        eventually(lambda: server.counters()["connections"] == 0)
        assert server.counters()["memory_held"] < 1 << 20
