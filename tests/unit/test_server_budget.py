"""Guards the server's memory: clients together stay within its limit, and none keeps a frame or response unfinished.

Frames that are never complete, responses that nobody reads, requests that wait, by hand, against a small budget.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.frames import Wire, frame, json_header
from tests.remoting_requests import HEARTBEAT, PULL, ROUTE, SEND_V2, heartbeat, pulling, sending
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig
from txstore._native import ResponseCode

MIB = 1 << 20
SMALL = ServerConfig(listen="127.0.0.1:0", name_server=None, memory_max=16 * MIB)


def connect(server: Server, **options: Any) -> Wire:
    assert server.address is not None
    return Wire(server.address, **options)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, SMALL) as server:
        yield server


def held(server: Server) -> int:
    return server.native.counters()["memory_held"]


@contextlib.contextmanager
def sampled(server: Server) -> Iterator[list[int]]:
    """The most that was held so far."""
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.0002):
            peak[0] = max(peak[0], held(server))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def test_incomplete_frames_do_not_fill_the_memory(server: Server) -> None:
    with contextlib.ExitStack() as stack, connect(server) as bystander:
        assert bystander.call(SEND_V2, sending(), b"x").code == 0
        for _ in range(40):
            wire = stack.enter_context(connect(server))
            with contextlib.suppress(OSError):
                wire.socket.sendall(struct.pack(">II", 8 * MIB, 100) + b"{" * MIB)
            assert held(server) <= 16 * MIB
        eventually(lambda: server.native.counters()["connections_over_budget"] > 20)
        assert held(server) <= 16 * MIB
        assert bystander.call(SEND_V2, sending(), b"y").code == 0
        assert bystander.call(PULL, pulling()).code == 0
    eventually(lambda: server.native.counters()["connections"] == 0)
    eventually(lambda: held(server) == 0)


def test_unread_responses_do_not_fill_the_memory(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    for _ in range(20):
        broker.append(Message("orders", b"x" * 60_000), 0)
    # A quarter of the budget is for memory that is not counted, and this process takes some of it.
    most = 64 * MIB
    with Server(broker, replace(SMALL, memory_max=most)) as server:
        with contextlib.ExitStack() as stack, sampled(server) as peak:
            for _ in range(160):
                wire = stack.enter_context(connect(server))
                with contextlib.suppress(OSError):
                    wire.socket.sendall(frame(json_header(PULL, pulling(), 1)) * 30)
            eventually(lambda: server.native.counters()["connections_dropped"] > 5)
            eventually(lambda: peak[0] > 30 * MIB)  # As the other thread has seen it.
            assert peak[0] <= most

            def is_served() -> bool:
                with contextlib.suppress(ConnectionError), connect(server) as bystander:
                    return bystander.call(PULL, pulling(maxMsgNums=1)).code == 0
                return False

            eventually(is_served)
        eventually(lambda: server.native.counters()["connections"] == 0)
        eventually(lambda: held(server) == 0)


def test_waiting_requests_are_counted(server: Server, broker: EmbeddedBroker) -> None:
    """Held pulls, and requests that wait for Python."""
    broker.create_topic("orders", 1)
    with connect(server) as wire:
        for _ in range(100):
            wire.write(PULL, pulling(sysFlag=6, suspendTimeoutMillis=30_000))
        eventually(lambda: server.native.counters()["pulls_held"] == 100)
        assert held(server) > 400_000
    eventually(lambda: server.native.counters()["connections"] == 0)
    eventually(lambda: held(server) == 0)


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_frame_must_be_complete_in_time(broker: EmbeddedBroker, first: bool) -> None:
    config = replace(SMALL, first_frame_timeout=0.3) if first else replace(SMALL, frame_timeout=0.3)
    with Server(broker, config) as server, connect(server, timeout=20) as wire:
        if not first:
            assert wire.call(SEND_V2, sending(), b"x").code == 0
        wire.socket.sendall(frame(json_header(SEND_V2, sending(), 9), b"never whole")[:-1])
        assert wire.closed()
        eventually(lambda: server.native.counters()["connections_dropped"] == 1)


def test_connection_without_a_frame_may_be_idle(broker: EmbeddedBroker) -> None:
    """The time limit of a frame begins with its first byte."""
    config = ServerConfig("127.0.0.1:0", name_server=None, first_frame_timeout=0.05, frame_timeout=0.05)
    with Server(broker, config) as server, connect(server) as idle, connect(server) as other:
        for _ in range(50):
            assert other.call(ROUTE, {"topic": "TBW102"}).code == 0
        other.socket.sendall(b"\0")
        assert other.closed()
        assert idle.call(ROUTE, {"topic": "TBW102"}).code == 0


def test_client_that_does_not_read_in_time_is_closed(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    for _ in range(20):
        broker.append(Message("orders", b"x" * 60_000), 0)
    config = ServerConfig("127.0.0.1:0", name_server=None, unread_timeout=0.3)
    with Server(broker, config) as server, connect(server) as wire:
        wire.socket.sendall(frame(json_header(PULL, pulling(), 1)) * 20)
        eventually(lambda: server.native.counters()["connections_dropped"] == 1)


def test_request_without_a_message_has_a_small_limit(server: Server) -> None:
    said = json.loads(heartbeat("c1", "c")) | {"more": "x" * MIB}
    with connect(server) as wire:
        refused = wire.call(HEARTBEAT, {}, json.dumps(said).encode())
        assert (refused.code, "at most" in (refused.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        assert server.counters()["consumers"] == 0
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0


def test_memory_that_floods_left_in_the_heap_is_given_back(server: Server) -> None:
    """A block in use above freed ones keeps them in the heap, and they would count against `memory_max`."""
    pytest.importorskip("typer")
    from txstore.cli.serve import FreedMemory

    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    freed = FreedMemory()
    blocks: list[int] = []
    # The heap may have free blocks from other tests, which are used first.
    while server.counters()["memory_uncounted"] <= 96 << 20:
        assert len(blocks) < 1_000_000, "4 GB of blocks are not counted as memory"
        new = [library.malloc(4_000) for _ in range(5_000)]
        for block in new:
            ctypes.memset(block, 1, 4_000)
        blocks += new
    try:
        for block in blocks[:-1]:
            library.free(block)
        eventually(lambda: server.counters()["memory_uncounted"] > 64 << 20)
        freed.give_back(server)
        eventually(lambda: server.counters()["memory_uncounted"] < 32 << 20)
    finally:
        library.free(blocks[-1])


def test_memory_that_is_not_counted_costs_small_clients_nothing(broker: EmbeddedBroker) -> None:
    """When the process suddenly takes much memory, clients that hold much make room, and others stay."""
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = 512 * MIB
    with Server(broker, replace(SMALL, memory_max=128 * MIB)) as server, contextlib.ExitStack() as stack:
        bystander = stack.enter_context(connect(server))
        assert bystander.call(SEND_V2, sending(), b"x").code == 0
        for _ in range(40):
            wire = stack.enter_context(connect(server))
            wire.socket.sendall(struct.pack(">II", 8 * MIB, 100) + b"{" * MIB)
        eventually(lambda: held(server) > 36 * MIB)
        block = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        try:
            ctypes.memset(block, 1, size)
            for _ in range(100):
                assert bystander.call(SEND_V2, sending(), b"x" * 10_000).code == 0
                time.sleep(0.002)
            eventually(lambda: held(server) <= 32 * MIB)
        finally:
            library.munmap(block, size)
        assert 0 < server.native.counters()["connections_over_budget"] < 40
