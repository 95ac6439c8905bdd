"""Guards the connections of threads that send: one request at a time on each, none is lost, confused or kept for ever.

Checks of their half messages come over the client's main connection, where they are answered.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.waiting import eventually
from txstore import Message, TransactionListener
from txstore._native import FrameReader
from txstore.client import channel as channels
from txstore.client.channel import Channel, Channels
from txstore.message import LocalTransactionState


def unsigned(fields: Any, body: bytes | None) -> dict[str, str]:
    return dict(fields)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel("here", ours, unsigned), theirs


class Listener(TransactionListener):
    """Leaves each transaction to a check, and notes whom each was asked of."""

    def __init__(self, name: bytes, asked: list[tuple[bytes, bytes]]) -> None:
        self.name = name
        self.asked = asked

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        self.asked.append((message.body, self.name))
        return LocalTransactionState.COMMIT


def test_each_client_is_asked_about_its_own_transactions(tmp_path: Path) -> None:
    """Their half messages come over other connections than the answers to checks."""
    # After a check without an answer within the interval, the other client is asked.
    options: Any = {"transaction_timeout": 0.05, "transaction_check_interval": 20}
    with txstore.serve(tmp_path / "store", listen="127.0.0.1:0", name_server="127.0.0.1:0", **options) as server:
        assert server.name_server is not None
        with (
            txstore.connect(server.name_server, send_msg_timeout=60) as one,
            txstore.connect(server.name_server) as other,
        ):
            asked: list[tuple[bytes, bytes]] = []
            listeners = [Listener(name, asked) for name in (b"one", b"other")]
            producers = [
                broker.transaction_producer("group", listener)
                for broker, listener in zip((one, other), listeners, strict=True)
            ]
            eventually(lambda: _is_numbered(one) and _is_numbered(other))
            for number in range(20):
                for name, producer in zip((b"one", b"other"), producers, strict=True):
                    producer.send_in_transaction(Message("orders", b"%s %d" % (name, number)))
            assert [_main(broker).channels.open for broker in (one, other)] == [1, 1]
            eventually(lambda: len({body for body, _ in asked}) == 40)
            first = dict(reversed(asked))
            assert {body: body.split()[0] for body in first} == first


def test_a_running_transaction_is_not_checked_by_another_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one may find no trace of a local transaction that still runs, and would roll it back."""
    caplog.set_level(logging.DEBUG, "txstore.remoting")
    # After a check without an answer within the interval, the other client is asked.
    options: Any = {"transaction_timeout": 0.05, "transaction_check_interval": 5}
    with txstore.serve(tmp_path / "store", listen="127.0.0.1:0", name_server="127.0.0.1:0", **options) as server:
        assert server.name_server is not None
        with (
            txstore.connect(server.name_server, send_msg_timeout=60) as one,
            txstore.connect(server.name_server) as other,
        ):
            asked: list[tuple[bytes, bytes]] = []
            one.transaction_producer("group", Listener(b"one", asked))
            producer = other.transaction_producer("group", Listener(b"other", asked))
            eventually(lambda: _is_numbered(one) and _is_numbered(other))
            with producer.transaction(Message("orders", b"slow")):
                eventually(lambda: bool(asked) or caplog.text.count("still runs here") >= 2)
                assert asked == []


@pytest.mark.parametrize("answered", [0, 1])
def test_a_server_that_closes_at_once_may_require_tls(pair: tuple[Channel, socket.socket], answered: int) -> None:
    channel, theirs = pair

    def serve() -> None:
        reader = FrameReader()
        for _ in range(answered):
            (request,) = reader.feed(theirs.recv(65_536))
            theirs.sendall(request.response(0))
        theirs.recv(65_536)
        theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    for _ in range(answered):
        assert channel.call(10, {}, timeout=60).code == 0
    with pytest.raises(txstore.BrokerUnreachableError, match="the other side closed it") as raised:
        channel.call(10, {}, timeout=60)
    server.join()
    assert ("it may require TLS or a certificate: tls=…, or TXSTORE_TLS" in str(raised.value)) == (answered == 0)


def _main(broker: txstore.RemoteBroker) -> Any:
    name = broker._client.brokers()[0]
    connection = broker._client.live_connection(name)
    assert connection is not None
    return connection


def _is_numbered(broker: txstore.RemoteBroker) -> bool:
    connection = broker._client.live_connection(broker._client.brokers()[0])
    return connection is not None and connection.number is not None


def test_threads_share_channels_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_CHANNELS_MAX", 3)
    with txstore.open(tmp_path / "store", shared=True) as broker:
        producer = broker.producer("group")
        threads = [
            threading.Thread(target=lambda: [producer.send(Message("orders", b"x")) for _ in range(100)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= _main(broker).channels.open <= 3
        assert _main(broker).channels.in_use == 0


def test_a_channel_that_was_idle_too_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ours: list[socket.socket] = []

    def dial() -> socket.socket:
        one, other = socket.socketpair()
        ours.append(other)
        return one

    pool = Channels("here", dial, unsigned)
    first = pool.take()
    assert first is not None
    pool.give(first)
    assert pool.take() is first
    pool.give(first)
    first.used -= 60
    second = pool.take()
    assert second is not None
    assert second is not first
    assert not first.is_open
    assert ours[0].recv(1) == b""
    pool.close()
    pool.give(second)
    assert not second.is_open
    assert pool.take() is None
    for other in ours:
        other.close()


def test_a_call_that_waits_ends_with_the_main_connection() -> None:
    ours, theirs = socket.socketpair()
    pool = Channels("here", lambda: ours, unsigned)
    channel = pool.take()
    assert channel is not None
    raised: list[txstore.BrokerUnreachableError] = []

    def call() -> None:
        try:
            channel.call(10, {}, timeout=60)
        except txstore.BrokerUnreachableError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert theirs.recv(65536)
    pool.close()
    thread.join(60)
    theirs.close()
    assert [error.in_doubt for error in raised] == [True]
    pool.give(channel)
    assert not channel.is_open


def test_no_answer_in_time_leaves_the_call_in_doubt(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    with pytest.raises(txstore.BrokerTimeoutError, match=r"here did not answer request 10 within 0.05 s") as caught:
        channel.call(10, {}, timeout=0.05)
    assert caught.value.in_doubt
    assert not channel.is_open


def test_a_trickle_of_other_answers_does_not_extend_the_time(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    stop = threading.Event()

    def trickle() -> None:
        frame = txstore._native.encode_request(10, 77, {})
        while not stop.wait(0.01):
            try:
                theirs.sendall(frame)
            except OSError:
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(txstore.BrokerTimeoutError):
            channel.call(10, {}, timeout=0.2)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("end", ["closed", "malformed"])
def test_a_connection_that_ends_before_the_answer_leaves_the_call_in_doubt(
    pair: tuple[Channel, socket.socket], end: str
) -> None:
    channel, theirs = pair

    def answer() -> None:
        theirs.recv(65536)
        if end == "malformed":
            theirs.sendall(b"\x00\x00\x00\x01\xff")
        else:
            theirs.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(txstore.BrokerUnreachableError, match="may have been carried out") as caught:
        channel.call(10, {}, timeout=10)
    thread.join()
    assert caught.value.in_doubt
    assert not channel.is_open


def test_a_request_that_cannot_be_sent_is_not_in_doubt(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.close()
    with pytest.raises(txstore.BrokerUnreachableError) as caught:
        channel.call(10, {}, timeout=10)
    assert not caught.value.in_doubt


def test_an_unknown_connection_sends_checks_to_any_producer_of_the_group(tmp_path: Path) -> None:
    """Its number may be of a server that was killed."""
    options: Any = {"transaction_timeout": 0.05, "transaction_check_interval": 0.05}
    with txstore.serve(tmp_path / "store", listen="127.0.0.1:0", name_server="127.0.0.1:0", **options) as server:
        assert server.name_server is not None
        with txstore.connect(server.name_server, send_msg_timeout=60, request_timeout=60) as broker:
            asked: list[tuple[bytes, bytes]] = []
            listener = Listener(b"one", asked)
            producer = broker.transaction_producer("group", listener)
            eventually(lambda: _is_numbered(broker))
            _main(broker).number = "7"
            producer.send_in_transaction(Message("orders", b"x"))
            eventually(lambda: asked[:1] == [(b"x", b"one")])
