"""Does with a store what a service does, and reports each answer.

In:     options, a seed.
Out:    a report for each answer, after it was received.
Always: the intended outcome of a transaction is a function of its key (`fate`), whether its producer, a check or a late
        second end ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import txstore
from tests.crash.zygote import Voice
from tests.waiting import eventually
from txstore import (
    AlreadyEndedError,
    DiskFullError,
    EmbeddedBroker,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionMessage,
)

TOPIC = "t"
READERS = "readers"
# Small files, so that faults reach the ends of files, too.
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
    "default_topic_queue_nums": 3,
}
# Checks run at once and repeatedly; they discard nothing.
BUSY: dict[str, Any] = {
    "transaction_timeout": 0.01,
    "transaction_check_interval": 0.02,
    "transaction_check_max": 10_000,
    "flush_consumer_offset_interval": 0.01,
    "snapshot_interval": 0.05,
    "flush_interval_commit_log": 0.01,
}
STATES = {"committed": LocalTransactionState.COMMIT, "rolled_back": LocalTransactionState.ROLLBACK}


def fate(key: str) -> str:
    """The outcome of the transaction of this key, if it ends."""
    return ("committed", "committed", "rolled_back", "discarded")[zlib.crc32(key.encode()) % 4]


def body(key: str) -> bytes:
    """The body of this key's message: 10 bytes to some 10 KiB, so that records reach the ends of files in all ways."""
    number = zlib.crc32(b"body" + key.encode())
    return (key.encode() + b".") * (1 + number % 20 + (400 if number % 50 == 0 else 0))


class Fates(TransactionListener):
    """Ends a transaction according to its fate, or leaves it to a check, at random."""

    def __init__(self, voice: Voice, chance: random.Random) -> None:
        self._voice, self._chance = voice, chance

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        (key,) = message.keys
        self._voice.say("prepared", key, message.transaction_id)
        return LocalTransactionState.UNKNOWN if self._chance.random() < 0.3 else STATES.get(fate(key), UNKNOWN)

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        (key,) = message.keys
        return STATES.get(fate(key), UNKNOWN)


UNKNOWN = LocalTransactionState.UNKNOWN


class Service:
    """The work of one thread."""

    def __init__(
        self, broker: EmbeddedBroker, voice: Voice, name: str, chance: random.Random, *, may_be_full: bool = False
    ) -> None:
        self._broker, self._voice, self._chance, self._may_be_full = broker, voice, chance, may_be_full
        self.sent = self.refused = 0
        self._keys = (f"{name}-{number}" for number in itertools.count())
        self._producer = broker.transaction_producer(f"group-{name.split('-')[-1]}", Fates(voice, chance))

    def step(self) -> None:
        """One piece of work. A full disk may refuse new messages and derived files, never the end of a pending
        transaction.
        """
        steps: list[Callable[[], None]] = [self.send, self.batch, self.listened, self.block, self.by_hand, self.upkeep]
        try:
            self._chance.choices(steps, weights=[4, 2, 4, 3, 6, 1])[0]()
        except DiskFullError:
            if not self._may_be_full:
                raise
            self._voice.say("error", "DiskFullError")
            self.refused += 1
            time.sleep(0.001)

    def _message(self) -> tuple[str, Message]:
        key = next(self._keys)
        return key, Message(TOPIC, body(key), keys=[key], tags="tag")

    def send(self) -> None:
        key, message = self._message()
        sent = self._producer.send(message)
        self.sent += 1  # Before it is told, so that who waits for the count finds the word before its own.
        self._voice.say("sent", key, sent.queue_id, sent.queue_offset)

    def batch(self) -> None:
        together = [self._message() for _ in range(self._chance.randrange(2, 6))]
        sent = self._producer.send_batch([message for _, message in together])
        for (key, _), one in zip(together, sent, strict=True):
            self._voice.say("sent", key, one.queue_id, one.queue_offset)

    def listened(self) -> None:
        key, message = self._message()
        result = self._producer.send_in_transaction(message)
        assert result.error is None, result.error
        if result.local_transaction_state is not UNKNOWN:
            self._voice.say("ended", key, result.transaction_id, fate(key))

    def block(self) -> None:
        key, message = self._message()
        transaction = self._producer.transaction(message)
        try:
            with transaction as tx, must_end():
                self._voice.say("prepared", key, tx.transaction_id)
                if fate(key) == "rolled_back":
                    tx.rollback()
                elif fate(key) == "discarded":
                    raise KeyError(key)
        except KeyError:
            return
        self._voice.say("ended", key, transaction.transaction_id, fate(key))

    def by_hand(self) -> None:
        key, message = self._message()
        half = self._broker.prepare(message, self._chance.randrange(3), self._producer.group, 0)
        self._voice.say("prepared", key, half.message_id)
        if self._chance.random() < 0.2:
            return
        outcome = self._end(half, fate(key))
        self._voice.say("ended", key, half.message_id, outcome)
        if self._chance.random() < 0.3:
            again = self._end(half, fate(key))
            assert again == outcome
            self._contradict(half, fate(key))

    def _end(self, half: Any, outcome: str) -> str:
        with must_end():
            if outcome == "discarded":
                return self._broker.discard(half).outcome
            return self._broker.end_transaction(half, STATES[outcome]).outcome

    def _contradict(self, half: Any, outcome: str) -> None:
        other = "rolled_back" if outcome == "committed" else "committed"
        try:
            found = self._end(half, other)
        except AlreadyEndedError as refused:
            found = refused.outcome
        assert found == outcome, f"a transaction that was {outcome} is {found} as well"

    def upkeep(self) -> None:
        self._chance.choice([self._broker.store.snapshot, self._broker.flush, self._broker.write_offsets])()


@contextlib.contextmanager
def must_end() -> Iterator[None]:
    """Ends a transaction. A full disk refuses no end: its space was taken with the half message."""
    try:
        yield
    except DiskFullError as error:
        raise AssertionError(f"an end found the disk full: {error}") from error


def fill_and_free(directory: Path, voice: Voice, chance: random.Random, stop: threading.Event) -> None:
    """Takes all but a few pages of a small file system, again and again, and frees them."""
    while not stop.wait(chance.uniform(0.01, 0.04)):
        with filled(directory, chance.randrange(12)):
            voice.say("full")
            stop.wait(chance.uniform(0.01, 0.03))
        voice.say("room")


@contextlib.contextmanager
def filled(directory: Path, pages_left: int) -> Iterator[None]:
    """A file system full but for some pages."""
    filler = directory / "filler"
    try:
        with filler.open("wb") as file:
            while (taken := os.statvfs(directory).f_bavail - pages_left) > 0:
                with contextlib.suppress(OSError):  # Another thread was faster.
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), taken * os.statvfs(directory).f_bsize)
        yield
    finally:
        filler.unlink()


def consume(broker: EmbeddedBroker, voice: Voice, stop: threading.Event) -> None:
    """Reads everything, and reports what it got before the next step acknowledges it."""
    with broker.consumer(READERS, TOPIC) as consumer:
        while not stop.is_set():
            for message in consumer.poll(8, 0.01):
                voice.say("got", message.keys[0], message.queue_id, message.queue_offset)


class Crew:
    """The threads of one process: services, a consumer, and one that fills the disk."""

    def __init__(self, broker: EmbeddedBroker, voice: Voice, arguments: dict[str, Any]) -> None:
        self._voice, self._stop, self._threads = voice, threading.Event(), list[threading.Thread]()
        chance, full = random.Random(arguments["seed"]), arguments.get("filled")
        self._begin(lambda: consume(broker, voice, self._stop))
        self._services: list[Service] = []
        for number in range(arguments["threads"]):
            name, luck = f"{arguments['seed']:x}-{number}", random.Random(chance.random())
            self._services.append(Service(broker, voice, name, luck, may_be_full=full is not None))
            self._begin(self._services[-1].step)
        self._enough = threading.Event()
        self._filler: threading.Thread | None = None
        if full is not None:
            logging.disable()  # Housekeeping reports each time that it finds no space.
            self._begin(lambda: fill_and_free(Path(full), voice, chance, self._enough), self._enough)
            self._filler = self._threads.pop()

    def _begin(self, task: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Repeats a task in a thread; an error is reported, and ends all."""
        until = self._stop if stop is None else stop

        def run() -> None:
            try:
                while not until.is_set():
                    task()
            except BaseException:
                self._voice.say("wrong", traceback.format_exc()[-1500:])
                self._stop.set()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def work(self, seconds: float | None) -> None:
        """Works for that long (None: until something goes wrong).

        If the disk fills up, also until something was refused, and then, with space again, until something was sent.
        """
        self._stop.wait(seconds)
        if self._filler is not None:
            eventually(lambda: self._stop.is_set() or any(service.refused for service in self._services), 20)
            self._enough.set()
            self._filler.join()
            before = [service.sent for service in self._services]
            eventually(lambda: self._stop.is_set() or [service.sent for service in self._services] != before, 20)
            self._stop.wait(0.05)
        self._stop.set()
        for thread in self._threads:
            thread.join()


def work(voice: Voice, arguments: dict[str, Any]) -> None:
    """Opens the store and works with several threads; with `seconds` for that long, then closes it."""
    with txstore.open(arguments["path"], **arguments["options"]) as broker:
        broker.write_queues(TOPIC)  # Creates the topic.
        voice.ready()
        voice.say("open")
        Crew(broker, voice, arguments).work(arguments.get("seconds"))
    voice.say("closed")


class Stamped(Voice):
    """Says at the end of each report when it was made: `time.monotonic()`."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def say(self, *words: object) -> None:
        self._voice.say(*words, time.monotonic())

    def ready(self) -> None:
        self._voice.ready()


def write_back(path: Path, luck: random.Random, stop: threading.Event) -> None:
    """Lets the kernel write parts of a store's files to the device in any order, as it does when memory is short."""
    while not stop.wait(luck.uniform(0.001, 0.01)):
        files = [file for file in path.rglob("*") if file.is_file()]
        with contextlib.suppress(OSError, IndexError):  # The file is gone, or there is none yet.
            handle = os.open(luck.choice(files), os.O_RDONLY)
            try:
                half = os.fstat(handle).st_size // 2
                os.posix_fadvise(handle, luck.choice([0, half]), luck.choice([0, half]), os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def work_and_write_back(voice: Voice, arguments: dict[str, Any]) -> None:
    """Works as `work` does, with a time in each report, and with the kernel's writes at random moments."""
    stop = threading.Event()
    background = (Path(arguments["path"]), random.Random(arguments["seed"]), stop)
    thread = threading.Thread(target=write_back, args=background, daemon=True)
    thread.start()
    work(Stamped(voice), arguments)
    stop.set()
    thread.join()
