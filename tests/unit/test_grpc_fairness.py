"""Guards other clients from a gRPC client that asks as fast as it can, does not end its request, or reads no answer.

A flood continues until another client has been answered: if it stops the others, that client runs into its time limit.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.frames import Wire
from tests.grpc_wire import GrpcClient, GrpcWire, code, message
from tests.remoting_requests import SEND_V2, sending
from tests.unit.conftest import OpenStore
from tests.unit.test_grpc_consumers import GROUP, GRPC, TOPIC, bodies, connect, receive, received
from tests.unit.test_grpc_guarded import PREFACE, SETTINGS, connection, is_closed
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server

ONE_THREAD = dataclasses.replace(GRPC, listen="127.0.0.1:0", io_threads=1)
AT_ONCE = 16
MANY = 300
LIMIT_S = 20.0
NONE = {"type": "TAG", "expression": "nobody-sends-this"}


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    broker = open_store()
    broker.create_topic(TOPIC, 2)
    return broker


@contextmanager
def flooding(server: Server, request: Callable[[], object]) -> Iterator[None]:
    """One client that always has so many requests at the server."""
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            request()

    before = server.counters()["commands_in"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        flooding = [pool.submit(flood) for _ in range(AT_ONCE)]
        try:
            eventually(lambda: server.counters()["commands_in"] > before + MANY)
            yield
        finally:
            stop.set()
        for one in flooding:
            one.result()


FLOODS: dict[str, Callable[[GrpcClient], object]] = {
    "sends": lambda client: client.send(message(TOPIC, bytes(1_000))),
    "ends of no transaction": lambda client: client.end(
        TOPIC, {"message_id": "a", "transaction_id": "0" * 32}, "COMMIT"
    ),
    "receives that find nothing": lambda client: receive(client, group={"name": "idle"}, filter_expression=NONE),
}


@pytest.mark.parametrize("name", FLOODS)
def test_busy_client_does_not_stop_the_others(broker: EmbeddedBroker, grpc_wire: GrpcWire, name: str) -> None:
    with Server(broker, ONE_THREAD) as server:
        busy, other = connect(grpc_wire, server), connect(grpc_wire, server)
        with flooding(server, lambda: FLOODS[name](busy)), Wire(server.address or "", timeout=LIMIT_S) as classic:
            for _ in range(10):
                assert code(other.call("SendMessage", {"messages": [message(TOPIC)]}, LIMIT_S)) == "OK"
                assert classic.call(SEND_V2, sending(TOPIC), b"x").code == 0


def headers(path: str) -> bytes:
    """A HEADERS frame of stream 1 that does not end the request."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc", "te": "trailers"}
    block = b"".join(
        b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode()) for name, value in fields.items()
    )
    return len(block).to_bytes(3) + b"\x01\x04" + (1).to_bytes(4) + block


def test_request_that_does_not_end_is_disconnected(broker: EmbeddedBroker) -> None:
    config = dataclasses.replace(GRPC, frame_timeout=0.3)
    with Server(broker, config) as server, connection(server) as unfinished:
        unfinished.sendall(PREFACE + SETTINGS + headers("/apache.rocketmq.v2.MessagingService/QueryRoute"))
        assert is_closed(unfinished)
        eventually(lambda: server.counters()["connections_dropped"] == 1)


def test_client_that_reads_no_answer_is_disconnected_and_others_get_its_messages(
    broker: EmbeddedBroker, grpc_wire: GrpcWire
) -> None:
    for number in range(16):
        broker.append(Message(TOPIC, bytes(60_000)), number % 2)
    # A new connection is looked at after the time for its first frame.
    config = dataclasses.replace(GRPC, unread_timeout=2, first_frame_timeout=2)
    with Server(broker, config) as server:
        slow, other = grpc_wire.client(server.grpc or "", reads_ahead=False), connect(grpc_wire, server)
        slow.receive_unread(
            {
                "group": {"name": GROUP},
                "message_queue": {"topic": {"name": TOPIC}},
                "batch_size": 32,
                "auto_renew": True,
                "long_polling_timeout": "1s",
            }
        )
        eventually(lambda: server.counters()["connections_dropped"] == 1)
        # What HTTP/2 had taken may have arrived; the rest is visible at once.
        assert len(bodies(received(other))) >= 8
