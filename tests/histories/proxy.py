"""A network that delays, cuts, splits and duplicates frames, in both directions.

In:     frames of RocketMQ's protocol.
Out:    the same in the same order, some late, some in pieces, some twice; a connection that is cut ends within a frame.
Always: random choices come from a seed; complete frames that reached the other side are counted by the names of
        messages in them.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

from tests.remoting_client.proxy import Proxy

NAME = re.compile(rb"(?:plain|commit|rollback|either)-\d+-\d+")
_DELAY_SECONDS = 0.3
FAULTS = ("cuts", "delays", "doubles", "splits")


class FaultyProxy(Proxy):
    """Quiet until `faults` is set. Each direction of each connection has random choices of its own, by the seed."""

    def __init__(self, target: int, seed: int) -> None:
        self.faults = 0.0
        """The chance of each fault, for each frame; a cut is a quarter as likely."""
        self.happened: Counter[str] = Counter()
        """How often: delays, cuts, splits, duplicates."""
        self.delivered: Counter[str] = Counter()
        """Complete frames sent to the target, by the names of the messages in them."""
        self._seeds = random.Random(seed)
        self._counting = threading.Lock()
        super().__init__(target)

    def _pass_on(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        with self._counting:
            chance = random.Random(self._seeds.getrandbits(64))
        try:
            for frame in _frames(one):
                if not self._pass_frame(frame, other, chance, back):
                    break
        except OSError:
            pass
        self._end(one, other)

    def _pass_frame(self, frame: bytes, other: socket.socket, chance: random.Random, back: bool) -> bool:
        """Whether the connection stays open."""
        if back:
            self.flows.wait()
        if self._strikes(chance, "delays"):
            time.sleep(chance.uniform(0.001, _DELAY_SECONDS))
        if self._strikes(chance, "cuts", 0.25):
            other.sendall(frame[: chance.randrange(len(frame))])
            return False
        pieces = [frame]
        if self._strikes(chance, "splits"):
            cut_at = chance.randrange(1, len(frame))
            pieces = [frame[:cut_at], frame[cut_at:]]
        copies = 2 if self._strikes(chance, "doubles") else 1
        for _ in range(copies):
            if not back:
                # Before it is sent, since its answer may be seen before a thread counts.
                self._count(frame)
            for piece in pieces:
                other.sendall(piece)
                if len(pieces) > 1:
                    time.sleep(chance.uniform(0.0, 0.02))
        return True

    def _strikes(self, chance: random.Random, what: str, part: float = 1.0) -> bool:
        if chance.random() >= self.faults * part:
            return False
        with self._counting:
            self.happened[what] += 1
        return True

    def _count(self, frame: bytes) -> None:
        with self._counting:
            self.delivered.update(name.decode() for name in set(NAME.findall(frame)))


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Complete frames, each with its length field."""
    data = bytearray()
    while received := connection.recv(65_536):
        data += received
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4])):
            yield bytes(data[:size])
            del data[:size]
