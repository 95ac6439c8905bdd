"""Guards the client against any peer: it reports what is wrong, where, and what to do, and it never hangs."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.damage import overwrite_record
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message
from txstore._native import FrameReader, batch_body, decode_records, encode_request, properties_text
from txstore.client import rebalance
from txstore.client.heartbeat import heartbeat
from txstore.client.offsets import Offsets
from txstore.client.options import ConnectConfig
from txstore.client.reset_offset import parse_offset_table
from txstore.client.route import Queue, QueueNumbers, parse_route
from txstore.errors import (
    BrokerBusyError,
    BrokerRefusedError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidMessageError,
    InvalidOptionError,
    LateEndError,
    ProtocolError,
    RouteNotFoundError,
    StoreClosedError,
    StoreForkedError,
)
from txstore.remoting.refusals import refusal

# Bytes


def test_request_is_read_as_written_in_any_fragmentation() -> None:
    frame = encode_request(310, 7, {"a": "group", "i": "KEYS\x01k\x02"}, b"body")
    for step in (1, 3, len(frame)):
        reader = FrameReader()
        found = [command for at in range(0, len(frame), step) for command in reader.feed(frame[at : at + step])]
        (command,) = found
        assert (command.code, command.opaque, command.body) == (310, 7, b"body")
        assert command.ext_fields == {"a": "group", "i": "KEYS\x01k\x02"}
        assert not command.is_response
        assert not command.is_one_way
        (answer,) = FrameReader().feed(command.response(3, "no", body=b"x"))
        assert (answer.code, answer.opaque, answer.is_response, answer.remark, answer.body) == (3, 7, True, "no", b"x")


@pytest.mark.parametrize(
    "frame", [struct.pack(">II", 2**31, 0), struct.pack(">IB", 100, 9) + b"\0" * 96, b"HTTP/1.1 400 Bad Request\r\n"]
)
def test_malformed_frame_is_reported(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(frame)


def test_records_of_a_response_belong_to_the_broker(broker: EmbeddedBroker) -> None:
    producer = broker.producer("p")
    sent = [producer.send(Message("t", str(n).encode(), tags="a"), queue_id=0) for n in range(3)]
    stored, _ = broker.read("t", 0, 0)
    data = b"".join(message.record for message in stored)
    found = decode_records(data)
    assert [(one.message_id, one.queue_offset, one.body, one.physical_offset) for one in found] == [
        (one.message_id, n, str(n).encode(), one.physical_offset) for n, one in enumerate(sent)
    ]
    with pytest.raises(InvalidMessageError, match="no consumer handed it out"):
        found[0].retry()
    decode_records(data, unacknowledged=True)[0].retry()
    for cut in (1, 30, len(data) - 1):
        with pytest.raises(ProtocolError, match="record of an answer"):
            decode_records(data[:cut])


def test_message_is_written_in_a_request_and_read_back() -> None:
    message = Message("t", b"xyz", tags="a", properties={"who": "ü"}, flag=7)
    assert (
        properties_text(message, "ID", [("PGROUP", "g")])
        == "TAGS\x01a\x02who\x01ü\x02UNIQ_KEY\x01ID\x02PGROUP\x01g\x02"
    )
    body = batch_body([message, message], ["A", "B"])
    size, magic, crc, flag, length = struct.unpack(">iiiii", body[:20])
    assert (size * 2, magic, crc, flag, length, body[20:23]) == (len(body), 0, 0, 7, 3, b"xyz")
    assert body[25:size].decode() == "TAGS\x01a\x02who\x01ü\x02UNIQ_KEY\x01A\x02"


# Routes, offsets, heartbeats


def test_queues_are_ordered_as_in_all_clients_and_keep_their_ids() -> None:
    route = parse_route(
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"10.0.0.2:1","1":"slave:1"}},'
        b'{"brokerName":"a","brokerAddrs":{"0":"10.0.0.1:1"}},{"brokerName":"c","brokerAddrs":{"1":"slave:1"}}],'
        b'"queueDatas":[{"brokerName":"b","readQueueNums":2,"writeQueueNums":1,"perm":6},'
        b'{"brokerName":"c","readQueueNums":2,"writeQueueNums":2,"perm":6},'
        b'{"brokerName":"a","readQueueNums":1,"writeQueueNums":1,"perm":4}]}'
    )
    # A broker without a master is read at its replica, and not written to.
    assert route.brokers == {"b": "10.0.0.2:1", "a": "10.0.0.1:1", "c": "slave:1"}
    assert route.read == (Queue("a", 0), Queue("b", 0), Queue("b", 1), Queue("c", 0), Queue("c", 1))
    assert route.write == (Queue("b", 0),)
    numbers = QueueNumbers()
    given = [numbers.number(queue) for queue in (Queue("b", 1), Queue("a", 0), Queue("b", 0))]
    assert given == [1, 65_536, 0]
    assert [numbers.queue(number) for number in given] == [Queue("b", 1), Queue("a", 0), Queue("b", 0)]
    for bad in (b"", b"[]", b'{"queueDatas":[{"perm":6}]}', b'{"queueDatas":[7]}'):
        with pytest.raises(ProtocolError):
            parse_route(bad)


def test_retry_topic_reports_the_smallest_offset() -> None:
    offsets = Offsets()
    topic = "%RETRY%g"
    offsets.begin(topic, "g%a", 0, 5)
    offsets.begin(topic, "g%b", 0, 5)
    offsets.set(topic, "g%a", 0, 9)
    assert [tuple(row) for row in offsets.unreported()] == [(topic, "g", 0, 5)]
    offsets.set(topic, "g%b", 0, 7)
    (row,) = offsets.unreported()
    assert (row.group, row.queue_offset) == ("g", 7)
    offsets.set(topic, "g%b", 0, 8)
    offsets.mark_reported(row)
    assert [row.queue_offset for row in offsets.unreported()] == [8], (
        "messages that arrived meanwhile are not reported yet"
    )
    assert offsets.get(topic, "g%a", 0) == 9
    offsets.leave(topic, "g%a", 0)
    assert offsets.get(topic, "g%a", 0) is None
    offsets.set("t", "g", 1, 3)
    assert offsets.get("t", "g", 1) == 3
    assert [row.queue_offset for row in offsets.unreported("t", "g", 1)] == [3]


def test_table_that_is_not_json_is_read() -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:5,{"topic":"t","brokerName":"b","queueId":0}:-1}}'
    )
    assert list(parse_offset_table(body)) == [("t", Queue("b", 1), 5), ("t", Queue("b", 0), -1)]
    with pytest.raises(ProtocolError):
        list(parse_offset_table(b'{"offsetTable":{{"queueId":1}:5}}'))


def test_client_without_members_sends_no_heartbeat() -> None:
    assert heartbeat("id", [], []) is None


# Options and refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"send_message_timeout": 3}, "did you mean send_msg_timeout"),
        ({"request_timeout": 0}, "must be between 1 ms and 1 day"),
        ({"request_timeout": "3"}, "expected a duration"),
        ({"pull_batch_size": 0}, "1 to 1024"),
        ({"pull_timeout": 1}, "must exceed broker_suspend_max_time"),
    ],
)
def test_wrong_option_is_refused_before_connecting(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        txstore.connect("127.0.0.1:9876", **options)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:0", "localhost:65536", ":9876", "unix:", "a:1;b"])
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidOptionError, match="invalid address"):
        txstore.connect(address)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, BrokerRefusedError),
        (2, BrokerBusyError),
        (215, BrokerBusyError),
        (13, InvalidMessageError),
        (17, RouteNotFoundError),
        (604, LateEndError),
        (9999, BrokerRefusedError),
    ],
)
def test_refusal_names_the_server_the_request_and_the_reason(code: int, kind: type[Exception]) -> None:
    (request,) = FrameReader().feed(encode_request(10, 1, {}))
    (answer,) = FrameReader().feed(request.response(code, "because"))
    error = refusal(answer, "a message", "broker b")
    assert type(error) is kind
    assert all(word in str(error) for word in ("a message", "broker b", str(code), "because"))
    assert ConnectConfig().seconds("send_msg_timeout") == 3.0


# Peers that are not brokers


@pytest.fixture
def answering() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Starts a server that handles each connection with the given function; returns its address."""
    listeners: list[socket.socket] = []

    def start(answer: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def once(connection: socket.socket) -> None:
            with connection, contextlib.suppress(ConnectionError):  # A client may leave without its answer.
                answer(connection)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=once, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def hangs_up(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.close()


def a_web_server(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    silent(connection)


def half_a_frame(connection: socket.socket) -> None:
    (request,) = FrameReader().feed(connection.recv(4096))
    connection.sendall(request.response(0, body=b"{}")[:-1])
    connection.close()


@pytest.mark.parametrize(
    ("answer", "seconds", "error", "says"),
    [
        (silent, 0.3, BrokerTimeoutError, "did not answer request 106 within 0.3 s"),
        (hangs_up, 60, BrokerUnreachableError, "is lost"),
        (a_web_server, 60, BrokerUnreachableError, "a malformed frame"),
        (half_a_frame, 60, BrokerUnreachableError, "the other side closed it"),
    ],
)
def test_peer_that_is_not_a_broker_is_detected_at_once(
    answering: Any, answer: Callable[[socket.socket], None], seconds: float, error: type[Exception], says: str
) -> None:
    address = answering(answer)
    with pytest.raises(error, match=says) as raised:
        txstore.connect(address, request_timeout=seconds)
    assert getattr(raised.value, "address", None) == address


def test_unreachable_server_is_reported_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    for nobody in (address, f"unix:{tmp_path}/none", f"{address};{address}"):
        with pytest.raises(BrokerUnreachableError, match="cannot be reached") as raised:
            txstore.connect(nobody)
        assert raised.value.address == nobody


def test_failed_connections_leave_no_thread(answering: Any) -> None:
    address = answering(hangs_up)
    before = set(threading.enumerate())
    for _ in range(5):
        with pytest.raises(BrokerUnreachableError):
            txstore.connect(address)
    left = set(threading.enumerate()) - before
    assert len(left) <= 5, "threads of the test's server, which end with their connections"
    assert [thread.name for thread in left if thread.name == "txstore-remoting"] == []


# The server in this process


@pytest.fixture
def served(broker: EmbeddedBroker) -> Iterator[str]:
    """The test's store, served in this process for clients."""
    with txstore.serve(broker, listen="127.0.0.1:0", name_server=None) as server:
        assert server.address is not None
        yield server.address


def test_broker_works_through_a_unix_socket(broker: EmbeddedBroker, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        txstore.serve(broker, listen=None, name_server=None, unix=path),
        txstore.connect(f"unix:{path}") as remote,
    ):
        producer = remote.transaction_producer("g")
        with producer.transaction(Message("t", b"17")):
            pass
        with remote.consumer("c", "t") as consumer:
            assert [message.body for message in consumer.poll(1, 60)] == [b"17"]


@pytest.mark.parametrize("tags", [None, "paid"])
def test_consumer_reports_a_damaged_record_and_continues(
    broker: EmbeddedBroker, served: str, caplog: pytest.LogCaptureFixture, tags: str | None
) -> None:
    """The server says which message is damaged, and where the queue continues. With tags, others are skipped first."""
    damaged = {7, 8, 39}
    with broker.producer("p") as producer:
        for number in range(40):
            wanted = number > 4 or tags is None
            message = Message("t", b"message %d." % number, tags="paid" if wanted else "open")
            assert producer.send(message, queue_id=0).queue_offset == number
        producer.send(Message("other", b"the last record, so that the store can be closed"))
    for number in damaged:
        overwrite_record(Path(broker.path), b"message %d." % number)
    seen: list[bytes] = []
    options: dict[str, Any] = {
        "reconnect_back_off": 0.01,
        "reconnect_back_off_max": 0.1,
        "persist_consumer_offset_interval": 0.1,
    }
    caplog.set_level(logging.ERROR, "txstore.remoting")
    with txstore.connect(served, **options) as remote, remote.consumer("c", "t", tags) as consumer:

        def is_at_the_end() -> bool:
            seen.extend(message.body for message in consumer.poll(32, 1))
            return broker.consumer_offset("t", "c", 0) == 40

        eventually(is_at_the_end)
    first = 0 if tags is None else 5
    assert seen == [b"message %d." % number for number in range(first, 40) if number not in damaged]
    reports = [(record.__dict__["queue_offset"], record.getMessage()) for record in caplog.records]
    assert [queue_offset for queue_offset, _ in reports] == sorted(damaged)
    assert all("commitlog/00000000000000000000 is damaged at byte" in text for _, text in reports)


def test_second_name_server_is_asked_when_the_first_is_unreachable(served: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"127.0.0.1:{listener.getsockname()[1]}"
    with txstore.connect(f"{gone};{served}") as remote:
        assert remote._client._name_servers == [served, gone]
        assert remote.producer("p").send(Message("t", b"x")).queue_offset == 0


def test_closed_connection_is_reported(served: str) -> None:
    remote = txstore.connect(served)
    producer, consumer = remote.producer("p"), remote.consumer("c", "t")
    producer.send(Message("t", b"x"))
    remote.close()
    remote.close()
    for call in (
        lambda: producer.send(Message("t", b"x")),
        consumer.poll,
        lambda: remote.producer("p"),
        lambda: remote.consumer("c", "t"),
        lambda: remote.queue_range("t", 0),
    ):
        with pytest.raises(StoreClosedError):
            call()
    assert remote.closed


def test_closing_ends_a_send_that_waits_in_another_thread(answering: Any) -> None:
    """The name server answers; the broker at the same address does not."""
    asked = threading.Event()

    def answer(connection: socket.socket) -> None:
        reader = FrameReader()
        while data := connection.recv(4096):
            for request in reader.feed(data):
                if request.code == 310:
                    asked.set()
                elif request.code in (105, 106):
                    connection.sendall(request.response(0, body=body.replace(b"ADDRESS", address.encode())))

    body = (
        b'{"brokerAddrTable":{"b":{"brokerName":"b","brokerAddrs":{0:"ADDRESS"}}},'
        b'"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"ADDRESS"}}],'
        b'"queueDatas":[{"brokerName":"b","readQueueNums":1,"writeQueueNums":1,"perm":6}]}'
    )
    address = answering(answer)
    remote = txstore.connect(address, request_timeout=60, send_msg_timeout=60)
    producer = remote.producer("p")
    raised: list[BaseException] = []

    def send() -> None:
        try:
            producer.send(Message("t", b"x"))
        except txstore.TxStoreError as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert asked.wait(60)
    remote.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(raised[0], StoreClosedError | BrokerUnreachableError)


def test_client_that_is_listed_twice_counts_once(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker lists clients by connection, so a client that has just reconnected is listed twice."""
    named: list[str] = []
    monkeypatch.setattr(rebalance, "_consumer_ids", lambda answer: named)
    with txstore.connect(served) as remote:
        named += [remote.client_id] * 2
        for number in range(8):
            remote.producer("p").send(Message("t", str(number).encode()))
        with remote.consumer("c", "t") as consumer:
            assert consumer.poll(1, 60)
            assert consumer.queue_ids == (0, 1, 2, 3)


def test_broker_that_moves_is_followed_to_its_new_address(answering: Any, broker: EmbeddedBroker) -> None:
    """The same broker listens at two addresses; the name server returns first one, then the other."""
    with txstore.serve(broker, listen="127.0.0.1:0", name_server="127.0.0.1:0") as server:
        addresses = [str(server.address), str(server.name_server)]

        def answer(connection: socket.socket) -> None:
            reader = FrameReader()
            while data := connection.recv(4096):
                for request in reader.feed(data):
                    connection.sendall(request.response(0, body=body.replace(b"ADDRESS", addresses[0].encode())))

        body = (
            b'{"brokerAddrTable":{"txstore":{"brokerName":"txstore","brokerAddrs":{"0":"ADDRESS"}}},'
            b'"brokerDatas":[{"brokerName":"txstore","brokerAddrs":{"0":"ADDRESS"}}],'
            b'"queueDatas":[{"brokerName":"txstore","readQueueNums":4,"writeQueueNums":4,"perm":6}]}'
        )
        broker.create_topic("t", 4)
        options: dict[str, Any] = {"poll_name_server_interval": 0.1, "rebalance_interval": 0.1}
        with txstore.connect(answering(answer), **options) as remote, remote.consumer("c", "t") as consumer:
            assert remote._client.addresses() == [addresses[0]]
            old = remote._client.connections.live(addresses[0])
            assert old is not None
            addresses.reverse()

            def has_moved() -> bool:
                consumer.poll(1, 0.05)
                return old.lost.is_set() and remote._client.addresses() == [addresses[0]]

            eventually(has_moved)
            remote.producer("p").send(Message("t", b"17"))
            assert [message.body for message in consumer.poll(1, 60)] == [b"17"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_is_told_to_connect_again(served: str) -> None:
    with txstore.connect(served) as remote:
        producer = remote.producer("p")
        producer.send(Message("t", b"x"))
        child = os.fork()
        if child == 0:
            try:
                producer.send(Message("t", b"x"))
            except StoreForkedError as error:
                remote.close()
                os._exit(0 if "connect after forking" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(Message("t", b"y")).message_id


def test_sent_messages_are_stored_unchanged(broker: EmbeddedBroker, served: str) -> None:
    with txstore.connect(served) as remote:
        sent = remote.producer("p").send(Message("t", b"17", tags="a", keys="k"))
        found = broker.message(sent.message_id, topic="t")
        assert (found.body, found.tags, found.keys, found.queue_id) == (b"17", "a", ("k",), sent.queue_id)
        assert found.physical_offset == sent.physical_offset
        with remote.transaction_producer("g").transaction(Message("t", b"18")) as tx:
            assert broker.transaction(tx.transaction_id).state == "pending"
            tx.rollback()
        assert broker.transaction(tx.transaction_id).state == "rolled_back"


def test_end_that_contradicts_an_earlier_one_is_refused(broker: EmbeddedBroker, served: str) -> None:
    """The client does not know of the earlier end, so the broker refuses this one."""
    with txstore.connect(served) as remote:
        tx = remote.transaction_producer("g").transaction(Message("t", b"17")).__enter__()
        broker.end_transaction(tx.transaction_id, txstore.LocalTransactionState.ROLLBACK)
        with pytest.raises(txstore.AlreadyEndedError):
            tx.commit()
        with pytest.raises(txstore.AlreadyEndedError):  # Leaving the block tries the commit once more.
            tx.__exit__(None, None, None)
    assert broker.transaction(tx.transaction_id).state == "rolled_back"


def test_forgotten_member_keeps_no_queue(served: str) -> None:
    with txstore.connect(served) as remote:
        producer = remote.producer("p")
        for number in range(8):
            producer.send(Message("t", str(number).encode()))
        assert remote.consumer("c", "t").poll(8, 60)
        with remote.consumer("c", "t") as consumer:
            seen: list[int] = []
            while len(seen) < 8:
                more = consumer.poll(8, 60)
                assert more
                seen += [int(message.body) for message in more]
        assert sorted(seen) == list(range(8))
