"""Guards against known failures of RocketMQ, by their issue numbers. Each has a test here, or a line that says
where.

These are small and fixed; the simulation, the kills and the refused calls cover the same ground at random.
docs/internals/testing.md has the whole table, with those that cannot occur here and why.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.crash.promises import Told, check, check_rebuilt
from tests.crash.workload import SIZES, TOPIC
from tests.crash.zygote import Zygote
from tests.golden import reader
from tests.waiting import eventually
from txstore import (
    AlreadyEndedError,
    EmbeddedBroker,
    InvalidNameError,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    MissingFileError,
    StoreCorruptError,
    StoreIOError,
    TransactionListener,
    TransactionMessage,
    TransactionNotFoundError,
)

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
GROUP = "group"
QUICK: dict[str, Any] = {"transaction_timeout": 0.01, "transaction_check_interval": 0.02}
SMALL: dict[str, Any] = {**SIZES, "mapped_file_size_commit_log": 1 << 14, "max_index_num": 60}
NEVER: dict[str, Any] = {"transaction_check_interval": 3600}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[EmbeddedBroker]:
    """A store whose checks run only when a test triggers them."""
    with txstore.open(path, **SIZES, **NEVER) as opened:
        opened.write_queues(TOPIC)
        yield opened


def half(broker: EmbeddedBroker, text: str = "x", **options: Any) -> Any:
    return broker.prepare(Message(TOPIC, text.encode(), keys=[text], **options), 0, GROUP, 0)


def visible(broker: EmbeddedBroker) -> list[bytes]:
    """All bodies of the topic."""
    return [
        message.body
        for topic, queue_id, first, _ in broker.store.queues()
        if topic == TOPIC
        for message in broker.store.read(TOPIC, queue_id, first, 10_000)[0]
    ]


def end_of_log(broker: EmbeddedBroker) -> int:
    return broker.stat().max_physical_offset


class Asked(TransactionListener):
    """Answers UNKNOWN to all but some checks, and records which were asked."""

    def __init__(self, answers: dict[str, LocalTransactionState] | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[str] = []

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return UNKNOWN

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        self.asked.append(message.keys[0])
        return self.answers.get(message.keys[0], UNKNOWN)


def test_5574_8158_transaction_ended_twice_is_one_message(broker: EmbeddedBroker) -> None:
    sent = half(broker)
    assert not broker.end_transaction(sent, COMMIT).already
    end = end_of_log(broker)
    # The producer's own end crosses with the answer of a check.
    assert broker.end_transaction(sent, COMMIT).already
    assert broker.store.end_transaction(sent.queue_offset, sent.physical_offset, commit=True, from_check=True).already
    assert (visible(broker), end_of_log(broker)) == ([b"x"], end)


@pytest.mark.parametrize("other", ["roll back", "discard"])
def test_2694_commit_after_another_end_is_refused(broker: EmbeddedBroker, other: str) -> None:
    sent = half(broker)
    if other == "discard":
        broker.discard(sent)
    else:
        broker.end_transaction(sent, ROLLBACK)
    end = end_of_log(broker)
    with pytest.raises(AlreadyEndedError) as refused:
        broker.end_transaction(sent, COMMIT)
    assert refused.value.outcome == ("discarded" if other == "discard" else "rolled_back")
    assert (visible(broker), end_of_log(broker)) == ([], end)


def test_resent_half_is_one_transaction(broker: EmbeddedBroker) -> None:
    producer = broker.transaction_producer(GROUP, Asked())
    result = producer.send_in_transaction(Message(TOPIC, b"x", keys=["x"]))
    end = end_of_log(broker)
    again = broker.prepare(result.message, 0, GROUP, 0)
    assert (again.physical_offset, end_of_log(broker)) == (result.physical_offset, end)
    assert len(broker.transactions()) == 1


def test_2117_1517_crash_between_the_message_and_its_op_leaves_one_message(path: Path) -> None:
    with txstore.open(path, **SIZES, **NEVER) as broker:
        broker.write_queues(TOPIC)
        sent = half(broker)
        broker.end_transaction(sent, COMMIT)
        path = killed_copy(path, path.with_name("killed"))  # The files of a process that is killed now.
    # The end was synced, so this discards the record of the durable end, as if the kill came before the sync.
    (path / "txstore" / "published").unlink()
    cut_off_the_last_record(path, reader.OP_TOPIC)
    with txstore.open(path, **SIZES) as broker:
        assert broker.open_report.healed_ops == 1
        assert broker.end_transaction(sent, COMMIT).already
        assert visible(broker) == [b"x"]
    (transaction,) = reader.transactions(list(reader.records(path)))
    assert (len(transaction.finals), len(transaction.ops)) == (1, 1)


def crash(path: Path) -> None:
    """Leaves the marks and the open range that a killed writer leaves, and no record of the durable end."""
    (path / "abort").write_text("1")
    (path / "commitlog" / "!txstore-open").write_text("!")
    (path / "txstore" / "snapshot").unlink()
    (path / "txstore" / "published").unlink()


def cut_off_the_last_record(path: Path, topic: str) -> None:
    *_, last = reader.records(path)
    assert last.topic == topic
    overwrite(path, last.physical_offset, bytes(last.size))


def overwrite(path: Path, physical_offset: int, data: bytes) -> None:
    size = (path / "commitlog" / f"{0:020}").stat().st_size
    with (path / "commitlog" / f"{physical_offset - physical_offset % size:020}").open("r+b") as file:
        file.seek(physical_offset % size)
        file.write(data)


def edit_offsets(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    file = path / "config" / "consumerOffset.json"
    with txstore.open(path, read_only=True) as broker:
        offsets = broker.store.consumer_offsets()
    table: dict[str, Any] = {}
    for topic, group, queue_id, queue_offset in offsets:
        table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = queue_offset
    edit(table)
    file.write_text(json.dumps({"offsetTable": table}))


def test_half_queue_progress_ahead_of_the_log_is_corrected(path: Path) -> None:
    with txstore.open(path, **SIZES, **NEVER) as broker:
        broker.write_queues(TOPIC)
        half(broker, "pending")
        broker.producer("p").send(Message(TOPIC, b"read"))
        with broker.consumer("readers", TOPIC) as consumer:
            assert len(consumer.poll(10, 5)) == 1
    crash(path)

    def ahead(table: dict[str, Any]) -> None:
        for queues in table.values():
            queues.update(dict.fromkeys(queues, 1000000))

    edit_offsets(path, ahead)
    with txstore.open(path, **SIZES, **NEVER) as broker:
        assert any("after the end" in warning for warning in broker.open_report.warnings)
        assert len(broker.transactions()) == 1
        for topic, _, queue_id, queue_offset in broker.store.consumer_offsets():
            assert queue_offset <= broker.queue_range(topic, queue_id)[1]
        broker.producer("p").send(Message(TOPIC, b"new"), queue_id=0)
        with broker.consumer("readers", TOPIC) as consumer:
            assert b"new" in [message.body for message in consumer.poll(10, 5)]


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 200, b"\x89PNG"], ids=["empty", "torn", "zeros", "foreign"])
def test_3401_9328_damaged_offset_file_is_never_silently_zero(path: Path, damage: bytes) -> None:
    with txstore.open(path, **SIZES) as broker:
        producer = broker.producer("p")
        for number in range(4):
            producer.send(Message(TOPIC, b"%d" % number), queue_id=0)
        broker.store.set_consumer_offset(TOPIC, "readers", 0, 2)
        broker.write_offsets()
        broker.store.set_consumer_offset(TOPIC, "readers", 0, 3)
        broker.write_offsets()
    file = path / "config" / "consumerOffset.json"
    file.write_bytes(damage)
    with txstore.open(path, **SIZES) as broker:
        assert broker.store.consumer_offset(TOPIC, "readers", 0) in (2, 3)  # The `.bak` is one interval older.
        assert any("consumerOffset.json" in warning for warning in broker.open_report.warnings)
    file.write_bytes(damage)
    (path / "config" / "consumerOffset.json.bak").write_bytes(damage)
    with txstore.open(path, **SIZES) as broker:
        assert broker.store.consumer_offset(TOPIC, "readers", 0) is None
        assert any("consumerOffset.json" in warning for warning in broker.open_report.warnings)


def test_7240_half_with_an_immunity_time_is_finished_by_an_op_with_many_offsets(path: Path) -> None:
    with txstore.open(path, **SIZES, **QUICK) as broker:
        broker.write_queues(TOPIC)
        immune = half(broker, "immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
        others = [half(broker, f"other-{number}") for number in range(20)]
        end_together(broker, [immune, *others])
        assert broker.transactions() == []
    with txstore.open(path, **SIZES, **QUICK) as broker:
        listener = Asked()
        broker.transaction_producer(GROUP, listener)
        assert broker.transactions() == []
        assert (listener.asked, len(visible(broker))) == ([], 21)


def end_together(broker: EmbeddedBroker, halves: list[Any]) -> None:
    """From many threads at once, so that ends share op messages."""
    barrier = threading.Barrier(len(halves))

    def end(sent: Any) -> None:
        barrier.wait()
        broker.end_transaction(sent, COMMIT)

    threads = [threading.Thread(target=end, args=(sent,)) for sent in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_9500_1568_damaged_half_does_not_stop_other_checks(path: Path) -> None:
    with txstore.open(path, **SIZES, **NEVER) as broker:
        broker.write_queues(TOPIC)
        bad, *_ = [half(broker, name) for name in ("bad", "good-1", "good-2")]
    overwrite(path, bad.physical_offset + 100, b"\xff" * 20)
    with txstore.open(path, **SIZES, **QUICK) as broker:
        listener = Asked({"good-1": COMMIT, "good-2": ROLLBACK})
        broker.transaction_producer(GROUP, listener)
        eventually(lambda: len(broker.store.halves_waiting(-1, 10)) == 1)
        assert visible(broker) == [b"good-1"]
        assert [waiting.half_queue_offset for waiting in broker.store.halves_waiting(-1, 10)] == [bad.queue_offset]
        with pytest.raises(StoreCorruptError):
            broker.end_transaction(bad, COMMIT)
        broker.producer("p").send(Message(TOPIC, b"sent later"))


def test_8311_544_immunity_time_counts_as_no_check(path: Path) -> None:
    with txstore.open(path, **SIZES, **QUICK, transaction_check_max=2) as broker:
        broker.write_queues(TOPIC)
        half(broker, "immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
        half(broker, "asked")
        listener = Asked()
        broker.transaction_producer(GROUP, listener)
        eventually(lambda: len(broker.transactions("discarded")) == 1)
        assert listener.asked == ["asked", "asked"]
        (immune,) = broker.transactions()
        assert immune.checks == 0


def test_7415_unknown_option_is_an_error(path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="transaction_check_max"):
        txstore.open(path, transaction_check_maximum=3)  # type: ignore[call-overload]
    assert not path.exists()


def test_9693_read_only_device_is_named_and_can_be_read(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a tmpfs")
    mount = tmp_path / "device"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "txstore-test", str(mount)], check=False)
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with txstore.open(mount / "store", **SIZES) as broker:
            broker.producer("p").send(Message(TOPIC, b"x"))
        del broker
        gc.collect()  # A closed store keeps its files until it is collected.
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with pytest.raises(StoreIOError, match="read_only=True") as refused:
            txstore.open(mount / "store")
        assert str(mount) in str(refused.value)
        with txstore.open(mount / "store", read_only=True) as reading:
            assert visible(reading) == [b"x"]
        del reading
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_467_1434_7355_queues_that_differ_from_the_log_are_rebuilt(zygote: Zygote, path: Path) -> None:
    told = work(zygote, path)
    for file in files_of(path / "consumequeue" / TOPIC)[:2]:
        data = bytearray(file.read_bytes())
        data[:20] = struct.pack(">qiq", 1 << 20, 100, 0)
        file.write_bytes(data)
    check(path, told, read_only=False, **SMALL)
    check_rebuilt(path, told, **SMALL)


def test_467_wrong_queue_entry_is_an_error_and_is_rebuilt_at_the_next_opening(zygote: Zygote, path: Path) -> None:
    told = work(zygote, path)
    file = path / "consumequeue" / TOPIC / "0" / f"{0:020}"
    good = file.read_bytes()
    for entry in (good[20:40], bytes(20), struct.pack(">qiq", 1 << 40, 100, 0)):
        file.write_bytes(good[:60] + entry + good[80:])
        with txstore.open(path, **SMALL) as broker:
            with pytest.raises(StoreCorruptError, match=f"consumequeue/{TOPIC}/0"):
                broker.store.read(TOPIC, 0, 3)
            assert len(broker.store.read(TOPIC, 0, 0)[0]) == 3  # The entries before it are delivered.
        check(path, told, read_only=False, **SMALL)
        assert file.read_bytes() == good


def work(zygote: Zygote, path: Path) -> Told:
    """A closed store of several log, queue and index files, and what was told of it."""
    told = Told()
    life = zygote.run("tests.crash.script:run", {"path": str(path), "options": SMALL, "name": "known"})
    assert ["closed"] in life.words, life
    told.hear(life.words)
    return told


def files_of(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("0*") if file.is_file())


def test_678_10073_checkpoint_ahead_loses_nothing(zygote: Zygote, path: Path) -> None:
    told = work(zygote, path)
    crash(path)
    for file in files_of(path / "consumequeue" / TOPIC):
        file.write_bytes(bytes(file.stat().st_size))
    future = struct.pack(">qqqqq", *[4_102_444_800_000] * 3, 0, 0)
    (path / "checkpoint").write_bytes(future + bytes(4096 - len(future)))
    check(path, told, read_only=False, **SMALL)


def test_10666_truncated_records_do_not_come_back(zygote: Zygote, path: Path) -> None:
    told = work(zygote, path)
    crash(path)
    last, *_ = reversed(list(reader.records(path)))
    overwrite(path, last.physical_offset + last.size, last.raw[:-30] + bytes(30))
    for _ in range(3):
        check(path, told, read_only=False, **SMALL)
        crash(path)


def test_damage_in_the_middle_is_an_error_with_its_offset(path: Path) -> None:
    with txstore.open(path, **SIZES, flush_disk_type="SYNC_FLUSH") as broker:
        producer = broker.producer("p")
        offsets = [producer.send(Message(TOPIC, b"x" * 50), queue_id=0).physical_offset for _ in range(5)]
        end = end_of_log(broker)
    overwrite(path, offsets[2] + 60, b"\xff\xff")
    with txstore.open(path, **SIZES) as broker:
        with pytest.raises(StoreCorruptError) as damaged:
            broker.store.read_at(offsets[2])
        assert damaged.value.file.endswith(f"commitlog/{0:020}")
        with pytest.raises(StoreCorruptError):
            broker.store.read(TOPIC, 0, 2)
        for queue_offset in (0, 3):  # It hides none of the other records.
            assert len(broker.store.read(TOPIC, 0, queue_offset)[0]) == 2
        assert end_of_log(broker) == end
    before = hashlib.sha256((path / "commitlog" / f"{0:020}").read_bytes()).hexdigest()
    (path / "txstore" / "snapshot").unlink()
    with pytest.raises(StoreCorruptError):
        txstore.open(path, **SIZES)
    assert hashlib.sha256((path / "commitlog" / f"{0:020}").read_bytes()).hexdigest() == before


def test_6904_empty_log_file_does_not_prevent_opening(zygote: Zygote, path: Path) -> None:
    told = work(zygote, path)
    log = sorted((path / "commitlog").glob("0*"))
    (path / "commitlog" / f"{len(log) << 14:020}").touch()
    crash(path)
    check(path, told, read_only=True)
    check(path, told, read_only=False, **SMALL)
    assert all(file.stat().st_size == 1 << 14 for file in (path / "commitlog").glob("0*"))


@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "zeros"])
def test_7539_8007_index_files_are_rebuilt(zygote: Zygote, path: Path, damage: str) -> None:
    told = work(zygote, path)
    files = sorted((path / "index").iterdir())
    assert len(files) > 1
    change: dict[str, Callable[[Path], object]] = {
        "removed": lambda file: file.unlink(),
        "emptied": lambda file: file.write_bytes(b""),
        "cut": lambda file: os.truncate(file, 100),
        "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    }
    for file in files:
        change[damage](file)
    crash(path)
    check(path, told, read_only=False, **SMALL)


def test_8032_missing_log_file_is_named_and_no_queue_is_dropped(zygote: Zygote, path: Path) -> None:
    work(zygote, path)
    log = sorted((path / "commitlog").glob("0*"))
    assert len(log) > 2
    queues = files_of(path / "consumequeue")
    shutil.move(log[1], path.with_suffix(".kept"))
    for read_only in (True, False):
        with pytest.raises(MissingFileError, match=log[1].name):
            txstore.open(path, read_only=read_only)
    assert files_of(path / "consumequeue") == queues
    shutil.move(path.with_suffix(".kept"), log[1])
    txstore.open(path, **SMALL).close()


def test_8032_missing_last_log_file_of_a_closed_store_is_named(golden_copy: Path) -> None:
    """A broker's store does not record its durable end: its queues lead past the end of the remaining log."""
    log = sorted((golden_copy / "commitlog").glob("0*"))
    log[-1].unlink()
    for read_only in (True, False):
        with pytest.raises(MissingFileError, match=log[-1].name):
            txstore.open(golden_copy, read_only=read_only)


@pytest.fixture
def golden_copy(tmp_path: Path) -> Path:
    from tests.golden.unpack import unpack

    return unpack("tx", tmp_path / "golden").copy_to(tmp_path)


def test_end_on_a_record_that_is_not_a_half_is_refused(broker: EmbeddedBroker) -> None:
    sent = half(broker)
    plain = broker.producer("p").send(Message(TOPIC, b"plain"))
    broker.end_transaction(sent, ROLLBACK)
    pending = half(broker, "pending")
    end = end_of_log(broker)
    for queue_offset, physical_offset in (
        (plain.queue_offset, plain.physical_offset),  # a plain message
        (pending.queue_offset, sent.physical_offset),  # the offset of another half
        (pending.queue_offset, pending.physical_offset + 1),  # the middle of a record
        (99, pending.physical_offset),  # beyond the queue's end
        (pending.queue_offset, 1 << 50),  # beyond the log's end
    ):
        with pytest.raises(TransactionNotFoundError):
            broker.store.end_transaction(queue_offset, physical_offset, commit=True)
    assert (visible(broker), end_of_log(broker)) == ([b"plain"], end)


def test_10911_bodies_of_threads_are_never_mixed(broker: EmbeddedBroker) -> None:
    """Every byte of a body names its sender."""

    def send(number: int) -> None:
        producer = broker.producer(f"p-{number}")
        for length in range(1, 400):
            producer.send(Message(TOPIC, bytes([number]) * (length * 7 % 900 + 1), keys=[str(number)]))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [
        (message.keys[0], set(message.body))
        for topic, queue_id, _, _ in broker.store.queues()
        for message in broker.store.read(topic, queue_id, 0, 10_000)[0]
    ]
    assert len(found) == 6 * 399
    assert all(bytes_in_it == {int(key)} for key, bytes_in_it in found)


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "..", ".", "", "a\0b", "x" * 128, "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_CVE_2019_17572_topic_that_is_a_path_is_refused(broker: EmbeddedBroker, path: Path, topic: str) -> None:
    before = sorted(str(file) for file in path.parent.rglob("*"))
    with pytest.raises(InvalidNameError):
        broker.producer("p").send(Message(topic, b"x"))
    assert sorted(str(file) for file in path.parent.rglob("*")) == before
