"""Clients of RocketMQ's gRPC protocol, a network that delays and cuts, and a server that is killed.

In:     a folder, a seed, seconds.
Out:    a report: what was done, and each promise that was broken.
Always: the requests are those of RocketMQ's Python client. A client that did not see an answer knows nothing of it.
        All times are of one clock, from before a request to after its answer.
"""

from __future__ import annotations

import base64
import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.grpc_wire import GrpcClient, GrpcWire, code, message
from tests.histories.checker import Anomaly
from tests.ports import free_port
from tests.programs import ProgramError
from tests.remoting_client.proxy import Proxy
from tests.unit.test_cli_serve import serving

__all__ = ["Delivery", "Told", "run_grpc_history", "wrong"]

GROUP, TOPIC = "shipping", "orders"
INVISIBLE_SECONDS = 10.0
_QUIET_SECONDS = 2 * INVISIBLE_SECONDS
_REQUEST_SECONDS = 8.0
_REST_SECONDS_MAX = 300.0
_DELAY_SECONDS = 0.2
_PLAIN, _COMMITTED, _ROLLED_BACK = range(3)


@dataclass(frozen=True)
class Delivery:
    """A message that a client got. `begun`: before the receive; `ended`: after its answer."""

    begun: float
    ended: float
    queue: tuple[int, int] = (0, 0)
    """Queue and queue offset: a message that moved to the retry topic has others there."""
    nacked: float | None = None
    """Before the request that made it visible at once."""
    acknowledged: tuple[float, float] | None = None
    """Before the request, and after the answer that it is done."""


@dataclass
class Told:
    """What all clients were told."""

    tried: set[bytes] = field(default_factory=set)
    sent: set[bytes] = field(default_factory=set)
    """Plain messages that were acknowledged, and transactions whose commit was."""
    rolled_back: set[bytes] = field(default_factory=set)
    deliveries: dict[bytes, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    kills: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Report:
    seed: int
    anomalies: Sequence[Anomaly]
    statistics: dict[str, int]

    def __str__(self) -> str:
        facts = ", ".join(f"{count} {what}" for what, count in self.statistics.items())
        return f"seed {self.seed}: {facts}; anomalies: {list(self.anomalies) or 'none'}"


class _Network(Proxy):
    """Delays bytes and cuts connections while `faults` is set."""

    def __init__(self, target: int, seed: int) -> None:
        self.faults = 0.0
        self.happened = Counter[str]()
        self._seeds = random.Random(seed)
        super().__init__(target)

    def _pass_on(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        chance = random.Random(self._seeds.getrandbits(64))
        try:
            while data := one.recv(65_536):
                if chance.random() < self.faults:
                    self.happened["delays"] += 1
                    time.sleep(chance.uniform(0.001, _DELAY_SECONDS))
                if chance.random() < self.faults / 8:
                    self.happened["cuts"] += 1
                    other.sendall(data[: chance.randrange(len(data))])
                    break
                other.sendall(data)
        except OSError:
            pass
        self._end(one, other)


def run_grpc_history(folder: Path, seed: int, seconds: float, clients: int, kills: int) -> Report:
    """Runs once. `kills`: how often the server is killed; it starts again at once."""
    chance, told, port = random.Random(seed), Told(), free_port()
    options = [
        "--grpc",
        f"127.0.0.1:{port}",
        "--set",
        "transaction_timeout=3600",
        "--set",
        "default_topic_queue_nums=4",
    ]
    wire = GrpcWire(folder / "wire")
    with wire.program, _Network(port, seed) as network, ExitStack() as stack:
        process, _ = stack.enter_context(serving(folder / "store", *options))
        network.faults, stops = 0.05, threading.Event()
        works = [_produce if number % 2 else _consume for number in range(clients)]
        threads = [
            threading.Thread(target=work, args=(wire.client(network.address), told, stops, chance.getrandbits(32)))
            for work in works
        ]
        for thread in threads:
            thread.start()
        for _ in range(kills + 1):
            stops.wait(seconds / (kills + 1))
            if len(told.kills) < kills:
                told.kills.append(time.monotonic())
                process.kill()
                process.wait()
                process, _ = stack.enter_context(serving(folder / "store", *options))
        stops.set()
        for thread in threads:
            thread.join()
        network.faults = 0.0
        _read_the_rest(wire.client(network.address), told)
    deliveries = [one for found in told.deliveries.values() for one in found]
    statistics = {
        "sends acknowledged": len(told.sent),
        "rolled back": len(told.rolled_back),
        "deliveries": len(deliveries),
        "nacks": sum(one.nacked is not None for one in deliveries),
        "kills": len(told.kills),
        **network.happened,
    }
    return Report(seed, wrong(told), statistics)


def wrong(told: Told) -> list[Anomaly]:
    """Returns the promises that were broken."""
    read = set(told.deliveries)
    found = [Anomaly("lost", f"{body!r} was never received") for body in told.sent - read]
    found += [Anomaly("phantom", f"{body!r} was never sent") for body in read - told.tried]
    found += [Anomaly("rolled back but read", f"{body!r} was rolled back") for body in read & told.rolled_back]
    for body, deliveries in told.deliveries.items():
        found += [Anomaly("too soon", f"{body!r}: {why}") for why in _too_soon(deliveries, told.kills)]
    return found


def _too_soon(deliveries: Iterable[Delivery], kills: Sequence[float]) -> list[str]:
    """A message comes again only after its invisible duration, a nack or a crash, and after a crash only if it was
    acknowledged since."""
    found: list[str] = []
    ordered = sorted(deliveries, key=lambda one: one.ended)
    for at, later in enumerate(ordered):
        for earlier in ordered[:at]:
            # A crash also brings back a message whose copy has moved to the retry topic before. Then both are there.
            since = earlier.begun if earlier.queue == later.queue else 0.0
            if any(since <= kill <= later.ended for kill in kills):
                continue
            if earlier.acknowledged is not None and earlier.acknowledged[1] < later.begun:
                found.append(f"again {later.begun - earlier.acknowledged[1]:.3f} s after its acknowledgement")
            is_visible = earlier.nacked is not None and earlier.nacked <= later.ended
            if not is_visible and later.ended < earlier.begun + INVISIBLE_SECONDS:
                found.append(f"again {later.ended - earlier.begun:.3f} s after the receive that got it")
    return found


def _call(client: GrpcClient, rpc: str, request: Any) -> Any:
    """The answer; None if there was none."""
    try:
        return client.call(rpc, request, _REQUEST_SECONDS)
    except ProgramError:
        return None


def _queue_of(one: Any) -> tuple[int, int]:
    system = one["system_properties"]
    return int(system.get("queue_id", 0)), int(system.get("queue_offset", 0))


def _produce(client: GrpcClient, told: Told, stops: threading.Event, seed: int) -> None:
    chance, number = random.Random(seed), 0
    while not stops.is_set():
        number += 1
        body, kind = f"{client.id}-{number}".encode(), chance.choice((_PLAIN, _PLAIN, _COMMITTED, _ROLLED_BACK))
        with told.lock:
            told.tried.add(body)
        message_type = "NORMAL" if kind == _PLAIN else "TRANSACTION"
        answer = _call(client, "SendMessage", {"messages": [message(TOPIC, body, message_type=message_type)]})
        if answer is None or code(answer) != "OK":
            continue
        if kind == _PLAIN:
            with told.lock:
                told.sent.add(body)
            continue
        entry = answer["entries"][0]
        end = {
            "topic": {"name": TOPIC},
            "message_id": entry["message_id"],
            "transaction_id": entry["transaction_id"],
            "resolution": "COMMIT" if kind == _COMMITTED else "ROLLBACK",
            "source": "SOURCE_CLIENT",
        }
        answer = _call(client, "EndTransaction", end)
        if answer is not None and code(answer) == "OK":
            with told.lock:
                (told.sent if kind == _COMMITTED else told.rolled_back).add(body)


def _consume(client: GrpcClient, told: Told, stops: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not stops.is_set():
        _receive(client, told, chance, chance.randrange(1, 8))


def _read_the_rest(client: GrpcClient, told: Told) -> None:
    """Receives until the server has answered for longer than messages are invisible that there is nothing. A call
    without an answer says nothing of what is there."""
    until, stops_at = time.monotonic() + _QUIET_SECONDS, time.monotonic() + _REST_SECONDS_MAX
    while time.monotonic() < until:
        assert time.monotonic() < stops_at, f"not at its end after {_REST_SECONDS_MAX:g} s"
        if _receive(client, told, None, 32) != 0:
            until = time.monotonic() + _QUIET_SECONDS


def _receive(client: GrpcClient, told: Told, chance: random.Random | None, batch: int) -> int | None:
    """Receives once, and acknowledges; with `chance` not all of it. Returns the number of messages, None if there was
    no answer."""
    request = {
        "group": {"name": GROUP},
        "message_queue": {"topic": {"name": TOPIC}},
        "batch_size": batch,
        "invisible_duration": f"{INVISIBLE_SECONDS:g}s",
        "long_polling_timeout": "2s",
    }
    begun = time.monotonic()
    frames = _call(client, "ReceiveMessage", request)
    ended = time.monotonic()
    messages = [frame["message"] for frame in frames or () if "message" in frame]
    for one in messages:
        does = "ack" if chance is None else chance.choices(("ack", "nack", "nothing"), (8, 1, 1))[0]
        named = {"group": {"name": GROUP}, "topic": {"name": TOPIC}}
        handle = {"receipt_handle": one["system_properties"]["receipt_handle"]}
        asked, acknowledged, nacked = time.monotonic(), None, None
        if does == "ack":
            answer = _call(client, "AckMessage", named | {"entries": [handle]})
            if answer is not None and code(answer) == "OK":
                acknowledged = asked, time.monotonic()
        elif does == "nack":
            nacked = asked
            _call(client, "ChangeInvisibleDuration", named | handle | {"invisible_duration": "0s"})
        with told.lock:
            delivery = Delivery(begun, ended, _queue_of(one), nacked, acknowledged)
            told.deliveries[base64.b64decode(one["body"])].append(delivery)
    return None if frames is None else len(messages)
