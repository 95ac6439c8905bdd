"""Floods: what hostile clients can do to a server of RocketMQ's protocol, by raw sockets.

In:     an address, optionally an account, when to end.
Out:    nothing. After a refusal or a closed connection a new connection follows.
Always: each flood ends by itself when its time is over, and holds a bounded number of connections.

    python -m tests.hostile ADDRESS SECONDS [FLOOD …]
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.frames import frame, json_header, signed
from tests.remoting_requests import HEARTBEAT, LOCK, PULL, SEND_V2, UPDATE_OFFSET, heartbeat, pulling, sending

__all__ = ["CROWDS", "FLOODS", "TOPIC", "Target", "by_turns"]

TOPIC = "flood"
_RESPONSE, _ONE_WAY = 1, 2
_MIB = 1 << 20
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Target:
    """The server, and how long it is flooded."""

    address: str
    until: float
    """By the monotonic clock."""
    account: tuple[str, str] | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def request(self, code: int, fields: dict[str, Any], body: bytes = b"", flag: int = 0, opaque: int = 1) -> bytes:
        """A request as its frame, signed if there is an account."""
        if self.account is not None:
            fields = signed(fields, body, *self.account)
        return frame(json_header(code, fields, opaque, flag), body)

    @contextmanager
    def connected(self, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
        host, _, port = self.address.rpartition(":")
        with socket.socket() as one:
            one.settimeout(max(0.1, min(5.0, self.until - time.monotonic())))
            if receive_bytes is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            one.connect((host, int(port)))
            yield one


def pour(target: Target, frames: Callable[[], bytes]) -> None:
    """Sends as fast as the server takes it, by one connection, and reads the responses."""
    while not target.is_over:
        time.sleep(_PAUSE_SECONDS)  # A server that is not there, or closes at once, is not asked all the time.
        with suppress(OSError), target.connected() as one:
            reader = threading.Thread(target=_drain, args=(one,), daemon=True)
            reader.start()
            with suppress(OSError):
                while not target.is_over:
                    one.sendall(frames())
            one.shutdown(socket.SHUT_RDWR)
            reader.join()


def _drain(one: socket.socket) -> None:
    with suppress(OSError):
        while one.recv(_MIB):
            pass


def hold(target: Target, count: int, speak: Callable[[socket.socket], None]) -> None:
    """Lets many connections send something and then stay silent, until the time is over; closed ones are replaced."""
    with ExitStack() as stack:
        for _ in range(count):
            if target.is_over:
                return
            with suppress(OSError):
                one = stack.enter_context(target.connected(receive_bytes=4096))
                speak(one)
        time.sleep(max(0.0, target.until - time.monotonic()))


# One connection that never pauses (A1, B1) ---------------------------------------------------------------------------


def sends(target: Target, size: int = 100) -> None:
    """Sends without waiting for answers, as a client with many asynchronous sends does."""
    batch = target.request(SEND_V2, sending(TOPIC), b"x" * size) * (20_000 // size + 10)
    pour(target, lambda: batch)


def long_sends(target: Target) -> None:
    sends(target, 4_000)


def one_way_pulls(target: Target) -> None:
    batch = target.request(PULL, pulling(TOPIC), flag=_ONE_WAY) * 300
    pour(target, lambda: batch)


def responses(target: Target) -> None:
    """Sends unsolicited responses."""
    batch = target.request(0, {}, flag=_RESPONSE) * 500
    pour(target, lambda: batch)


def negative_codes(target: Target) -> None:
    batch = target.request(-3, {}) * 500
    pour(target, lambda: batch)


def one_way_offsets(target: Target) -> None:
    fields = {"topic": TOPIC, "consumerGroup": "nobody", "queueId": 0, "commitOffset": 0}
    batch = target.request(UPDATE_OFFSET, fields, flag=_ONE_WAY) * 300
    pour(target, lambda: batch)


def connects(target: Target) -> None:
    """Connects and disconnects without a byte."""
    while not target.is_over:
        with suppress(OSError), target.connected():
            pass


# Names without a bound (A2, B2) --------------------------------------------------------------------------------------


def groups(target: Target) -> None:
    """Heartbeats with a thousand new consumer groups each."""
    numbers = itertools.count()

    def beat() -> bytes:
        names = [f"flood-{next(numbers)}" for _ in range(1_000)]
        return target.request(HEARTBEAT, {}, heartbeat("flooder", *names, topic=TOPIC))

    pour(target, beat)


def locks(target: Target) -> None:
    """Locks of groups with long names."""
    numbers = itertools.count()

    def lock() -> bytes:
        queues = [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]
        said = {"consumerGroup": f"{next(numbers)}-{'x' * 900_000}", "clientId": "flooder", "mqSet": queues}
        return target.request(LOCK, {"consumerGroup": "flood-0"}, json.dumps(said).encode())

    pour(target, lock)


# Memory (A5) ---------------------------------------------------------------------------------------------------------


def frames_without_end(target: Target, connections: int = 100, size: int = 15 * _MIB) -> None:
    """The first part of long frames, whose rest never comes."""
    begun = struct.pack(">II", 16 * _MIB - 1, 100) + b"{" * size
    hold(target, connections, lambda one: one.sendall(begun))


def unread_answers(target: Target, connections: int = 40, pulls: int = 30) -> None:
    """Pulls of large messages, by clients that read nothing."""
    _store(target, 4, 500_000)
    asked = target.request(PULL, pulling(TOPIC)) * pulls
    hold(target, connections, lambda one: one.sendall(asked))


def long_heartbeats(target: Target) -> None:
    """Heartbeats of a mebibyte, sent oneway."""
    said = json.loads(heartbeat("flooder")) | {"more": "x" * (_MIB - 500)}
    one = target.request(HEARTBEAT, {}, json.dumps(said).encode(), _ONE_WAY)
    pour(target, lambda: one)


def nested_headers(target: Target) -> None:
    """Headers as long as the server accepts, whose JSON would be hundreds of thousands of values."""
    many = b"[" + b"[]," * 340_000 + b"[]]"
    header = b'{"code":105,"opaque":5,"flag":0,"remark":' + many + b"}"
    one = frame(header)
    pour(target, lambda: one)


def held_pulls(target: Target, connections: int = 50, pulls: int = 2_000) -> None:
    """Pulls that wait for a message that does not come."""
    waits = pulling(TOPIC, queue_id=3, sysFlag=6, suspendTimeoutMillis=60_000)
    asked = target.request(PULL, waits) * pulls
    hold(target, connections, lambda one: one.sendall(asked))


def idle(target: Target, connections: int = 1_000) -> None:
    """Connections that send nothing."""
    hold(target, connections, lambda one: None)


def _store(target: Target, count: int, size: int) -> None:
    with suppress(OSError), target.connected() as one:
        for _ in range(count):
            one.sendall(target.request(SEND_V2, sending(TOPIC), b"x" * size))
            one.recv(1)


FLOODS: dict[str, Callable[[Target], None]] = {
    work.__name__.replace("_", " "): work
    for work in (
        sends, long_sends, one_way_pulls, responses, negative_codes, one_way_offsets, connects, groups, locks,
        frames_without_end, unread_answers, long_heartbeats, nested_headers, held_pulls, idle,
    )
}  # fmt: skip
"""By name: floods by one client."""

CROWDS: dict[str, Callable[[Target, int], None]] = {
    "idle": idle,
    "frames without end": lambda target, count: frames_without_end(target, count, _MIB),
    "unread answers": lambda target, count: unread_answers(target, count, 4),
    "held pulls": lambda target, count: held_pulls(target, count, 10),
}
"""By name: floods by many connections."""


def by_turns(target: Target, names: list[str], seconds: float = 2.0) -> None:
    """Runs one flood after another, repeatedly."""
    for name in itertools.cycle(names):
        if target.is_over:
            return
        FLOODS[name](Target(target.address, min(target.until, time.monotonic() + seconds), target.account))


if __name__ == "__main__":
    address, seconds, *names = sys.argv[1:]
    by_turns(Target(address, time.monotonic() + float(seconds)), names or list(FLOODS))
