"""Guards the count of attempts of RocketMQ's gRPC consumers against the end of the server.

A server that is killed while a message is in flight has handed it out, so the attempt counts: a message that ends the
server each time becomes a dead letter, as one does that its consumers send back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import txstore
from tests.grpc_wire import GrpcClient, GrpcWire, code, message
from tests.ports import free_port
from tests.unit.conftest import OpenStore
from tests.unit.test_cli_serve import serving
from tests.unit.test_grpc_consumers import (
    GROUP,
    GRPC,
    TOPIC,
    acknowledge,
    attempt_of,
    bodies,
    connect,
    receive,
    received,
)
from txstore import Message, Server

ORDERED = "ordered"
"""A group that keeps the order of each queue."""


@contextmanager
def killed(store: Path, wire: GrpcWire) -> Iterator[GrpcClient]:
    """A client of a server that is killed at the end. At a new address each time, because gRPC does not ask again at
    once at one where it was disconnected."""
    port = free_port()
    with serving(store, "--grpc", f"127.0.0.1:{port}") as (process, _):
        yield wire.client(f"127.0.0.1:{port}")
        process.kill()


def test_message_that_kills_the_server_each_time_becomes_a_dead_letter(tmp_path: Path, grpc_wire: GrpcWire) -> None:
    store = tmp_path / "store"
    groups = [{"name": GROUP}, {"name": ORDERED}]
    with txstore.open(store) as broker:
        broker.create_topic(TOPIC, 1)
        broker.create_group(GROUP, retry_max_times=2)
        broker.create_group(ORDERED, retry_max_times=2, consume_message_orderly=True)
        broker.append(Message(TOPIC, b"poison"), 0)
    for attempt in (1, 2, 3):
        with killed(store, grpc_wire) as client:
            for group in groups:
                (one,) = received(client, group=group)
                assert (bodies([one]), attempt_of(one)) == ([b"poison"], attempt), group
    with killed(store, grpc_wire) as client:
        assert code(client.send(message(TOPIC, b"next"))) == "OK"
        for group in groups:
            (one,) = received(client, group=group)
            assert (bodies([one]), attempt_of(one)) == ([b"next"], 1), group
            assert code(acknowledge(client, one, group=group)) == "OK"
            assert receive(client, group=group) == ("MESSAGE_NOT_FOUND", [])
    with txstore.open(store) as broker:
        for name in (GROUP, ORDERED):
            assert [letter.body for letter in broker.dead_letters(name)] == [b"poison"], name


def test_attempts_count_over_a_restart(open_store: OpenStore, grpc_wire: GrpcWire) -> None:
    for attempt in (1, 2, 3, 4):
        with open_store() as broker, Server(broker, GRPC) as server:
            if attempt == 1:
                broker.create_topic(TOPIC, 2)
                broker.append(Message(TOPIC, b"a"), 0)
                broker.append(Message(TOPIC, b"b"), 1)
            client = connect(grpc_wire, server)
            both = {bodies([one])[0]: one for _ in range(2) for one in received(client, batch_size=1)}
            assert {body: attempt_of(one) for body, one in both.items()} == {b"a": attempt, b"b": 1}
            # Only what is acknowledged begins again.
            assert code(acknowledge(client, both[b"b"])) == "OK"
            broker.append(Message(TOPIC, b"b"), 1)


def test_messages_that_were_in_flight_at_a_crash_come_alone(tmp_path: Path, grpc_wire: GrpcWire) -> None:
    """So that one that ends the server takes no others to the dead letters."""
    store = tmp_path / "store"
    with txstore.open(store) as broker:
        broker.create_topic(TOPIC, 1)
        for body in (b"a", b"b", b"c"):
            broker.append(Message(TOPIC, body), 0)
    with killed(store, grpc_wire) as client:
        assert len(received(client, batch_size=2)) == 2
    with killed(store, grpc_wire) as client:
        answers = [received(client) for _ in range(3)]
        assert [bodies(messages) for messages in answers] == [[b"a"], [b"b"], [b"c"]]
        assert [attempt_of(one) for (one,) in answers] == [2, 2, 1]
