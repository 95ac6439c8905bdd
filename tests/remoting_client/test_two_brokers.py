"""Guards clusters of two master brokers: half messages with the same offset on both are different transactions."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import txstore
from tests.frames import Wire, frame
from tests.remoting_client.conftest import SOON, STORE_SETTINGS
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, Server, TransactionListener
from txstore.message import TransactionMessage


class NameServer(socketserver.ThreadingTCPServer):
    """Answers with the merged routes of several servers, each of which is its own name server."""

    daemon_threads = True

    def __init__(self, servers: list[Server]) -> None:
        self._names = [str(server.name_server) for server in servers]
        super().__init__(("127.0.0.1", 0), _Answers)
        self.names = f"127.0.0.1:{self.server_address[1]}"

    def ask(self, code: int, fields: dict[str, str]) -> tuple[int, bytes]:
        merged: dict[str, object] = {}
        for address in self._names:
            with Wire(address) as wire:
                answer = wire.call(code, fields)
            if answer.code != 0:
                continue
            for name, value in json.loads(answer.body or b"{}").items():
                known = merged.setdefault(name, value)
                if known is not value and isinstance(known, list):
                    known += value
                elif known is not value and isinstance(known, dict):
                    known |= value
        return (0, json.dumps(merged).encode()) if merged else (17, b"")


class _Answers(socketserver.StreamRequestHandler):
    server: NameServer

    def handle(self) -> None:
        while len(head := self.rfile.read(8)) == 8:
            total, mark = struct.unpack(">II", head)
            header = json.loads(self.rfile.read(total - 4)[: mark & 0xFFFFFF])
            code, body = self.server.ask(header["code"], header.get("extFields") or {})
            answer = {"code": code, "language": "JAVA", "version": 479, "opaque": header["opaque"], "flag": 1}
            self.wfile.write(frame(json.dumps(answer).encode(), body))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[Server]]]:
    """The name server's address, and its brokers."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                txstore.serve(
                    tmp_path / name, listen="127.0.0.1:0", name_server="127.0.0.1:0", broker_name=name, **STORE_SETTINGS
                )
            )
            for name in ("broker-a", "broker-b")
        ]
        for server in servers:
            server.broker.create_topic("orders", 1)
        names = stack.enter_context(NameServer(servers))
        serving = threading.Thread(target=names.serve_forever, args=(0.01,))
        serving.start()
        stack.callback(serving.join)
        stack.callback(names.shutdown)
        yield names.names, servers


class Asked(TransactionListener):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def execute_local_transaction(self, message: TransactionMessage, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        self.bodies.append(message.body)
        return LocalTransactionState.ROLLBACK


def test_end_of_one_transaction_does_not_affect_the_other_broker_s(
    cluster: tuple[str, list[Server]],
) -> None:
    names, (first, second) = cluster
    asked = Asked()
    with txstore.connect(names, **SOON) as remote:
        producer = remote.transaction_producer("payments", asked)
        of_first, of_second = sorted(remote.write_queues("orders"))
        with producer.transaction(Message("orders", b"slow"), queue_id=of_first) as slow:
            with producer.transaction(Message("orders", b"quick"), queue_id=of_second) as quick:
                assert slow.send_result.queue_offset == quick.send_result.queue_offset
                assert slow.send_result.queue_id != quick.send_result.queue_id
            # The server checks the slow one, whose local transaction still runs: no answer may be sent.
            pending = first.broker.transactions
            eventually(lambda: bool(asked.bodies) or any(row.checks > 1 for row in pending(state="pending")))
            assert asked.bodies == []
        for server in (first, second):
            (done,) = server.broker.transactions(state="committed")
            assert (
                done.topic == "orders"
            )  # A check that was sent before the end may arrive after it, and changes nothing.


def test_calls_of_operators_reach_both_brokers(cluster: tuple[str, list[Server]]) -> None:
    names, servers = cluster
    with txstore.connect(names, **SOON) as remote:
        remote.create_topic("bills", 2)
        assert [server.broker.has_topic("bills") for server in servers] == [True, True]
        producer = remote.producer("p")
        sent = [producer.send(Message("bills", b"x", keys=["k"]), queue_id=number) for number in (1, 65_536, 65_537)]
        found = remote.describe_topic("bills")
        assert [(one.queue_id, one.end) for one in found.queues] == [(0, 0), (1, 1), (65_536, 1), (65_537, 1)]
        assert {one.message_id for one in remote.query("bills", "k")} == {one.message_id for one in sent}
        assert remote.message(sent[2].message_id).message_id == sent[2].message_id
        assert [one.message_id for one in remote.read("bills", 65_537, 0)[0]] == [sent[2].message_id]
        remote.create_group("shipping")
        assert [server.broker.has_group("shipping") for server in servers] == [True, True]
        offsets = remote.reset_offsets("shipping", "bills", txstore.ConsumeFromWhere.LAST)
        assert offsets == {0: 0, 1: 1, 65_536: 1, 65_537: 1}
        assert sum(row.lag for row in remote.lag("shipping")) == 0
        with pytest.raises(txstore.BrokerRefusedError, match="this connection has 2: broker-a, broker-b"):
            remote.transactions()
        producer.close()
        assert remote.delete_topic("bills") == 3
        assert [server.broker.has_topic("bills") for server in servers] == [False, False]
