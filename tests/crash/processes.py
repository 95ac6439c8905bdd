"""What other processes do with a store that one process writes: read it continuously, or run as a fork of the
writer.

In:     a path.
Out:    reports of what was seen.
Always: what a reader sees is checked at once, message by message.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txstore
from tests.crash.workload import TOPIC, body, fate
from tests.crash.zygote import Voice
from txstore import EmbeddedBroker, ForeignStoreError, Message, StoreForkedError

REACH_SECONDS = 30.0


class Follower:
    """One reader's view: the log so far, and the end of each queue."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.at = 0
        self._nexts: dict[tuple[str, int], int] = defaultdict(int)
        self._read: dict[int, int] = defaultdict(int)
        self.seen = 0

    def look(self) -> None:
        """Reads what is new in the log, in the queues, and of transactions. Nothing goes back, nothing is skipped."""
        messages, following = self._broker.store.scan(self.at, 10_000)
        assert following >= self.at, f"L1: the log went back from {self.at} to {following}"
        for message in messages:
            queue = (message.topic, message.queue_id)
            assert message.queue_offset == self._nexts[queue], f"L4: {queue} has a gap at {message.queue_offset}"
            self._nexts[queue] += 1
            if message.topic == TOPIC:
                assert message.body == body(message.keys[0]), f"L1: another body at {message.physical_offset}"
        self.at, self.seen = following, self.seen + len(messages)
        for queue_id in range(3):
            found, self._read[queue_id] = self._broker.store.read(TOPIC, queue_id, self._read[queue_id], 10_000)
            assert all(message.body == body(message.keys[0]) for message in found), "D1: another message in a queue"
            assert self._read[queue_id] >= self._nexts[TOPIC, queue_id], "D1: a queue lacks messages of the log"

    def transactions(self) -> None:
        """T2: each transaction has its intended outcome, or is pending."""
        for row in self._broker.store.transactions():
            key = self._broker.store.read_at(row.halves[0][1]).keys[0]
            assert row.state in ("pending", fate(key)), f"T2: {key} is {row.state}"


def _when_there(path: str) -> EmbeddedBroker:
    """Opens the store as soon as its writer has created it."""
    while True:
        with contextlib.suppress(ForeignStoreError, FileNotFoundError):
            if Path(path).exists():
                return txstore.open(path, read_only=True)
        time.sleep(0.001)


def follow(voice: Voice, arguments: dict[str, Any]) -> None:
    """Reads until the file `stop` is there, whatever happens to the writer, and reports how much it saw in the end."""
    with _when_there(arguments["path"]) as broker:
        stop = Path(arguments["stop"])
        voice.ready()
        follower, rounds = Follower(broker), 0
        while rounds == 0 or not stop.exists():
            follower.look()
            if rounds % 20 == 0:
                follower.transactions()
            rounds += 1
        _reach(follower, arguments["path"])
    voice.say("saw", follower.seen, rounds)


def _reach(follower: Follower, path: str) -> None:
    """Asserts that this reader reaches the end that a reader opened now sees, whatever it has lived through."""
    with txstore.open(path, read_only=True) as now:
        end = now.stat().max_physical_offset
    until = time.monotonic() + REACH_SECONDS
    follower.look()
    while follower.at < end:  # A writer may be about to open the store: until then its readers wait.
        assert time.monotonic() < until, f"D1: this reader is at {follower.at}, a new one at {end}"
        time.sleep(0.01)
        follower.look()


def fork(voice: Voice, arguments: dict[str, Any]) -> None:
    """Forks while one thread sends, and while the engine flushes: each child gets an error, and harms nothing."""
    with txstore.open(arguments["path"], **arguments["options"]) as broker:
        producer, stop = broker.producer("p"), threading.Event()
        broker.write_queues(TOPIC)

        def send() -> None:
            number = 0
            while not stop.is_set():
                key = f"fork-{number}"
                sent = producer.send(Message(TOPIC, body(key), keys=[key]))
                voice.say("sent", key, sent.queue_id, sent.queue_offset)
                number += 1

        thread = threading.Thread(target=send)
        thread.start()
        for number in range(arguments["forks"]):
            time.sleep(arguments["pause"])
            child = os.fork()
            if child == 0:
                _be_a_fork(broker, producer.send, Path(arguments["path"]).with_suffix(f".{number}"))
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 77, f"a forked child ended with {status}"
        stop.set()
        thread.join()
    voice.say("closed")


def _be_a_fork(broker: EmbeddedBroker, send: Callable[[Message], object], own: Path) -> None:
    """The child: no handle of its parent works, a store of its own does. Never returns."""
    status = 1
    try:
        calls: list[Callable[[], object]] = [
            lambda: send(Message(TOPIC, b"x")),
            lambda: broker.store.read(TOPIC, 0, 0),
            lambda: broker.prepare(Message(TOPIC, b"x"), 0, "g", 0),
            broker.flush,
            broker.store.snapshot,
            broker.stat,
            broker.transactions,
        ]
        told = 0
        for call in calls:
            try:
                call()
            except StoreForkedError as error:
                told += str(os.getpid()) in str(error)
        with txstore.open(own) as mine:
            mine.producer("p").send(Message(TOPIC, b"mine"))
        broker.close()
        broker.store.close()
        status = 70 + told
    finally:
        os._exit(status)
