"""Guards fairness of the server: one client that sends or names as much as it can does not stop the others.

Every flood continues until another client has been answered: if it stops the others, that client runs into its time
limit.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frames import Wire, frame, json_header
from tests.remoting_requests import END, HEARTBEAT, PULL, ROUTE, SEND_V2, UPDATE_OFFSET, heartbeat, pulling, sending
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig
from txstore._native import RemotingRequest, ResponseCode

ONE_THREAD = ServerConfig(listen="127.0.0.1:0", name_server=None, io_threads=1)
UNKNOWN_CODE = 9_999
ONE_WAY, RESPONSE = 2, 1


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ONE_THREAD) as server:
        yield server


def connect(server: Server, **options: Any) -> Wire:
    assert server.address is not None
    return Wire(server.address, **options)


@contextlib.contextmanager
def flooding(server: Server, request: bytes) -> Iterator[None]:
    """A connection that sends the same frame as fast as it can, and reads all responses."""
    stop = threading.Event()
    wire = connect(server)
    wire.socket.settimeout(None)
    bytes_of_many = request * max(1, 500_000 // len(request))

    def send() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                wire.socket.sendall(bytes_of_many)

    def read() -> None:
        with contextlib.suppress(OSError):
            while wire.socket.recv(1 << 20):
                pass

    threads = [threading.Thread(target=send), threading.Thread(target=read)]
    before = server.counters()["commands_in"]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: server.native.counters()["commands_in"] > before + 1_000)
        yield
    finally:
        stop.set()
        wire.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        wire.close()


FLOODS = {
    "pulls without a waiting client": frame(json_header(PULL, pulling(queue_offset=1), 1, ONE_WAY)),
    "unsolicited responses": frame(json_header(0, {}, 1, RESPONSE)),
    "ordinary sends": frame(json_header(SEND_V2, sending("flood"), 1), b"x" * 100),
    "codes of the server's own": frame(json_header(-7, {}, 1, ONE_WAY)),
    "ends of no transaction": frame(json_header(END, {"producerGroup": "g"}, 1, ONE_WAY)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_busy_connection_does_not_stop_the_others(server: Server, broker: EmbeddedBroker, name: str) -> None:
    broker.create_topic("flood", 1)
    with connect(server, timeout=20) as bystander:
        assert bystander.call(SEND_V2, sending(), b"x").code == 0
        with flooding(server, FLOODS[name]):
            for _ in range(50):
                assert bystander.call(PULL, pulling()).code == 0
            with connect(server, timeout=20) as late:
                assert late.call(PULL, pulling()).code == 0


def test_unsigned_requests_do_not_stop_the_others(broker: EmbeddedBroker, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text('[shop-app]\nsecret_key = "secret-of-the-shop"\nadmin = true\n')
    config = ServerConfig("127.0.0.1:0", name_server=None, io_threads=1, accounts=accounts)
    with (
        Server(broker, config) as server,
        connect(server, timeout=20, account=("shop-app", "secret-of-the-shop")) as bystander,
    ):
        assert bystander.call(SEND_V2, sending(), b"x").code == 0
        with flooding(server, frame(json_header(SEND_V2, sending(), 1), b"x" * 100)):
            for _ in range(50):
                assert bystander.call(PULL, pulling()).code == 0


# Requests that Python decides -----------------------------------------------------------------------------------------


class Held:
    """Python decides nothing until it is released; then `order` grows by the code of each request."""

    def __init__(self, server: Server) -> None:
        self.release = threading.Event()
        self.order: list[int] = []
        dispatch = server._dispatch

        def wait(event: Any) -> None:
            self.release.wait(60)
            if isinstance(event, RemotingRequest):
                self.order.append(event.code)
            dispatch(event)

        server._dispatch = wait  # type: ignore[method-assign]


@pytest.fixture
def held(server: Server) -> Iterator[Held]:
    held = Held(server)
    yield held
    held.release.set()


def test_flood_of_one_connection_leaves_room_for_the_requests_of_others(server: Server, held: Held) -> None:
    """Requests that wait for Python have a share for each connection, and the connections take turns."""
    update = {"consumerGroup": "c", "topic": "orders", "queueId": 0, "commitOffset": 0}
    one = frame(json_header(UPDATE_OFFSET, update, 1, ONE_WAY))
    with connect(server) as flood, connect(server, timeout=30) as bystander:
        flood.socket.sendall(one * 12_000)
        eventually(lambda: server.native.counters()["commands_in"] == 12_000)
        assert server.native.counters()["requests_waiting"] < 2_000, "the share of one connection"
        opaque = bystander.write(ROUTE, {"topic": "TBW102"})
        eventually(lambda: server.native.counters()["commands_in"] == 12_001)
        held.release.set()
        answer = bystander.read()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert held.order.index(ROUTE) < 5, "it waited for its turn, not for the end of the flood"


def test_connections_without_a_frame_do_not_fill_the_queue(server: Server, held: Held) -> None:
    with connect(server) as wire:
        wire.write(ROUTE, {"topic": "TBW102"})
        for _ in range(300):
            connect(server).close()
        eventually(lambda: server.native.counters()["connections"] == 1)
        assert server.native.counters()["requests_waiting"] <= 1
        held.release.set()
        assert wire.read().code == 0


def test_events_that_are_only_logged_are_bounded(server: Server, held: Held) -> None:
    """A warning about each malformed connection would fill the queue, and the disk with logs."""
    for _ in range(1_000):
        with connect(server) as wire:
            wire.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert wire.closed()
    assert server.native.counters()["requests_waiting"] < 300
    assert server.native.counters()["frames_malformed"] == 1_000
    held.release.set()


def test_heartbeat_with_many_groups_is_one_change(
    server: Server, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand groups, each with its retry topic: each table is written once."""
    written: list[str] = []
    for table in (broker._topics, broker._groups):
        files = table._files

        class Counting:
            def config_text(self, name: str) -> str | None:
                return files.config_text(name)  # noqa: B023

            def set_config_text(self, name: str, text: str) -> None:
                written.append(name)
                files.set_config_text(name, text)  # noqa: B023

        monkeypatch.setattr(table, "_files", Counting())
        monkeypatch.setattr(table, "_write_later", None)  # Which a slow disk makes of it.
    with connect(server, timeout=60) as wire, connect(server) as bystander:
        assert bystander.call(SEND_V2, sending(), b"x").code == 0
        written.clear()
        groups = [f"g{number}" for number in range(1_000)]
        assert wire.call(HEARTBEAT, {}, heartbeat("c", *groups)).code == 0
        assert sorted(written) == ["subscriptionGroup.json", "topics.json"]
        assert set(groups) <= set(broker.groups())
        assert broker.read_queues("%RETRY%g999") == (0,)
        assert wire.call(HEARTBEAT, {}, heartbeat("c", *groups)).code == 0
        assert len(written) == 2


def test_new_group_requests_no_known_topic_again(server: Server, held: Held) -> None:
    """Sending to a known topic does not need Python, whatever else Python does."""
    with connect(server, timeout=30) as wire:
        opaque = wire.write(SEND_V2, sending(), b"x")
        held.release.set()
        assert wire.read().opaque == opaque
        assert wire.call(HEARTBEAT, {}, heartbeat("c", "fresh")).code == 0
        busy = Held(server)
        try:
            assert wire.call(SEND_V2, sending(), b"y").code == 0
        finally:
            busy.release.set()


# Long queues ----------------------------------------------------------------------------------------------------------


def test_pull_by_a_rare_tag_stops_after_a_bound(open_store: OpenStore) -> None:
    broker = open_store(transaction_check_interval=3600)
    broker.create_topic("orders", 1)
    many = [Message("orders", b"x", tags="common")] * 1_000
    for _ in range(40):
        broker.append_many(many, [0] * len(many))
    broker.append(Message("orders", b"found", tags="rare"), 0)
    with Server(broker, ONE_THREAD) as server, connect(server) as wire:
        at, pulls = 0, 0
        while True:
            pulled = wire.call(PULL, pulling(queue_offset=at, subscription="rare"))
            pulls += 1
            step = int(pulled.fields["nextBeginOffset"]) - at
            assert 0 < step <= 16_384
            at += step
            if pulled.code == 0:
                break
            assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (at, pulls) == (40_001, 3)
        assert pulled.body == broker.read("orders", 0, 40_000)[0][0].record
