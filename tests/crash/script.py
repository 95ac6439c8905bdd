"""A short fixed piece of work that uses every verb and reports each answer, whatever fails.

In:     options.
Out:    a report for each answer, and one for each error's class.
Always: single-threaded apart from the engine's own flushing thread, so that the N-th call of a kind is the same one in
        each run; an error ends one step, and the next step follows, as in an application.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import txstore
from tests.crash.workload import STATES, TOPIC, body, fate, filled, must_end
from tests.crash.zygote import Voice
from txstore import EmbeddedBroker, Message, TxStoreError

GROUP = "group"
_SENDS_MAX = 20_000


class Script:
    """The steps, each independent of the others."""

    def __init__(self, voice: Voice, arguments: dict[str, Any]) -> None:
        self._voice, self._arguments = voice, arguments
        self.broker: EmbeddedBroker | None = None
        self.halves: dict[str, Any] = {}
        self._count = 0

    def tried(self, call: Callable[[], object]) -> bool:
        """Whether the step worked; its error is reported by class and text."""
        try:
            call()
        except TxStoreError as error:
            self._voice.say("error", type(error).__name__, str(error)[:300])
            return False
        return True

    def open(self) -> None:
        """The store, if it is not open, and its topic."""
        if self.broker is None:
            self.broker = txstore.open(self._arguments["path"], **self._arguments["options"])
        self.broker.write_queues(TOPIC)

    def close(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            broker.close()

    def send(self, messages: int = 1) -> None:
        assert self.broker is not None
        keys = [self._key() for _ in range(messages)]
        sent = self.broker.append_many([Message(TOPIC, body(key), keys=[key]) for key in keys], [0] * messages)
        for key, one in zip(keys, sent, strict=True):
            self._voice.say("sent", key, one.queue_id, one.queue_offset)

    def prepare(self) -> None:
        assert self.broker is not None
        key = self._key()
        half = self.broker.prepare(Message(TOPIC, body(key), keys=[key]), 1, GROUP, 0)
        self.halves[key] = half
        self._voice.say("prepared", key, half.message_id)

    def end(self) -> None:
        """Ends the oldest pending transaction; one whose end fails stays pending."""
        if not self.halves:
            return
        assert self.broker is not None
        key, half = next(iter(self.halves.items()))
        if fate(key) == "discarded":
            self.broker.discard(half)
        else:
            self.broker.end_transaction(half, STATES[fate(key)])
        del self.halves[key]
        self._voice.say("ended", key, half.message_id, fate(key))

    def _key(self) -> str:
        self._count += 1
        return f"{self._arguments['name']}-{self._count}"

    def run(self) -> None:
        """Runs all steps; without those that need an open store if opening failed."""
        if self.tried(self.open):
            assert self.broker is not None
            store = self.broker.store
            for call in (
                lambda: self.send(2), self.prepare, self.prepare, self.send, self.end, self.prepare, store.flush,
                self.end, store.snapshot, self.prepare, self.end, lambda: self.send(60), self.prepare, self.end,
                store.write_offsets, self.prepare, lambda: self.send(20), store.flush, self.end,
            ):  # fmt: skip
                self.tried(call)
        if self._arguments.get("crash"):
            os._exit(9)
        self.tried(self.close)


def run(voice: Voice, arguments: dict[str, Any]) -> None:
    """Runs the script; with `wait`, not before a tracer of the process sends SIGUSR1."""
    if arguments.get("wait"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        voice.say("waiting")
        signal.sigwait({signal.SIGUSR1})
    Script(voice, arguments).run()
    voice.say("closed")


def limited(voice: Voice, arguments: dict[str, Any]) -> None:
    """Works under a limit of file sizes that falls into a record: the system writes only the first part of it.

    With `wait`, the tracer raises the limit while the write is under way; else it is raised after the script's steps,
    and the store continues without being opened again.
    """
    # Before the store's threads begin: the signal is for this thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    script = Script(voice, arguments)
    script.open()
    script.prepare()
    script.send()
    assert script.broker is not None
    end = script.broker.stat().max_physical_offset
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if arguments.get("wait"):
        voice.say("waiting")
        signal.sigwait({signal.SIGUSR1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (end + arguments["room"], most))
    voice.say("full")
    if arguments.get("wait"):
        script.send()
    else:
        for call in (script.send, script.prepare, script.end, script.broker.store.snapshot, script.send):
            script.tried(call)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    voice.say("room")
    for call in (script.send, script.prepare, script.end, script.end):
        call()
    script.close()
    voice.say("closed")


def on_a_full_disk(voice: Voice, arguments: dict[str, Any]) -> None:
    """Sends until nothing fits any more, ends all pending transactions, and continues when there is space again."""
    script, directory, pages_left = Script(voice, arguments), Path(arguments["filled"]), arguments["pages_left"]
    if arguments["while"] == "opening":
        with filled(directory, pages_left):
            voice.say("full")
            script.tried(script.open)
        voice.say("room")
        script.open()
    else:
        script.open()
        for _ in range(arguments["halves"]):
            script.prepare()
        with filled(directory, pages_left):
            voice.say("full")
            assert not all(script.tried(script.send) for _ in range(_SENDS_MAX)), "the disk never became full"
            script.tried(script.prepare)
            while script.halves:
                with must_end():
                    script.end()
            assert script.broker is not None
            for call in (script.broker.flush, script.broker.store.snapshot, script.broker.write_offsets):
                script.tried(call)
        voice.say("room")
    assert script.broker is not None
    for call in (script.send, script.prepare, script.end, script.broker.store.snapshot, script.broker.write_offsets):
        call()
    script.close()
    voice.say("closed")


def on_a_full_image(voice: Voice, arguments: dict[str, Any]) -> None:
    """Works on a file system that is full for a while, `times` times, without opening the store again. The system
    writes back dirty pages again and again, as it does by itself after some seconds: after that a file system that
    copies on write needs space for each byte.
    """
    script, directory, store = Script(voice, arguments), Path(arguments["filled"]), arguments["path"]
    script.open()
    assert script.broker is not None
    for time_full in range(arguments["times"]):
        for _ in range(arguments["halves"]):
            script.prepare()
            script.send()
        script.broker.flush()
        script.broker.store.snapshot()
        os.sync()
        if arguments["shares"] and time_full == 0:
            subprocess.run(["cp", "-r", "--reflink=always", store, f"{store}.copy"], check=True)
        with (
            txstore.open(store, read_only=True) as reader,
            _filled_by_writing(directory, arguments["pages_left"]),
        ):
            voice.say("full")
            refused = False
            for number in range(_SENDS_MAX):
                refused |= not script.tried(lambda: script.send(arguments["messages"]))
                if number % 50 == 0:
                    script.tried(script.end)
                    os.sync()
                if refused and number >= arguments["sends"]:
                    break
            assert refused, "the disk never became full"
            _reach(reader, 0)  # It may see less than there is, but nothing that is not there.
            os.sync()
        voice.say("room")
        until = time.monotonic() + 60
        while not script.tried(script.send):  # Such a file system frees space at a time of its own choice.
            assert time.monotonic() < until, "space came back, but sends do not work"
            time.sleep(0.01)
            os.sync()
    while script.halves:
        script.end()
    with txstore.open(store, read_only=True) as reader:
        _reach(reader, script.broker.stat().visible_physical_offset)
    script.close()
    voice.say("closed")


def _reach(reader: EmbeddedBroker, end: int) -> None:
    at, until = 0, time.monotonic() + 30
    while True:
        messages, at = reader.store.scan(at, 10_000)
        if not messages and at >= end:
            return
        assert messages or time.monotonic() < until, f"the reader is at {at}, published is {end}"


@contextlib.contextmanager
def _filled_by_writing(directory: Path, pages_left: int) -> Iterator[None]:
    """A file system on which no more than some pages can be written, until the context ends."""
    fillers = [directory / f"filler{number}" for number in range(4)]
    try:
        for filler in fillers:
            block = os.urandom(1 << (16 if filler == fillers[0] else 12))
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(block)
            os.sync()
        os.truncate(fillers[0], max(0, fillers[0].stat().st_size - (pages_left << 12)))
        os.sync()
        yield
    finally:
        for filler in fillers:
            filler.unlink(missing_ok=True)
        os.sync()
