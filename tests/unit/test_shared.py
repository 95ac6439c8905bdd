"""Guards stores that several processes share: one writes, the others connect to it, and another takes over.

The processes here are real, because locks, forks and killed writers are.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.process import stop
from tests.waiting import eventually
from txstore import Message, TransactionListener, TransactionState
from txstore._native import RequestCode
from txstore.broker.local_socket import read_holder
from txstore.broker.operations import Operations
from txstore.client.channel import Channel
from txstore.client.connection import Connection
from txstore.message import LocalTransactionState
from txstore.server import Server
from txstore.shared import sharing

ROOT = Path(__file__).resolve().parents[2]
COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


class Process:
    """Another process with the store open as `broker`. It runs statements that it is told."""

    def __init__(self, store: Path, how: str = "shared=True") -> None:
        code = f"""
            import sys, txstore
            from txstore import Message
            broker = txstore.open({str(store)!r}, {how})
            print("ready", flush=True)
            for line in sys.stdin:
                exec(line.replace(chr(0), chr(10)))
                print("done", flush=True)
            broker.close()
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT,
        )  # fmt: skip
        assert self._line() == "ready"

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, code: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(textwrap.dedent(code).strip().replace("\n", "\0") + "\n")
        self._process.stdin.flush()

    def end(self) -> str:
        """Returns what the statements printed."""
        printed = []
        while (line := self._line()) != "done":
            printed.append(line)
        return "\n".join(printed)

    def run(self, code: str) -> str:
        self.begin(code)
        return self.end()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return line.rstrip("\n")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def start(store: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(how: str = "shared=True") -> Process:
        started.append(Process(store, how))
        return started[-1]

    yield begin
    for process in started:
        if process._process.poll() is None:
            process.kill(signal.SIGCONT)
            process.kill()
        process._process.wait()
        for pipe in (process._process.stdin, process._process.stdout):
            assert pipe is not None
            pipe.close()


def bodies(broker: Any, count: int, group: str = "readers") -> list[bytes]:
    found: list[bytes] = []

    def has_read() -> bool:
        found.extend(message.body for message in consumer.poll(timeout=0.5))
        return len(found) >= count

    with broker.consumer(group, "orders") as consumer:
        eventually(has_read)
    return sorted(found)


def test_two_processes_send_and_receive(store: Path, start: Callable[..., Process]) -> None:
    with txstore.open(store, shared=True) as broker:
        assert broker.is_writer
        assert repr(broker) == f"SharedBroker({str(store)!r}, open)"
        broker.producer("here").send(Message("orders", b"here"))
        other = start()
        assert other.run("print(broker.is_writer)") == "False"
        other.run("broker.producer('there').send(Message('orders', b'there'))")
        assert bodies(broker, 2) == [b"here", b"there"]
        holder = read_holder(str(store))
        assert holder is not None
        assert (holder.pid, holder.uid) == (os.getpid(), os.geteuid())
        assert (store / holder.socket).is_socket()
    assert read_holder(str(store)) is None or (store / "lock").read_text()
    eventually(
        lambda: (
            other.run("broker.producer('there').send(Message('orders', b'later'));print(broker.is_writer)") == "True"
        )
    )


def test_another_process_takes_over_from_a_killed_one(store: Path, start: Callable[..., Process]) -> None:
    """What was acknowledged is there, and the same objects continue."""
    writer = start()
    with txstore.open(store, shared=True) as broker:
        producer = broker.producer("group")
        first = producer.send(Message("orders", b"first"))
        left = read_holder(str(store))
        writer.kill()
        second = producer.send(Message("orders", b"second"))
        assert second.physical_offset > first.physical_offset
        assert broker.is_writer
        assert bodies(broker, 2) == [b"first", b"second"]
        assert left is not None
        assert not (store / left.socket).exists(), "the next holder removes the socket of a killed one"
        assert [path.name for path in store.iterdir() if path.is_socket()] == [read_holder(str(store)).socket]  # type: ignore[union-attr]


def test_a_transaction_ends_once_over_a_takeover(store: Path, start: Callable[..., Process]) -> None:
    writer = start()
    with txstore.open(store, shared=True) as broker:
        producer = broker.transaction_producer("payments", Listener())
        with producer.transaction(Message("orders", b"paid")) as tx:
            writer.kill()
        assert tx.transaction_id is not None
        assert bodies(broker, 1) == [b"paid"]
    with txstore.open(store) as embedded:
        assert embedded.transaction(tx.transaction_id).state is TransactionState.COMMITTED
        assert [len(embedded.read("orders", queue, 0)[0]) for queue in embedded.read_queues("orders")].count(1) == 1


class Listener(TransactionListener):
    """Answers UNKNOWN first, and COMMIT to a check, or what it is told."""

    def __init__(self, answer: LocalTransactionState = COMMIT) -> None:
        self._answer = answer
        self.asked: list[str | None] = []

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return UNKNOWN

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        self.asked.append(message.transaction_id)
        return self._answer


_ROLLS_BACK = """
from txstore import LocalTransactionState, TransactionListener
class Other(TransactionListener):
    def execute_local_transaction(self, message, arg): return LocalTransactionState.UNKNOWN
    def check_local_transaction(self, message): return LocalTransactionState.ROLLBACK
producer = broker.transaction_producer("payments", Other())
"""


def test_a_running_transaction_is_checked_nowhere_else(store: Path) -> None:
    """Another process finds no row of a local transaction that still runs, and would roll it back."""
    # A check that is not answered within the interval goes to the next producer of the group, and so to the stranger.
    by_hand: Any = {"transaction_timeout": 3600, "transaction_check_interval": 3600}
    first = txstore.open(store, **by_hand)
    with txstore.connect(f"store:{store}") as other, txstore.connect(f"store:{store}") as broker:
        stranger = Listener(LocalTransactionState.ROLLBACK)
        other.transaction_producer("payments", stranger)
        producer = broker.transaction_producer("payments", Listener())
        waiting_other, waiting = _hold(other), _hold(broker)
        with producer.transaction(Message("orders", b"slow")) as tx:
            first.close()
            checks = _checks_of(broker, tx.transaction_id)
            with txstore.open(store, **by_hand) as second:
                waiting_other.set()
                # The other one comes first, so that it would be asked first.
                eventually(lambda: second._producers.of_group("payments") != [])
                waiting.set()
                eventually(lambda: second.transactions()[0].owner is not None, seconds=20)
                for number in range(1, 4):
                    eventually(lambda: second._parts.pool.is_idle)  # It would ask nobody while a check is sent.
                    assert Operations(second).ask(str(tx.transaction_id))
                    eventually(lambda: second.store.transaction_counts()[0]["checks_unknown"] == number)  # noqa: B023
                assert checks() == 3
                assert stranger.asked == []
                tx.commit()
                assert bodies(second, 1) == [b"slow"]


def _hold(broker: txstore.RemoteBroker) -> threading.Event:
    """Holds the next connections of a client until the event is set."""
    may_connect, connections = threading.Event(), broker._client.connections
    dial = connections._dial
    assert dial is not None

    async def held() -> Any:
        while not may_connect.is_set():
            await asyncio.sleep(0.005)
        return await dial()

    connections._dial = held
    return may_connect


def _checks_of(broker: txstore.RemoteBroker, transaction_id: str | None) -> Callable[[], int]:
    """Counts the checks that reach this client."""
    counted: list[str] = []
    handle = broker._session.checks._handle

    def count(connection: Connection, request: Any) -> None:
        counted.append(request.ext_fields["transactionId"])
        handle(connection, request)

    broker._client.listeners[RequestCode.CHECK_TRANSACTION_STATE] = count
    return lambda: counted.count(str(transaction_id))


def test_any_process_of_the_group_answers_for_a_killed_one(store: Path, start: Callable[..., Process]) -> None:
    writer = start("shared=True, transaction_timeout=3600")
    writer.run(_ROLLS_BACK)
    sent = writer.run("print(producer.send_in_transaction(Message('orders', b'paid')).transaction_id)")
    writer.kill()
    with txstore.open(store, shared=True, transaction_timeout=0.2, transaction_check_interval=0.2) as broker:
        listener = Listener()
        broker.transaction_producer("payments", listener)
        assert bodies(broker, 1) == [b"paid"]
        # The next check may come before the broker has the answer of the first.
        assert set(listener.asked) == {sent}


def test_one_group_shares_its_queues_among_processes(store: Path, start: Callable[..., Process]) -> None:
    with txstore.open(store, shared=True) as broker:
        broker.producer("senders").send(Message("orders", b"first"))
        other = start()
        other.run("consumer = broker.consumer('group', 'orders')")
        with broker.consumer("group", "orders") as consumer:

            def theirs() -> list[int]:
                found: list[int] = json.loads(other.run("consumer.poll(timeout=0.1); print(list(consumer.queue_ids))"))
                return found

            eventually(lambda: (consumer.poll(timeout=0.1), len(consumer.queue_ids) == len(theirs()) == 2)[1])
            assert not set(consumer.queue_ids) & set(theirs())
            other.kill()
            eventually(lambda: (consumer.poll(timeout=0.1), len(consumer.queue_ids) == 4)[1])


def _lose_answers(monkeypatch: pytest.MonkeyPatch, code: RequestCode) -> list[int]:
    """Loses the first answer to a request with its connection, after the request was carried out."""
    lost: list[int] = []

    def lose(connection: Connection | Channel, asked: int, answer: Any) -> None:
        if asked == code and not lost:
            lost.append(answer.code)
            connection.close()
            raise txstore.BrokerUnreachableError("lost", address=connection.address, in_doubt=True)

    on_loop, in_thread = Connection.call, Channel.call

    async def lossy(connection: Connection, asked: int, *facts: Any, **more: Any) -> Any:
        answer = await on_loop(connection, asked, *facts, **more)
        lose(connection, asked, answer)
        return answer

    def lossy_in_thread(channel: Channel, asked: int, *facts: Any, **more: Any) -> Any:
        answer = in_thread(channel, asked, *facts, **more)
        lose(channel, asked, answer)
        return answer

    monkeypatch.setattr(Connection, "call", lossy)
    monkeypatch.setattr(Channel, "call", lossy_in_thread)
    return lost


@pytest.mark.parametrize("messages", [1, 3])
def test_a_message_is_stored_once_if_its_answer_is_lost(
    store: Path, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    """It is sent again, and found by its unique id."""
    code = RequestCode.SEND_MESSAGE_V2 if messages == 1 else RequestCode.SEND_BATCH_MESSAGE
    with txstore.open(store, shared=True) as broker:
        producer = broker.producer("group")
        producer.send(Message("orders", b"before"), queue_id=0)
        lost = _lose_answers(monkeypatch, code)
        wanted = [Message("orders", str(number).encode()) for number in range(messages)]
        sent = producer.send_batch(wanted, queue_id=0) if messages > 1 else [producer.send(wanted[0], queue_id=0)]
        assert lost == [0]
    with txstore.open(store) as embedded:
        found, _ = embedded.read("orders", 0, 1)
        assert [message.body for message in found] == [message.body for message in wanted]
        assert [message.message_id for message in found] == [one.message_id for one in sent]
        assert [message.physical_offset for message in found] == [one.physical_offset for one in sent]
        assert [message.queue_offset for message in found] == [one.queue_offset for one in sent]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION])
def test_a_transaction_is_committed_once_if_an_answer_is_lost(
    store: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    with txstore.open(store, shared=True) as broker:
        broker.create_topic("orders", 1)
        producer = broker.transaction_producer("payments", Listener())
        lost = _lose_answers(monkeypatch, code)
        with producer.transaction(Message("orders", b"paid")) as tx:
            tx.commit()  # It raises if the end is in doubt.
        assert lost == [0]
        assert broker.transactions() == []
    with txstore.open(store) as embedded:
        assert [message.body for message in embedded.read("orders", 0, 0)[0]] == [b"paid"]


def test_an_error_says_whether_a_call_may_have_been_done(store: Path) -> None:
    with txstore.open(store) as embedded:
        embedded.create_topic("orders")
        broker = txstore.connect(f"store:{store}", connect_timeout=0.1, send_msg_timeout=4)
        producer = broker.producer("group")
        producer.send(Message("orders", b"x"))
    with pytest.raises(txstore.BrokerUnreachableError) as error:
        producer.send(Message("orders", b"never sent"))
    assert not error.value.in_doubt
    broker.close()


def _requests_in_flight(broker: txstore.SharedBroker) -> int:
    connection = broker._client.connections.live(broker.address)
    return 0 if connection is None else connection.channels.in_use


def test_a_stopped_writer_is_waited_for_and_never_replaced(store: Path, start: Callable[..., Process]) -> None:
    writer = start()
    with txstore.open(store, shared=True) as broker:
        producer = broker.producer("group")
        producer.send(Message("orders", b"first"))
        stop(writer.pid)
        sent: list[Any] = []
        sending = threading.Thread(target=lambda: sent.append(producer.send(Message("orders", b"second"))))
        sending.start()
        eventually(lambda: _requests_in_flight(broker) > 0)
        assert not broker.is_writer
        writer.kill(signal.SIGCONT)
        sending.join(30)
        assert len(sent) == 1
        assert not broker.is_writer


def test_a_process_knows_that_it_writes_before_it_answers_others(
    store: Path, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = start()
    with txstore.open(store, shared=True) as broker:
        knew: list[bool] = []

        def serve(*arguments: Any, **options: Any) -> Server:
            knew.append(broker.is_writer)
            return Server(*arguments, **options)

        monkeypatch.setattr("txstore.shared.writer.Server", serve)
        writer.kill()
        broker.producer("group").send(Message("orders", b"x"))
        assert knew == [True]


def test_a_question_about_topics_is_asked_again_when_the_writer_ends(
    store: Path, start: Callable[..., Process]
) -> None:
    """A request that changes nothing goes to the process that takes over, as a send does."""
    writer = start()
    with txstore.open(store, shared=True) as broker:
        broker.producer("group").send(Message("orders", b"first"))
        stop(writer.pid)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(broker.write_queues("payments")))
        connection = broker._client.connections.live(broker.address)
        assert connection is not None
        asking.start()
        eventually(lambda: len(connection._waiting) > 0)
        writer.kill()
        asking.join(30)
        assert len(found) == 1
        assert found[0]
        assert broker.is_writer


def test_a_writer_without_a_socket_is_named(store: Path, start: Callable[..., Process]) -> None:
    """It may be recovering. It is waited for, then the error says who it is."""
    writer = start("listen=False")
    with pytest.raises(txstore.BrokerUnreachableError, match="states no socket"):
        txstore.open(store, shared=True, open_timeout=0.2)
    lock = store / "lock"
    entry = {"socket": "txstore-0123456789abcdef.sock", "pid": writer.pid, "boot_id": "another", "uid": 7}
    lock.write_text(f"lock\n{json.dumps(entry)}\n")
    with pytest.raises(txstore.BrokerUnreachableError, match=f"process {writer.pid} of user 7, before the machine"):
        txstore.open(store, shared=True, open_timeout=0.2)


def test_a_process_that_declines_never_writes(store: Path, start: Callable[..., Process]) -> None:
    with pytest.raises(txstore.BrokerUnreachableError, match="there is no store"):
        txstore.open(store, shared=True, writer=False, open_timeout=0.1)
    txstore.open(store).close()
    with pytest.raises(txstore.BrokerUnreachableError, match="no process has stated a socket"):
        txstore.open(store, shared=True, writer=False, open_timeout=0.1)
    writer = start()
    with txstore.open(store, shared=True, writer=False, open_timeout=1) as broker:
        producer = broker.producer("group")
        producer.send(Message("orders", b"x"))
        writer.kill()
        with pytest.raises(txstore.BrokerUnreachableError):
            producer.send(Message("orders", b"x"))
        start().run("pass")
        producer.send(Message("orders", b"x"))
        assert not broker.is_writer


def test_a_plain_program_answers_shared_ones(store: Path, start: Callable[..., Process]) -> None:
    with txstore.open(store) as embedded:
        assert embedded.local_socket is not None
        other = start()
        other.run("broker.producer('group').send(Message('orders', b'x'))")
        assert bodies(embedded, 1) == [b"x"]
        other.close()  # Otherwise it takes over.
        with pytest.raises(txstore.StoreLockedError, match="shared=True in each") as locked:
            txstore.open(store)
        assert locked.value.pid == os.getpid()
    with txstore.open(store, listen=False) as embedded:
        assert embedded.local_socket is None
        assert read_holder(str(store)) is None


def test_a_plain_program_is_collected_without_a_close(store: Path) -> None:
    """Waiting for clients does not keep the broker."""
    broker = txstore.open(store)
    del broker

    def is_free() -> bool:
        gc.collect()
        try:
            txstore.open(store).close()
        except txstore.StoreLockedError:
            return False  # A thread of the broker holds it for a moment.
        return True

    eventually(is_free)


def test_serving_answers_on_the_store_socket_too(store: Path, start: Callable[..., Process]) -> None:
    """One consumer group is shared by clients of all addresses, because there is one server."""
    with txstore.serve(store, listen="127.0.0.1:0", name_server="127.0.0.1:0") as server:
        start().run("broker.producer('group').send(Message('orders', b'x'))")
        assert server.name_server is not None
        with txstore.connect(server.name_server) as broker:
            assert bodies(broker, 1) == [b"x"]


def test_a_server_over_a_plain_broker_takes_the_socket_and_returns_it(store: Path) -> None:
    with txstore.open(store) as embedded:
        for _ in range(2):
            with txstore.connect(f"store:{store}") as first:
                first.producer("group").send(Message("orders", b"x"))
            with (
                txstore.serve(embedded, listen="127.0.0.1:0", name_server=None) as server,
                txstore.connect(f"store:{store}") as second,
            ):
                second.producer("group").send(Message("orders", b"y"))
                assert server.counters()["connections"] >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_another_mount_namespace_shares_the_store(store: Path, tmp_path: Path, mode: str) -> None:
    """As two containers with one volume: the path differs, and may be read-only in one of them."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    send = f"""
        import sys, txstore
        with txstore.open({str(elsewhere)!r}, shared=True, open_timeout=5) as broker:
            producer = broker.producer("group")
            producer.send(txstore.Message("orders", b"1"))
            print("sent", flush=True)
            sys.stdin.readline()
            try:
                producer.send(txstore.Message("orders", b"2"))
            except txstore.BrokerUnreachableError:
                print("nobody may write")
            else:
                print(broker.is_writer)
    """
    mount = f"mount --bind {store} {elsewhere} && mount -o remount,bind,{mode} {elsewhere}"
    python = f'{mount} && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", python, sys.executable]
    with txstore.open(store, shared=True) as broker:
        other = subprocess.Popen(
            [*command, textwrap.dedent(send)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "sent\n"
        assert bodies(broker, 1) == [b"1"]
    said, _ = other.communicate("\n", timeout=60)
    assert said == {"rw": "True\n", "ro": "nobody may write\n"}[mode]
    assert other.returncode == 0


def test_twenty_that_open_at_once_have_one_writer(store: Path) -> None:
    code = f"import txstore, sys; broker = txstore.open({str(store)!r}, shared=True)\n" + textwrap.dedent("""
        broker.producer('group').send(txstore.Message('orders', str(sys.argv[1]).encode()))
        print(broker.is_writer, flush=True)
        sys.stdin.read()
        broker.close()
    """)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True, cwd=ROOT)
        for number in range(20)
    ]  # fmt: skip
    try:
        said = [process.stdout.readline() for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.communicate("")
    assert sorted(said) == ["False\n"] * 19 + ["True\n"]
    assert [process.returncode for process in processes] == [0] * 20
    with txstore.open(store) as broker:
        assert bodies(broker, 20) == sorted(str(number).encode() for number in range(20))


def test_a_forked_child_becomes_a_client(store: Path) -> None:
    """As with gunicorn's preload: the producer was created before the fork, and each worker sends."""
    with txstore.open(store, shared=True) as broker:
        producer = broker.producer("group")
        mine = producer.send(Message("orders", b"parent"))
        theirs = _in_child(lambda: producer.send(Message("orders", b"child")).message_id)
        assert theirs != mine.message_id
        assert _in_child(lambda: str(broker.is_writer)) == "False"
        producer.send(Message("orders", b"parent again"))
        assert bodies(broker, 3) == [b"child", b"parent", b"parent again"]


def test_ids_of_parent_and_child_differ(store: Path) -> None:
    """A child that continued its parent's ids would give two messages one id."""
    txstore.unique_id()
    theirs = _in_child(lambda: ",".join(txstore.unique_id() for _ in range(50))).split(",")
    assert not set(theirs) & {txstore.unique_id() for _ in range(50)}


def test_a_child_of_a_dead_writer_does_not_hide_its_end(store: Path, start: Callable[..., Process]) -> None:
    """Its copies of the sockets would keep connections open that nobody answers."""
    writer = start()
    with txstore.open(store, shared=True) as broker:
        broker.producer("group").send(Message("orders", b"x"))
        child = int(
            writer.run("""
            import os, time
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            print(pid)
        """)
        )
        try:
            writer.kill()
            broker.producer("group").send(Message("orders", b"y"))
            assert broker.is_writer
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_consumer_from_before_the_fork_says_so(store: Path) -> None:
    with txstore.open(store, shared=True) as broker:
        broker.producer("group").send(Message("orders", b"x"))
        with broker.consumer("group", "orders") as consumer:
            eventually(lambda: len(consumer.poll(timeout=0.1)) == 1)
            assert "create consumers after forking" in _in_child(lambda: _error_of(consumer.poll))


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except txstore.TxStoreError as error:
        return str(error)
    return "no error"


def _in_child(work: Callable[[], str]) -> str:
    """Runs something in a forked child and returns its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writing, work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def _send(path: str, body: bytes) -> None:
    with txstore.open(path, shared=True) as broker:
        broker.producer("group").send(Message("orders", body))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_multiprocessing(store: Path, how: str) -> None:
    with txstore.open(store, shared=True) as broker:
        context: Any = multiprocessing.get_context(how)
        children = [context.Process(target=_send, args=(str(store), str(n).encode())) for n in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert bodies(broker, 3) == [b"0", b"1", b"2"]


def test_arguments_that_contradict_are_refused(store: Path) -> None:
    with pytest.raises(txstore.InvalidOptionError, match="read_only"):
        txstore.open(store, shared=True, read_only=True)  # type: ignore[call-overload]
    with pytest.raises(txstore.InvalidOptionError, match="needs shared=True"):
        txstore.open(store, writer=False)  # type: ignore[call-overload]


def test_network_file_systems_are_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import txstore.shared.broker

    monkeypatch.setattr(sharing, "network_file_system", lambda _: "NFS")
    with pytest.raises(txstore.InvalidOptionError, match="it is on NFS"):
        txstore.open(store, shared=True)
