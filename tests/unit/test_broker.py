"""Guards opening and closing: a store has one writer, is closed in every case, and errors come before any write."""

import gc
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.process import open_files_in
from tests.unit.conftest import OpenStore
from tests.unit.test_administration import Unknown
from tests.waiting import eventually
from txstore import (
    EmbeddedBroker,
    ForeignStoreError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    MessageNotFoundError,
    ReadOnlyError,
    StoreClosedError,
    StoreForkedError,
    StoreIOError,
    StoreLockedError,
    TransactionNotFoundError,
    TxStoreError,
)


def test_closed_store_keeps_no_file_of_its_queues_open(open_store: OpenStore, tmp_path: Path) -> None:
    """Objects that refer to it may live long, and a process may open only so many files."""
    broker = open_store()
    for number in range(20):
        broker.create_topic(f"t{number}", 1)
        broker.append(Message(f"t{number}", b"x", keys=["k"]), 0)
    broker.flush()
    assert [message.body for message in broker.store.query("t1", "k")] == [b"x"]
    assert len(open_files_in(tmp_path)) > 2
    broker.close()
    assert open_files_in(tmp_path) == [f"{broker.path}", f"{broker.path}/txstore/published"]


def test_message_is_found_by_its_ids_and_keys(broker: EmbeddedBroker) -> None:
    sent = broker.producer("p").send(Message("t", b"x", keys="k1 k2"))
    assert broker.message(sent.message_id).body == b"x"
    assert broker.message(sent.message_id, topic="t").queue_offset == sent.queue_offset
    assert broker.message(sent.offset_message_id).message_id == sent.message_id
    assert [message.message_id for message in broker.query("t", "k2")] == [sent.message_id]
    for unknown in ("", "x", "0" * 32, "F" * 32, "7F00000100002A9F" + "F" * 16):
        with pytest.raises(MessageNotFoundError):
            broker.message(unknown)
    with pytest.raises(TransactionNotFoundError):
        broker.transaction("0" * 32)


def test_topics_json_has_rocketmqs_shape_and_keeps_unknown_fields(open_store: Any, tmp_path: Path) -> None:
    file = tmp_path / "store" / "config" / "topics.json"
    with open_store() as broker:
        broker.producer("p").send(Message("orders", b"x"))
        broker.create_topic("wide", 8)
        broker.flush()  # On a slow disk, tables are written later.
        table = json.loads(file.read_text())
        entry = table["topicConfigTable"]["orders"]
        assert (entry["readQueueNums"], entry["writeQueueNums"], entry["perm"], entry["topicName"]) == (
            4,
            4,
            6,
            "orders",
        )
        table["theirs"] = {"a": 1}
        entry["attributes"] = {"+message.type": "NORMAL"}
        broker.store.set_config_text("topics.json", json.dumps(table))
        counter = table["dataVersion"]["counter"]
    with open_store() as broker:
        assert broker.topics() == ["orders", "wide"]
        assert list(broker.write_queues("wide")) == list(range(8))
        broker.create_topic("new")
        table = json.loads(file.read_text())
        assert table["theirs"] == {"a": 1}
        assert table["topicConfigTable"]["orders"]["attributes"] == {"+message.type": "NORMAL"}
        assert table["dataVersion"]["counter"] > counter


def test_topic_that_only_the_log_has_is_added(open_store: Any) -> None:
    with open_store(default_topic_queue_nums=3) as broker:
        broker.producer("p").send(Message("orders", b"x"), queue_id=2)
        broker.store.set_config_text("topics.json", "{}")
    broker = open_store()
    assert broker.topics() == ["orders"]
    assert list(broker.read_queues("orders")) == [0, 1, 2]


def test_topic_that_only_a_half_message_has_is_added(open_store: Any) -> None:
    """Otherwise nobody reads the message that its commit appends, before the store is opened again."""
    with open_store() as broker:
        transactions = broker.transaction_producer("p", Unknown())
        transactions.send_in_transaction(Message("orders", b"x"))
        broker.store.set_config_text("topics.json", "{}")
    broker = open_store()
    eventually(lambda: broker.topics() == ["orders"])


def test_queue_entries_have_named_fields(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 2)
    broker.producer("p").send(Message("orders", b"x"), queue_id=1)
    assert [(queue.queue_id, queue.first, queue.end) for queue in broker.queues("orders")] == [(1, 0, 1)]
    assert broker.queues("orders")[0] in broker.queues()


def test_fewer_queues_and_unknown_topics_are_refused(open_store: Any) -> None:
    broker = open_store(auto_create_topic_enable=False)
    with pytest.raises(InvalidNameError, match="create_topic"):
        broker.producer("p").send(Message("orders", b"x"))
    broker.create_topic("orders", 4)
    broker.producer("p").send(Message("orders", b"x"))
    for queues in (3, 0, -1, 1025):
        with pytest.raises(InvalidOptionError):
            broker.create_topic("orders", queues)


def test_P1_second_writer_is_refused_at_once(open_store: Any) -> None:
    open_store()
    with pytest.raises(StoreLockedError) as caught:
        open_store()
    assert caught.value.pid in (None, os.getpid())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_P1_forked_child_is_told(broker: EmbeddedBroker) -> None:
    producer = broker.producer("p")
    producer.send(Message("t", b"x"))
    told = 0
    child = os.fork()
    if child == 0:  # Only the child runs this; it must not return into the test runner.
        try:
            for call in (lambda: producer.send(Message("t", b"y")), lambda: broker.producer("q")):
                try:
                    call()
                except StoreForkedError:
                    told += 20
        finally:
            try:
                broker.close()
            finally:
                os._exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 40
    producer.send(Message("t", b"z"))


def test_reader_next_to_the_writer_writes_nothing(open_store: Any) -> None:
    writer = open_store()
    sent = writer.producer("p").send(Message("t", b"x"))
    reader = open_store(read_only=True)
    assert reader.read_only
    assert [message.body for message in reader.read("t", sent.queue_id, 0)[0]] == [b"x"]
    assert reader.transactions() == []
    calls: list[Callable[[], object]] = [
        lambda: reader.producer("p"),
        lambda: reader.transaction_producer("p"),
        lambda: reader.consumer("c", "t"),
        lambda: reader.create_topic("u"),
        lambda: reader.write_queues("t"),
    ]
    for call in calls:
        with pytest.raises(ReadOnlyError):
            call()


def test_closed_store_is_reported_by_every_call(open_store: Any) -> None:
    broker = open_store()
    producer, transactions = broker.producer("p"), broker.transaction_producer("g")
    consumer = broker.consumer("c", "t")
    broker.close()
    broker.close()
    assert broker.closed
    calls: list[Callable[[], object]] = [
        lambda: producer.send(Message("t", b"x")),
        lambda: transactions.send_in_transaction(Message("t", b"x"), executer=print),
        lambda: consumer.poll(),
        lambda: broker.producer("q"),
        lambda: broker.consumer("d", "t"),
        lambda: broker.read("t", 0, 0),
        lambda: broker.transactions(),
        lambda: broker.flush(),
        lambda: broker.stat(),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


def test_forgotten_broker_closes_itself(tmp_path: Path) -> None:
    path, before = tmp_path / "store", set(threading.enumerate())
    broker = txstore.open(path)
    broker.transaction_producer("g").send_in_transaction(
        Message("t", b"x"), executer=lambda message, arg: txstore.LocalTransactionState.COMMIT
    )
    gone = weakref.ref(broker)
    del broker
    gc.collect()
    # A job that runs at this moment holds it.
    eventually(lambda: gone() is None)
    eventually(lambda: "txstore-housekeeping" not in {one.name for one in set(threading.enumerate()) - before})
    with txstore.open(path) as again:
        assert again.open_report.clean
        assert len(again.transactions("committed")) == 1


def test_program_that_does_not_close_its_store_ends(tmp_path: Path) -> None:
    program = (
        "import sys, txstore\n"
        "broker = txstore.open(sys.argv[1])\n"
        "broker.producer('p').send(txstore.Message('t', b'x'), queue_id=0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], check=True, timeout=30)
    with txstore.open(tmp_path / "store") as broker:
        assert broker.open_report.clean
        assert [message.body for message in broker.read("t", 0, 0)[0]] == [b"x"]


@pytest.mark.parametrize(
    "options",
    [
        {"body": b""},
        {"properties": {"a": "x" * 33_000}},
        {"properties": {"a\x01": "x"}},
        {"properties": {"a": "x\x02"}},
        {"properties": {"a": "x\x00"}},
        {"properties": {"UNIQ_KEY": "x"}},
        {"properties": {"PGROUP": "x"}},
        {"properties": {"": "x"}},
        {"properties": {"x": ""}},
        {"tags": "a\x01b"},
        {"keys": ["a\x02"]},
        {"keys": ["two words"]},
        {"message_group": "\x00"},
        {"message_group": ""},
        {"delay_level": 19},
        {"delay_level": -1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_P2_message_that_cannot_be_stored_is_refused_when_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        Message("t", **({"body": b"x"} | options))


BAD_NAMES = ["", ".", "..", "a/b", "../etc", "a b", "a\x00", "a\x01", "\u00e4", "x" * 200, "a.b", "a@b"]


@pytest.mark.parametrize("topic", [*BAD_NAMES, "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102"])
def test_P2_invalid_topic_is_refused(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(InvalidNameError):
        Message(topic, b"x")
    with pytest.raises(InvalidNameError):
        broker.create_topic(topic)
    assert broker.topics() == []


@pytest.mark.parametrize("group", BAD_NAMES)
def test_P2_invalid_group_is_refused(broker: EmbeddedBroker, group: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: broker.producer(group),
        lambda: broker.transaction_producer(group),
        lambda: broker.consumer(group, "t"),
    ]
    for call in calls:
        with pytest.raises(InvalidNameError):
            call()


@pytest.mark.parametrize("number", [-1, 2**63, 2**100])
def test_P2_number_out_of_range_is_refused(broker: EmbeddedBroker, number: int) -> None:
    broker.create_topic("t")
    calls: list[Callable[[], object]] = [
        lambda: broker.read("t", 0, number),
        lambda: broker.read("t", number, 0),
        lambda: broker.set_consumer_offset("t", "c", 0, number),
    ]
    for call in calls:
        with pytest.raises((TxStoreError, OverflowError)):
            call()


def test_P2_reading_beyond_the_end_is_an_empty_list(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    assert broker.read("t", 0, 1000)[0] == []
    assert broker.read("nowhere", 0, 0)[0] == []
    assert broker.queue_range("nowhere", 0) == (0, 0)


def test_P3_unknown_option_is_named(open_store: Any) -> None:
    with pytest.raises(InvalidOptionError, match="did you mean transaction_check_max"):
        open_store(transaction_check_maximum=3)


@pytest.mark.parametrize("path", ["", "a\0b", b"bytes"])
def test_P2_path_that_is_not_a_directory_is_refused(path: Any) -> None:
    with pytest.raises(InvalidOptionError):
        txstore.open(path)


def test_P3_directory_that_is_not_a_store_is_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(TxStoreError):
        txstore.open(file)
    assert file.read_bytes() == b"mine"
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "one.jpg").write_bytes(b"mine")
    with pytest.raises(ForeignStoreError):
        txstore.open(foreign)
    assert [entry.name for entry in foreign.iterdir()] == ["one.jpg"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_P3_unwritable_directory_is_an_os_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match="store"):
            txstore.open(tmp_path / "store")
    finally:
        tmp_path.chmod(0o700)


def test_opening_a_missing_store_read_only_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(TxStoreError):
        txstore.open(tmp_path / "nothing", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_import_starts_no_thread() -> None:
    program = "import threading, txstore; print(threading.active_count())"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=30)
    assert ran.stdout.strip() == "1"
    assert multiprocessing.active_children() == []


def test_argument_that_is_not_a_message_is_named(broker: EmbeddedBroker) -> None:
    given: Any = b"x"
    producer = broker.transaction_producer("p")
    with pytest.raises(InvalidMessageError, match="expected a Message, got bytes"):
        producer.send(given)
    with pytest.raises(InvalidMessageError, match="expected a Message, got bytes"), producer.transaction(given):
        pass
    body: Any = 5
    with pytest.raises(InvalidMessageError, match="the body is a int, not bytes"):
        Message("t", body)


def test_error_for_a_path_without_a_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreIOError, match="only a writer creates a store"):
        txstore.open(tmp_path / "nothing", read_only=True)
    with pytest.raises(StoreIOError, match="create its parent directory first"):
        txstore.open(tmp_path / "nothing" / "below")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreIOError, match="a store is a directory"):
        txstore.open(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_P3_log_line_names_the_transaction(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    producer = broker.transaction_producer("p")
    result = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: None)  # type: ignore[arg-type]
    assert result.send_result.message_id in caplog.text


def test_ctrl_c_while_closing_waits_for_a_check_still_closes_the_store(
    open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_store()

    def interrupted(wait: float = 0.0) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker._parts.pool, "stop", interrupted, raising=True)
    with pytest.raises(KeyboardInterrupt):
        broker.close()
    assert broker.store.closed


def test_ended_half_is_not_returned_again(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("g", scripted())
    sent = producer.send_in_transaction(Message("t", b"x"))
    assert broker.store.look_again(sent.queue_offset, 1000)
    broker.end_transaction(sent.transaction_id, LocalTransactionState.COMMIT)
    assert not broker.store.look_again(sent.queue_offset, 1000, asked=True), "so no check of it is sent"


def test_log_says_what_opening_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with txstore.open(tmp_path / "store", listen=False) as broker:
        broker.producer("p").send(Message("t", b"x"))
        killed_copy(tmp_path / "store", tmp_path / "left")
    txstore.open(tmp_path / "store").close()
    assert re.search(r"store opened: .*/store in \d+ ms; it was closed cleanly", caplog.messages[-1])
    txstore.open(tmp_path / "left").close()
    found = re.search(r"/left in \d+ ms; it was not closed cleanly: (\d+) bytes scanned, 0 cut", caplog.text)
    assert found is not None
    assert int(found[1]) == txstore.open(tmp_path / "store", read_only=True).stat().max_physical_offset
