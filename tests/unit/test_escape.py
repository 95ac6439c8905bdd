"""Guards escapes: while the source is away, pending transactions of a replica go to another broker, each once.

The replica is killed after it has recorded that it will send a half message, and after it has sent it, and the source
comes back: each transaction has one message, and the source knows where.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.frames import Wire
from tests.ports import free_port
from tests.remoting_client.proxy import Proxy
from tests.remoting_requests import CHECK, END, HEARTBEAT, SEND_V2, properties, sending
from tests.unit.test_administration import Unknown
from tests.unit.test_cli_serve import serving
from tests.unit.test_replica import Committing, bodies, caught_up, serve
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, Server
from txstore._native import ResponseCode
from txstore.broker.escape_journal import EscapeJournal, read_escapes
from txstore.errors import BrokerBusyError, InvalidOptionError, StoreCorruptError
from txstore.message import utc
from txstore.transactions.escaped import EscapedTransaction, EscapeState

_QUICK: dict[str, Any] = {"escape_after": 0.1, "transaction_timeout": 0.1}


@dataclass
class Nodes:
    """A source at a fixed address, its replica, and another broker."""

    directory: Path
    address: str
    stack: ExitStack

    def source(self, **options: Any) -> Server:
        return self.stack.enter_context(serve(self.directory / "source", **({"listen": self.address} | options)))

    def replica(self, other: Server | None, **options: Any) -> Server:
        more = {} if other is None else _QUICK | {"escape_to": other.name_server}
        return self.stack.enter_context(
            serve(self.directory / "copy", replica_of=self.address, replica_name="copy", **(more | options))
        )

    def other(self, **options: Any) -> Server:
        chosen = {"broker_name": "elsewhere", "transaction_timeout": 0.1, "transaction_check_interval": 0.2} | options
        return self.stack.enter_context(serve(self.directory / "other", **chosen))

    @property
    def journal(self) -> list[EscapedTransaction]:
        return read_escapes(self.directory / "copy")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, f"127.0.0.1:{free_port()}", stack)


def begin(address: str, *sent: bytes) -> list[str]:
    """Begins transactions that stay pending. Returns their ids."""
    with (
        txstore.connect(address, send_msg_timeout=60) as client,
        client.transaction_producer("shop", Unknown()) as producer,
    ):
        return [str(producer.send_in_transaction(Message("orders", one)).transaction_id) for one in sent]


def pending(server: Server) -> set[str]:
    return {str(one.transaction_id) for one in server.broker.transactions()}


def delivered(server: Server) -> list[bytes]:
    """What its consumers see. The topic may not have been created."""
    return bodies(server, "orders") if "orders" in server.broker.topics() else []


def committed_at(server: Server, *expected: bytes) -> None:
    """Waits until a producer that is asked there has committed these, and nothing else is pending."""
    assert server.address is not None
    with txstore.connect(server.address) as client, client.transaction_producer("shop", Committing()):
        eventually(lambda: pending(server) == set())
    assert delivered(server) == sorted(expected)


def listed(server: Server, *options: str) -> list[dict[str, Any]]:
    """What `txstore tx list --escaped` prints about a server."""
    pytest.importorskip("typer")
    command = ["-c", "import sys; from txstore.cli.main import main; sys.exit(main())", "tx", "list", "--escaped"]
    ended = subprocess.run(
        [sys.executable, *command, "--server", str(server.address), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows


def test_pending_transactions_escape_and_the_source_that_comes_back_knows(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    ids = set(begin(nodes.address, b"1", b"2", b"3"))
    caught_up(copy, source)
    assert pending(copy) == ids
    source.close()
    eventually(lambda: pending(other) == ids)
    committed_at(other, b"1", b"2", b"3")
    eventually(lambda: {one.state for one in nodes.journal} == {EscapeState.SENT})
    assert {(one.transaction_id, one.broker_name) for one in nodes.journal} == {(one, "elsewhere") for one in ids}
    # Its checks would be answered with COMMIT, and each transaction have a second message.
    source = nodes.source(transaction_timeout=0, transaction_check_interval=0.1)
    with txstore.connect(nodes.address) as client, client.transaction_producer("shop", Committing()) as producer:
        eventually(lambda: pending(source) == set())
        new = str(producer.send_in_transaction(Message("orders", b"new")).transaction_id)
        eventually(lambda: new not in pending(source))
        assert {one.transaction_id for one in client.escaped_transactions()} == ids
        for one in ids:
            trace = client.transaction(one)
            assert trace.state == "rolled_back"
            assert trace.escaped is not None
            assert trace.escaped.state is EscapeState.SENT
            assert "it has escaped to broker elsewhere, which decides" in trace.explain()
    assert delivered(source) == [b"new"]
    assert {
        row["transaction_id"]: (row["escape"], row["broker_name"]) for row in listed(source, "--json")
    } == dict.fromkeys(ids, ("sent", "elsewhere"))
    caught_up(copy, source)
    assert pending(copy) == set()


def test_source_holds_ends_and_checks_until_its_replica_has_told(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    eventually(lambda: EscapeJournal(nodes.directory / "source").replicas() == {"copy"})
    (escaped,) = begin(nodes.address, b"escapes")
    caught_up(copy, source)
    source.close()
    eventually(lambda: pending(other) == {escaped})
    copy.close()
    source = nodes.source(transaction_timeout=0, transaction_check_interval=0.05)
    with txstore.connect(nodes.address) as client, client.transaction_producer("shop", Committing()) as producer:
        sent = client.producer("plain").send(Message("orders", b"a message needs no end"))
        assert sent.message_id
        held = str(producer.send_in_transaction(Message("orders", b"held")).transaction_id)
        with pytest.raises(BrokerBusyError, match="a replica may have let it escape"):
            client.end_transaction(held, LocalTransactionState.COMMIT, producer_group="shop")
        assert source.broker.store.holds_end()
        assert escaped in pending(source)
        nodes.replica(other)
        eventually(lambda: pending(source) == set())
    assert delivered(source) == [b"a message needs no end", b"held"]
    committed_at(other, b"escapes")


def test_source_waits_no_longer_for_a_replica_that_is_forgotten(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    eventually(lambda: EscapeJournal(nodes.directory / "source").replicas() == {"copy"})
    copy.close()
    source.close()
    source = nodes.source()
    assert source.broker.store.holds_end()
    source._operate("forget_replica", name="copy")
    assert not source.broker.store.holds_end()
    source.close()
    assert not nodes.source().broker.store.holds_end()


def test_one_replica_alone_may_let_transactions_escape(nodes: Nodes) -> None:
    source = nodes.source()
    note = source._operate
    note("note_escaped", replica="one", escapes=True, rows=[])
    with pytest.raises(InvalidOptionError, match="replica one may let transactions escape already"):
        note("note_escaped", replica="two", escapes=True, rows=[])
    note("note_escaped", replica="two", escapes=False, rows=[])
    with pytest.raises(InvalidOptionError, match="rows must be escaped transactions"):
        note("note_escaped", replica="one", escapes=True, rows=["{}"])
    assert EscapeJournal(nodes.directory / "source").replicas() == {"one"}


@pytest.mark.parametrize(
    ("said", "expected", "state"),
    [(8, [b"1"], EscapeState.SENT), (12, [], EscapeState.ROLLED_BACK), (0, None, EscapeState.SENT)],
    ids=["commit", "rollback", "unknown"],
)
def test_producer_that_is_connected_to_the_replica_is_asked_first(
    nodes: Nodes, said: int, expected: list[bytes] | None, state: EscapeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstore.server.escape._ANSWER_SECONDS", 60.0)  # However slow this machine is.
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    (begun,) = begin(nodes.address, b"1")
    caught_up(copy, source)
    assert copy.address is not None
    with Wire(copy.address) as wire:
        said_alive = {"clientID": "c", "producerDataSet": [{"groupName": "shop"}], "consumerDataSet": []}
        assert wire.call(HEARTBEAT, {}, json.dumps(said_alive).encode()).code == 0
        source.close()
        check = wire.pushed(CHECK)
        fields = {
            name: check.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        }
        fields |= {"producerGroup": "shop", "fromTransactionCheck": "true", "topic": "orders"}
        wrong = fields | {"producerGroup": "others", "commitOrRollback": 8}
        assert wire.call(END, wrong).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert wire.call(END, fields | {"commitOrRollback": said}).code == 0
        eventually(lambda: [one.state for one in nodes.journal] == [state])
    if expected is None:
        eventually(lambda: pending(other) == {begun})
        return
    eventually(lambda: pending(other) == set())
    assert delivered(other) == expected
    source = nodes.source()
    eventually(lambda: pending(source) == set())
    assert delivered(source) == []


def test_client_with_both_addresses_is_asked_by_the_replica(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other, escape_after=3_600)
    escape = copy._escaping._escape
    assert escape is not None
    with (
        txstore.connect(f"{nodes.address};{copy.address}") as client,
        client.transaction_producer("shop", Committing()) as producer,
    ):
        producer.send_in_transaction(Message("orders", b"1"))
        caught_up(copy, source)
        source.close()
        eventually(lambda: copy.counters()["producers"] == 1)
        escape._rules = dataclasses.replace(escape._rules, after_seconds=0.1)
        # It has no address of the other broker.
        eventually(lambda: delivered(other) == [b"1"])


def test_source_that_needs_a_copy_ends_nothing_while_it_is_cut_off(nodes: Nodes) -> None:
    """Both nodes run, and reach their clients and not each other: one message, at the other broker."""
    port = free_port()
    with Proxy(port) as network:
        nodes.address = network.address
        options = {"listen": f"127.0.0.1:{port}", "replicas_required": 2, "replica_timeout": 6}
        checks = {"transaction_timeout": 0.5, "transaction_check_interval": 0.1, "transaction_check_max": 1_000}
        source, other = nodes.source(**options, **checks), nodes.other()
        copy = nodes.replica(other, escape_after=12)
        assert source.address is not None
        eventually(lambda: [one.connected for one in source.nodes.replicas()] == [True])
        (begun,) = begin(source.address, b"1")
        caught_up(copy, source)
        network.target = 1  # Nothing listens there.
        network.drop_all()
        # Until then it takes ends, which have no copy and are in doubt.
        eventually(lambda: not source.nodes.replicas()[0].connected)
        with txstore.connect(source.address) as client, client.transaction_producer("shop", Committing()):
            eventually(lambda: source.broker.transactions()[0].checks > 2)
            eventually(lambda: pending(other) == {begun})
            assert pending(source) == {begun}
            network.target = port
            eventually(lambda: pending(source) == set())
        assert delivered(source) == []
        committed_at(other, b"1")


class Lossy(Proxy):
    """A way to the other broker that loses what a replica sends, or the answer."""

    def __init__(self, target: int) -> None:
        self.loses: str | None = None
        """'request', 'answer', or None."""
        self.lost = threading.Event()
        super().__init__(target)

    def _pass_on(self, one: Any, other: Any, back: bool) -> None:
        if back:
            super()._pass_on(one, other, back)
            return
        try:
            while data := one.recv(65_536):
                if b"escaped" in data and self.loses is not None:
                    if self.loses == "answer":
                        self.flows.clear()
                        other.sendall(data)
                    self.lost.set()
                else:
                    other.sendall(data)
        except OSError:
            pass
        self._end(one, other)


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("ends_first", [False, True], ids=["pending there", "ended there"])
def test_replica_that_is_killed_sends_each_transaction_once(nodes: Nodes, lost: str, ends_first: bool) -> None:
    pytest.importorskip("typer")
    source = nodes.source()
    port = free_port()
    with Lossy(port) as way:
        other = nodes.other(listen=f"127.0.0.1:{port}", advertise=way.address)
        listen = f"127.0.0.1:{free_port()}"
        assert other.name_server is not None
        options = ["--listen", listen, "--replica-of", nodes.address, "--advertise", listen]
        options += ["--escape-to", other.name_server, "--escape-after", "0.1", "--set", "transaction_timeout=0.1"]
        ids = set(begin(nodes.address, b"1", b"2"))
        with serving(nodes.directory / "copy", *options) as (process, _):
            eventually(lambda: len(source.nodes.replicas()) == 1 and source.nodes.replicas()[0].lag_bytes == 0)
            way.loses = lost
            source.close()
            assert way.lost.wait(60)
            if lost == "answer":
                eventually(lambda: len(pending(other)) == 1)
            process.kill()
            process.wait()
        assert [one.state for one in nodes.journal] == [EscapeState.SENDING]
        assert len(pending(other)) == (1 if lost == "answer" else 0)
        way.loses = None
        way.flows.set()
        if ends_first and lost == "answer":
            _end_and_forget(nodes, other)
            other = nodes.other(listen=f"127.0.0.1:{port}", advertise=way.address, name_server=other.name_server)
        with serving(nodes.directory / "copy", *options):
            eventually(lambda: [one.state for one in nodes.journal] == [EscapeState.SENT] * 2)
            committed_at(other, b"1", b"2")
            source = nodes.source(transaction_timeout=0, transaction_check_interval=0.05)
            with txstore.connect(nodes.address) as client, client.transaction_producer("shop", Committing()):
                eventually(lambda: pending(source) == set())
                assert {one.transaction_id for one in client.escaped_transactions()} == ids
    assert delivered(source) == []
    everywhere = Counter(one for one in delivered(other))
    assert everywhere == {b"1": 1, b"2": 1}


def _end_and_forget(nodes: Nodes, other: Server) -> None:
    """Commits what has arrived, and opens the store again so that it knows of it by its log alone."""
    (there,) = other.broker.transactions()
    assert there.transaction_id is not None
    other.broker.end_transaction(there.transaction_id, LocalTransactionState.COMMIT)
    other.broker.store.snapshot()
    other.close()


def test_source_holds_what_is_being_sent_until_it_is_settled(nodes: Nodes) -> None:
    """The source and its replica are back, and the other broker is not: nobody knows yet whether it has the message."""
    source = nodes.source()
    port = free_port()
    with Lossy(port) as way:
        other = nodes.other(listen=f"127.0.0.1:{port}", advertise=way.address)
        copy = nodes.replica(other)
        (begun,) = begin(nodes.address, b"1")
        caught_up(copy, source)
        way.loses = "answer"
        source.close()
        assert way.lost.wait(60)
        eventually(lambda: pending(other) == {begun})
        name_server = other.name_server
        way.drop_all()
        other.close()
        way.loses = None
        way.flows.set()
        source = nodes.source()
        held = source.broker.transactions()[0]
        eventually(lambda: not source.broker.store.holds_end())
        assert source.broker.store.holds_end(held.half_queue_offset)
        other = nodes.other(listen=f"127.0.0.1:{port}", advertise=way.address, name_server=name_server)
        eventually(lambda: pending(source) == set())
        committed_at(other, b"1")


def test_transaction_that_ended_at_the_source_and_elsewhere_is_shown(nodes: Nodes) -> None:
    """Cut off from its replica, a source that needs no copies continues to commit."""
    source, other = nodes.source(), nodes.other()
    (begun,) = begin(nodes.address, b"1")
    (waiting,) = source.broker.transactions()
    source.broker.end_transaction(begun, LocalTransactionState.COMMIT)
    escaped = EscapedTransaction(
        begun, "shop", "orders", waiting.half_queue_offset, waiting.prepared_transaction_offset, "elsewhere", True,
        EscapeState.SENT, utc(0),
    )  # fmt: skip
    EscapeJournal(nodes.directory / "copy").add([escaped])
    (nodes.directory / "copy" / "txstore" / "escaped.jsonl").rename(nodes.directory / "kept")
    (nodes.directory / "copy" / "txstore").rmdir()
    copy = nodes.replica(None)
    caught_up(copy, source)
    copy.close()
    (nodes.directory / "kept").rename(nodes.directory / "copy" / "txstore" / "escaped.jsonl")
    nodes.replica(other)
    eventually(lambda: [one.state for one in source.broker.escaped_transactions()] == [EscapeState.TWICE])


def from_slave(unique_id: str = "ID1", **more: str) -> dict[str, Any]:
    """The fields with which a slave of RocketMQ that acts as master sends a half message: those of its log."""
    text = properties(
        TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=unique_id, REAL_TOPIC="orders", __transactionId__=unique_id, **more
    )
    return sending(group="shop", text=text, f=4)


def test_half_message_that_a_slave_of_rocketmq_sends_again_is_stored_once(nodes: Nodes) -> None:
    """It keeps no record of what it has sent, and begins again after it was killed."""
    other = nodes.other()
    other.broker.create_topic("orders", 4)
    with Wire(str(other.address)) as slave:
        first = slave.call(SEND_V2, from_slave(), b"1")
        assert first.code == 0
        assert slave.call(SEND_V2, from_slave(), b"1").fields == first.fields
        assert pending(other) == {"ID1"}
        committed_at(other, b"1")
        # With another code it would try eleven times.
        again = slave.call(SEND_V2, from_slave(), b"1")
        assert (again.code, again.fields) == (0, first.fields)
    assert (pending(other), delivered(other)) == (set(), [b"1"])
    other.close()
    other = nodes.other()
    with Wire(str(other.address)) as slave:
        again = slave.call(SEND_V2, from_slave(), b"1")
        assert (again.code, again.fields["queueOffset"]) == (0, first.fields["queueOffset"])
    assert (pending(other), delivered(other)) == (set(), [b"1"])


@pytest.mark.parametrize("mark", ["TXSTORE_SET", "TXSTORE_DELIVER_MS"])
def test_part_of_a_transaction_does_not_escape_from_a_slave_of_rocketmq(nodes: Nodes, mark: str) -> None:
    other = nodes.other()
    other.broker.create_topic("orders", 4)
    with Wire(str(other.address)) as slave:
        answer = slave.call(SEND_V2, from_slave(**{mark: "1"}), b"1")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "cannot escape" in str(answer.remark)
    assert pending(other) == set()


def test_application_may_send_what_it_has_received_as_a_transaction(nodes: Nodes) -> None:
    """A delayed message of RocketMQ has its real topic among its properties when it is delivered."""
    other = nodes.other(transaction_timeout=3600)
    other.broker.create_topic("orders", 4)
    text = properties(TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="ID1", REAL_TOPIC="elsewhere", __transactionId__="ID1")
    with Wire(str(other.address)) as wire:
        assert wire.call(SEND_V2, sending(group="shop", text=text), b"1").code == 0
    assert pending(other) == {"ID1"}


def test_transaction_of_several_messages_waits_for_the_source(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    with txstore.connect(nodes.address) as client, client.transaction_producer("shop", Unknown()) as producer:
        with pytest.raises(RuntimeError), producer.transaction([Message("orders", b"1"), Message("orders", b"2")]):
            raise RuntimeError
        single = str(producer.send_in_transaction(Message("orders", b"3")).transaction_id)
    caught_up(copy, source)
    source.close()
    eventually(lambda: pending(other) == {single})
    assert [one.transaction_id for one in nodes.journal] == [single]


def test_promoted_replica_ends_what_it_has_let_escape(nodes: Nodes) -> None:
    source, other = nodes.source(), nodes.other()
    copy = nodes.replica(other)
    (begun,) = begin(nodes.address, b"1")
    caught_up(copy, source)
    source.close()
    eventually(lambda: pending(other) == {begun} and [one.state for one in nodes.journal] == [EscapeState.SENT])
    copy._operate("promote", lose_messages=True)
    eventually(lambda: not copy.broker.closed and copy.role == "source" and copy.failure() is None)
    eventually(lambda: pending(copy) == set())
    assert delivered(copy) == []
    committed_at(other, b"1")


def _escaped(number: int, state: EscapeState = EscapeState.SENT) -> EscapedTransaction:
    return EscapedTransaction(f"id-{number}", "shop", "orders", number, 100 * number, "b", True, state, utc(1_000))


def _changed(change: Callable[[bytes], bytes], path: Path) -> None:
    file = path / "txstore" / "escaped.jsonl"
    file.write_bytes(change(file.read_bytes()))


def test_record_survives_a_write_that_a_crash_cut(tmp_path: Path) -> None:
    journal = EscapeJournal(tmp_path)
    journal.add([_escaped(1, EscapeState.SENDING), _escaped(2)])
    journal.add([_escaped(1)])
    journal.note_replica("copy", escapes=True)
    whole = (tmp_path / "txstore" / "escaped.jsonl").read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last)):
        _changed(lambda _, cut=cut: whole[:-cut], tmp_path)  # type: ignore[misc]
        assert read_escapes(tmp_path) == [_escaped(1), _escaped(2)]
        again = EscapeJournal(tmp_path)
        assert again.replicas() == set()
        again.note_replica("other", escapes=True)
        assert EscapeJournal(tmp_path).replicas() == {"other"}
    _changed(lambda _: whole, tmp_path)
    assert EscapeJournal(tmp_path).replicas() == {"copy"}
    assert EscapeJournal(tmp_path, first_physical_offset=200).escapes() == [_escaped(2)]
    assert read_escapes(tmp_path) == [_escaped(2)]


def test_record_survives_a_write_that_the_disk_cut(tmp_path: Path) -> None:
    journal = EscapeJournal(tmp_path)
    journal.add([_escaped(1)])
    size = (tmp_path / "txstore" / "escaped.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.add([_escaped(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.get(2) is None
    assert read_escapes(tmp_path) == [_escaped(1)]
    journal.add([_escaped(3)])
    assert read_escapes(tmp_path) == EscapeJournal(tmp_path).escapes() == [_escaped(1), _escaped(3)]


def test_damage_of_the_record_is_an_error(tmp_path: Path) -> None:
    EscapeJournal(tmp_path).add([_escaped(1), _escaped(2)])
    _changed(lambda data: data.replace(b"id-1", b"id-7"), tmp_path)
    with pytest.raises(StoreCorruptError, match="damaged at byte 0") as raised:
        EscapeJournal(tmp_path)
    assert raised.value.offset == 0


def test_escape_needs_a_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="only from a replica"):
        serve(tmp_path / "store", escape_to="127.0.0.1:9876")
