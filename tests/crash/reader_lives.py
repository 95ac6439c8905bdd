"""Long-lived readers of a store that many writers open one after another.

In:     a path, and orders through a named pipe.
Out:    how far each reader reads, and what one writer's life did.
Always: a reader is opened once and checks every message that it sees: the messages of one life are numbered without a
        gap, and lives follow each other.
"""

from __future__ import annotations

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow

import txstore
from tests.crash.zygote import Voice
from txstore import OffsetTooOldError
from txstore._native import Message, Store, mend_store

FILE_BYTES = 1 << 16
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
TOPIC = "t"
REACH_SECONDS = (
    30.0  # An upper bound that a reader with a processor of its own never reaches. The test reports the slowest.
)
LOOK_AGAIN_MS = 20


class Reader(ABC):
    """One reader, which is never opened again."""

    def __init__(self) -> None:
        self.number = 0
        self._last = (-1, -1)
        self._may_skip = True

    @abstractmethod
    def look(self) -> tuple[int, int]:
        """Reads what is new. Returns the log's end and the queue's end, as far as this reader knows them; 0: not at
        all.
        """

    def wait(self, end: int) -> None:
        """Waits a moment for more after `end`."""
        time.sleep(LOOK_AGAIN_MS / 1000)

    @abstractmethod
    def close(self) -> None:
        """Releases what it holds."""

    def check(self, body: bytes) -> None:
        """Checks that this message comes next."""
        life, number = (int(part) for part in body.split(b":")[:2])
        begins = life > self._last[0] and number == 0
        assert begins or self._may_skip or (life, number) == (self._last[0], self._last[1] + 1), (self._last, body[:20])
        self._last, self._may_skip = (life, number), False
        self.number += 1


class EngineReader(Reader):
    """A handle of the engine, which scans the log."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._store, self._at = Store.open(path, read_only=True), 0

    def look(self) -> tuple[int, int]:
        while True:
            try:
                found, self._at = self._store.scan(self._at, 1000)
            except OffsetTooOldError as error:
                self._at, self._may_skip = error.minimum, True
                continue
            for message in found:
                self.check(message.body)
            if not found:
                return self._at, self._store.queue_range(TOPIC, 0)[1]

    def wait(self, end: int) -> None:
        self._store.wait_for_messages(end, LOOK_AGAIN_MS)

    def close(self) -> None:
        self._store.close()


class QueueReader(Reader):
    """What a program opens with `read_only=True`; it reads the queue."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._broker, self._next = txstore.open(path, read_only=True), 0

    def look(self) -> tuple[int, int]:
        while True:
            try:
                found, self._next = self._broker.store.read(TOPIC, 0, self._next, 1000)
            except OffsetTooOldError as error:
                self._next, self._may_skip = error.minimum, True
                continue
            for message in found:
                self.check(message.body)
            if not found:
                return self._broker.stat().max_physical_offset, self._next

    def close(self) -> None:
        self._broker.close()


class TableReader(Reader):
    """One Arrow scan, which is read again and again from the log's first file to its end."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._scan = txstore.scan(path, view="commitlog", columns=["physical_offset", "size", "queue_offset"])

    def look(self) -> tuple[int, int]:
        table = pyarrow.table(self._scan)
        self.number = max(self.number, table.num_rows)
        if not table.num_rows:
            return 0, 0
        last = table.slice(table.num_rows - 1).to_pylist()[0]
        return last["physical_offset"] + last["size"], last["queue_offset"] + 1

    def close(self) -> None:
        del self._scan


READERS: dict[str, type[EngineReader | QueueReader | TableReader]] = {
    "engine": EngineReader, "queue": QueueReader, "table": TableReader,
}  # fmt: skip


def look(reader: Reader, wanted_log: int) -> tuple[int, int]:
    """Reads what is new. A kill between the parts of a write leaves the blank record that fills a file, and nothing
    after it: the log ends there, and no row of a table does.
    """
    log, queue = reader.look()
    if isinstance(reader, TableReader) and wanted_log % FILE_BYTES == 0:
        log += -log % FILE_BYTES
    return log, queue


def read(voice: Voice, arguments: dict[str, Any]) -> None:
    """Reads until there are no more orders. Each order is an end of the log and one of the queue to reach."""
    reader = READERS[arguments["kind"]](arguments["path"])
    voice.say("ready")
    with Path(arguments["orders"]).open() as orders:
        for order in orders:
            wanted_log, wanted_queue = (int(word) for word in order.split())
            began = time.monotonic()
            log, queue = look(reader, wanted_log)
            while (log < wanted_log or queue < wanted_queue) and time.monotonic() < began + REACH_SECONDS:
                reader.wait(log)
                log, queue = look(reader, wanted_log)
            voice.say("at", log, queue, time.monotonic() - began)
    voice.say("saw", reader.number)
    reader.close()


def write(voice: Voice, arguments: dict[str, Any]) -> None:
    """One life: opens, may remove old files, appends, waits while readers read, and ends as ordered."""
    luck = random.Random(arguments["seed"])
    store = Store.open(arguments["path"], flush_disk_type=arguments["flush_disk_type"], **SIZES)
    voice.ready()

    def tell(word: str) -> None:
        voice.say(word, store.stat().visible_physical_offset, store.queue_range(TOPIC, 0)[1])

    tell("opened")
    for number in range(arguments["messages"]):
        body = b"%d:%d:" % (arguments["life"], number) + b"x" * luck.choice([10, 500, 3000])
        store.append(Message(TOPIC, body), 0)
        if number % 10 == 0:
            tell("end")
    if arguments["removes"]:
        store.remove_log_files(max(0, store.stat().max_physical_offset - 2 * FILE_BYTES), keep_unread=False)
    tell("waits")
    with Path(arguments["orders"]).open() as orders:
        orders.readline()
    if arguments["ends_by"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def repair(voice: Voice, arguments: dict[str, Any]) -> None:
    """Repairs a store that nobody has open, although nothing is wrong: everything that is derived is removed."""
    mend_store(arguments["path"], arguments["copies"], "copies")
    voice.say("mended")
