"""Guards what the end of a server or a client does to deliveries to consumers of RocketMQ's gRPC protocol.

An attempt counts that a kill ended, as do those that ended before.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txstore
from tests.grpc_wire import GrpcClient, GrpcWire, code, message
from tests.ports import free_port
from tests.unit.test_cli_serve import serving
from tests.unit.test_grpc_consumers import GROUP, TOPIC, Facts, attempt_of, change, receive, received
from tests.waiting import eventually

pytestmark = [pytest.mark.torture, pytest.mark.kill]


def failed(client: GrpcClient) -> int:
    """Receives the one message and gives it back at once; the number of the attempt."""
    (one,) = received(client)
    assert base64.b64decode(one["body"]) == b"poison"
    assert code(change(client, one)) == "OK"
    return attempt_of(one)


def is_stored(store: Path, queue: str, offset: int) -> bool:
    """Whether a crash no longer forgets the group's offset."""
    # RocketMQ writes numbers as names without quotes.
    said = re.sub(r"(\d+):", r'"\1":', (store / "config" / "consumerOffset.json").read_text())
    return bool(json.loads(said)["offsetTable"].get(queue, {}).get("0") == offset)


def test_attempts_count_whatever_ends_them(tmp_path: Path) -> None:
    store, wire = tmp_path / "store", GrpcWire(tmp_path / "wire")
    with txstore.open(store) as broker:
        broker.create_topic(TOPIC, 1)
        broker.create_group(GROUP, retry_max_times=4)

    @contextmanager
    def served() -> Iterator[tuple[subprocess.Popen[str], GrpcClient]]:
        # At a new address each time, because gRPC does not ask again at once at one where it was disconnected.
        address = f"127.0.0.1:{free_port()}"
        with serving(store, "--grpc", address, "--set", "flush_consumer_offset_interval=0.1") as (process, _):
            yield process, wire.client(address)

    with wire.program:
        with served() as (process, client):
            assert code(client.send(message(TOPIC, b"poison"))) == "OK"
            assert [failed(client), attempt_of(received(client)[0])] == [1, 2]
            process.kill()
        with served() as (process, client):
            assert [failed(client), attempt_of(received(client)[0])] == [3, 4]
            # Otherwise the move of this run is repeated, and there are two copies.
            eventually(lambda: is_stored(store, f"%RETRY%{GROUP}@{GROUP}%{TOPIC}", 1))
            process.kill()
        with served() as (process, client):
            assert attempt_of(received(client)[0]) == 5
            process.terminate()
            process.wait(60)
        with served() as (_, client):
            assert receive(client) == ("MESSAGE_NOT_FOUND", [])
    with txstore.open(store) as broker:
        assert [letter.body for letter in broker.dead_letters(GROUP)] == [b"poison"]


def test_messages_of_a_client_that_vanishes_come_again_before_their_time(tmp_path: Path) -> None:
    port, wire = free_port(), GrpcWire(tmp_path / "wire")
    with wire.program, serving(tmp_path / "store", "--grpc", f"127.0.0.1:{port}"):
        vanishing, other = (wire.client(f"127.0.0.1:{port}") for _ in range(2))
        assert code(vanishing.send(message(TOPIC, b"held"))) == "OK"
        subscription = {"client_type": "PUSH_CONSUMER", "subscription": {"group": {"name": GROUP}}}
        stream = vanishing.telemetry()
        stream.send({"settings": subscription})
        assert "settings" in stream.read()
        # Invisible for as long as the client lives, up to three hours.
        assert attempt_of(received(vanishing, invisible_duration=None, auto_renew=True)[0]) == 1
        vanishing.disconnect()
        found: list[Facts] = []

        def has_come() -> bool:
            found.extend(receive(other, 5.0)[1])
            return bool(found)

        # Sooner than after a connection that is lost, whose client may live: the stream did not come back.
        eventually(has_come, 50)
        assert attempt_of(found[0]) == 2
