"""Guards what a replica of a RocketMQ master takes from its HA port.

The master's side of the protocol is written by hand, over the log of a real store: pieces cut records anywhere, and
what follows the last record of a log file is sent, too. tests/peer has RocketMQ's own master.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txstore
from txstore import Message
from txstore._native import Store, begin_replica_of_rocketmq
from txstore.broker.opening import open_as
from txstore.config import BrokerConfig
from txstore.errors import BrokerUnreachableError
from txstore.server.ha_channel import HAChannel
from txstore.server.replica_copy import ReplicaCopy

FILE = 64 << 10
SIZES: dict[str, Any] = {"mapped_file_size_commit_log": FILE, "enabled_append_prop_crc": False}


class Master:
    """A master's end of the next connection, which `serve` runs in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.reports: list[int] = []
        self._thread = threading.Thread(target=lambda: None)

    def serve(self, *pieces: tuple[int, bytes]) -> None:
        """Sends pieces, in small parts, and reads reports until the other side closes."""

        def run() -> None:
            connected, _ = self._listener.accept()
            with connected:
                self.reports.append(self._report(connected))
                for begin, piece in pieces:
                    frame = struct.pack(">qi", begin, len(piece)) + piece
                    for at in range(0, len(frame), 7_001):
                        connected.sendall(frame[at : at + 7_001])
                connected.shutdown(socket.SHUT_WR)
                while (report := self._report(connected)) >= 0:
                    self.reports.append(report)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @staticmethod
    def _report(connected: socket.socket) -> int:
        data = b""
        while len(data) < 8:
            more = connected.recv(8 - len(data))
            if not more:
                return -1
            data += more
        return int(struct.unpack(">q", data)[0])

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def written(path: Path) -> bytes:
    """The log of a store of several files, in which each ends with a blank record."""
    chance = random.Random(1)
    with txstore.open(path, **SIZES) as broker:
        producer = broker.producer("p")
        for n in range(120):
            producer.send(Message("orders", chance.randbytes(chance.choice((10, 900, 9_000))), keys=[f"k{n}"]))
        end = broker.stat().max_physical_offset
    files = sorted((path / "commitlog").glob("[0-9]" * 20))
    assert len(files) > 3
    return b"".join(file.read_bytes().ljust(FILE, b"\0") for file in files)[:end]


def pieces_of(log: bytes, seed: int, begin: int) -> list[tuple[int, bytes]]:
    """The log from an offset on, in pieces that cut records, but end at the end of a file; and heartbeats."""
    chance, pieces, at = random.Random(seed), [], begin
    while at < len(log):
        size = min(chance.choice((1, 11, 500, 32_768)), FILE - at % FILE, len(log) - at)
        pieces.append((at, log[at : at + size]))
        at += size
        if chance.random() < 0.1:
            pieces.append((at, b""))
    return pieces


@pytest.mark.parametrize("seed", range(5))
def test_pieces_that_cut_records_become_the_same_store(tmp_path: Path, seed: int) -> None:
    log = written(tmp_path / "store")
    path = tmp_path / "copy"
    (path / "config").mkdir(parents=True)
    sizes = {"mapped_file_size_consume_queue": 6_000_000, "max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000}
    begin_replica_of_rocketmq(path, "127.0.0.1:10911", mapped_file_size_commit_log=FILE, **sizes)
    with closing(Master()) as master, open_as(path, BrokerConfig(), replica=True) as broker:
        copy = ReplicaCopy(broker)
        assert copy.store.store_id is not None
        # A master that is asked for 0 sends its last file, so the first byte is not asked for.
        copy.begin(b"\0")
        master.serve(*pieces_of(log, seed, 1))
        with HAChannel(master.address, 1, seconds=10) as channel:
            while copy.store.appended_end < len(log):
                at, data = channel.receive()
                copy.add(data[max(0, copy.next_offset - at) :], 1)
                channel.report(copy.store.appended_end)
            with pytest.raises(BrokerUnreachableError, match="closed it"):
                receive_all(channel)  # A heartbeat may be left.
        copy.show_up_to(len(log), len(log))
        assert copy.missing_bytes == 0
    assert (master.reports[0], master.reports[-1]) == (1, len(log))
    with (
        closing(Store.open(str(tmp_path / "store"), read_only=True)) as theirs,
        closing(Store.open(str(path), read_only=True)) as ours,
    ):
        assert ours.queues() == theirs.queues()
        for topic, queue_id, first, end in theirs.queues():
            rows = [[one.record for one in store.read(topic, queue_id, first, end)[0]] for store in (ours, theirs)]
            assert rows[0] == rows[1]
        assert [one.body for one in ours.query("orders", "k7", 9)] == [
            one.body for one in theirs.query("orders", "k7", 9)
        ]


def receive_all(channel: HAChannel) -> None:
    while True:
        channel.receive()


@pytest.mark.parametrize("piece", [(8, b"x"), (10, b"x"), (8, b"")], ids=["again", "later", "heartbeat elsewhere"])
def test_bytes_of_another_offset_are_not_taken(piece: tuple[int, bytes]) -> None:
    with closing(Master()) as master:
        master.serve((1, b"12345678"), piece)
        with (
            HAChannel(master.address, 1, seconds=10) as channel,
            pytest.raises(BrokerUnreachableError, match="9 is the next byte"),
        ):
            receive_all(channel)


def test_master_that_closes_is_lost(tmp_path: Path) -> None:
    with closing(Master()) as master:
        master.serve((5, b"12"))
        with HAChannel(master.address, 5, seconds=10) as channel:
            assert channel.receive() == (5, b"12")
            with pytest.raises(BrokerUnreachableError, match="closed it"):
                channel.receive()
    with pytest.raises(BrokerUnreachableError, match="brokerIP2 and haListenPort"):
        HAChannel(master.address, 5, seconds=10)
