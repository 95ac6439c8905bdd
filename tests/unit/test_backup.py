"""Guards backups: a restored copy has all that was acknowledged, only what is new is copied, and no error harms what
was there.
"""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.backups import backups_in, manifest_of, must_be_whole, restored
from tests.copies import killed_copy
from tests.golden.unpack import NAMES, Golden, file_hashes, unpack
from tests.unit.conftest import Run, bodies, facts
from txstore import (
    EmbeddedBroker,
    ForeignStoreError,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    MissingFileError,
    StoreCorruptError,
    StoreIOError,
    StoreLockedError,
)
from txstore._native import TRANSACTION_GROUP, is_system_topic
from txstore.backup import Backup, take_backup, taking
from txstore.inspection.deep import look

FILE = 1 << 16
OPTIONS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE,
    "max_message_size": 1 << 14,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "clean_resource_interval": 86_400,
    "transaction_check_interval": 3600,
}
NO_CHECKS: dict[str, Any] = {"transaction_check_interval": 3600}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An open store with some files of its log, with transactions of all outcomes, and a group that has read some."""
    with txstore.open(tmp_path / "orders.store", **OPTIONS) as broker:
        fill(broker, 200)
        for number in range(10):
            half = broker.prepare(Message("paid", b"%d" % number), 0, "order-service")
            states = [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK]
            if number % 3:
                broker.end_transaction(half, states[number % 2])
        with broker.consumer("shipping", "orders") as consumer:
            consumer.poll(32)
            consumer.acknowledge()
        broker.write_offsets()
        yield broker


def fill(broker: EmbeddedBroker, count: int) -> None:
    with broker.producer("shop") as producer:
        for number in range(count):
            producer.send(Message("orders", b"%05d" % number + bytes(900), keys=[f"o-{number}"]))


def full_files(broker: EmbeddedBroker) -> int:
    stat = broker.stat()
    return (stat.max_physical_offset - stat.min_physical_offset) // FILE


def log_files(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / "commitlog").iterdir() if file.name.isdigit())


def offsets(broker: EmbeddedBroker) -> list[tuple[str, str, int, int]]:
    """The offsets of consumer groups. The progress of transactions is written later than they end."""
    return [one for one in broker.store.consumer_offsets() if one[1] != TRANSACTION_GROUP]


def must_equal(copy: Path, broker: EmbeddedBroker) -> None:
    """A restored copy has the messages, transactions, queues and offsets of the store, before and after its opening."""
    for _ in range(2):
        depth = look(str(copy))
        found = depth.findings
        assert (found.damages, found.differences, depth.plan) == ([], [], []), depth.as_facts()
        with txstore.open(copy, **NO_CHECKS) as opened:
            for topic in ("orders", "paid"):
                assert bodies(opened, topic) == bodies(broker, topic)
            assert opened.stat().max_physical_offset >= broker.stat().max_physical_offset
            assert {one.transaction_id for one in opened.transactions()} == {
                one.transaction_id for one in broker.transactions()
            }
            # A queue without messages need not exist yet.
            ranges = {one[:2]: one[2:] for one in opened.queues()}
            assert {one[:2]: one[2:] for one in broker.queues() if one[3]} == {
                key: value for key, value in ranges.items() if value[1]
            }
            assert offsets(opened) == offsets(broker)


def test_restored_copy_of_an_open_store_has_everything(store: EmbeddedBroker, tmp_path: Path) -> None:
    backup = take_backup(store.path, tmp_path / "backups")
    assert backup.path == backups_in(tmp_path / "backups")[-1]
    must_be_whole(backup.path)
    must_equal(restored(backup.path, tmp_path / "restored"), store)
    assert (backup.first, backup.end, backup.file_size) == (0, store.stat().max_physical_offset, FILE)
    counted = sum(one["records"] or 0 for one in manifest_of(backup.path)["files"])
    assert backup.verified_records == counted > 200
    assert look(str(backup.path)).findings.damages == []
    must_be_whole(backup.path)  # Checking a backup writes nothing to it.
    assert Backup.read(backup.path) == backup


def test_second_backup_copies_only_what_is_new(store: EmbeddedBroker, tmp_path: Path) -> None:
    first = take_backup(store.path, tmp_path / "backups")
    was_full = full_files(store)
    fill(store, 150)
    second = take_backup(store.path, tmp_path / "backups")
    assert second.previous == first.path.name
    linked = [one for one in second.files if one.is_linked]
    assert len(linked) == was_full >= 3
    assert second.linked_bytes == was_full * FILE
    new = store.stat().max_physical_offset - was_full * FILE
    others = sum(one.bytes for one in second.files if not one.is_log)
    assert second.copied_bytes == new + others
    for number, (old, file, live) in enumerate(
        zip(log_files(first.path), log_files(second.path), log_files(Path(store.path)), strict=False)
    ):
        assert file.samefile(old) == (number < was_full)
        assert not file.samefile(live), "a damage of the store would be one of the backup, too"
    for backup in (first, second):
        must_be_whole(backup.path)
    must_equal(restored(second.path, tmp_path / "restored"), store)
    shutil.rmtree(first.path)
    must_be_whole(second.path)


def test_command_adds_backups_and_keeps_the_newest(store: EmbeddedBroker, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "backups"
    done = facts(run, "store", "backup", store.path, folder)
    assert done["end"] == store.stat().max_physical_offset
    assert done["copied_bytes"] > done["end"]
    assert done["linked_bytes"] == 0
    for _ in range(3):
        code, out, err = run("store", "backup", store.path, folder, "--keep", 2)
        assert (code, err) == (0, "")
    assert f"cp -r {backups_in(folder)[-1]} " in out
    assert len(backups_in(folder)) == 2
    assert Path(done["backup"]) not in backups_in(folder)
    assert {one.name for one in folder.iterdir()} == {one.name for one in backups_in(folder)} | {"lock"}
    for backup in backups_in(folder):
        must_be_whole(backup)
    code, _, err = run("store", "backup", tmp_path / "none", folder)
    assert (code, "does not exist" in err) == (3, True)


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("orders.store", "is the store or inside it"),
        ("orders.store/txstore/backups", "is the store or inside it"),
        ("", "contains the store"),
        ("file", "is not a folder"),
        ("foreign", "has something other than backups: report.pdf"),
        ("another.store", "has something other than backups: checkpoint"),
        ("linked", "is the store or inside it"),
    ],
)
def test_folder_that_is_not_for_backups_is_refused_and_unchanged(
    store: EmbeddedBroker, tmp_path: Path, to: str, text: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/report.pdf").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / "orders.store")
    txstore.open(tmp_path / "another.store").close()
    before = {name: file_hashes(tmp_path / name) for name in ("foreign", "another.store")}
    with pytest.raises(InvalidOptionError, match=text):
        take_backup(store.path, tmp_path / to)
    assert {name: file_hashes(tmp_path / name) for name in before} == before
    assert not (Path(store.path) / "txstore/backups").exists()


def test_backups_of_another_store_are_refused(store: EmbeddedBroker, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "another.store", **OPTIONS) as another:
        fill(another, 1)
        take_backup(another.path, tmp_path / "backups")
        before = file_hashes(tmp_path / "backups")
        with pytest.raises(InvalidOptionError, match=r"backups of another store: that of .*another.store"):
            take_backup(store.path, tmp_path / "backups")
    assert file_hashes(tmp_path / "backups") == before
    with pytest.raises(InvalidOptionError, match="keep is 0"):
        take_backup(store.path, tmp_path / "backups", keep=0)


def test_folder_without_a_parent_is_an_error_that_names_it(store: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(StoreIOError, match=r"cannot back up .*orders.store: No such file") as caught:
        take_backup(store.path, tmp_path / "none/backups")
    assert caught.value.errno == errno.ENOENT


def test_damaged_record_is_an_error_and_the_last_backup_stays(store: EmbeddedBroker, tmp_path: Path) -> None:
    first = take_backup(store.path, tmp_path / "backups")
    before = file_hashes(tmp_path / "backups")
    fill(store, 150)
    file = log_files(Path(store.path))[full_files(store) - 1]
    with file.open("r+b") as log:
        log.seek(5000)
        byte = log.read(1)
        log.seek(5000)
        log.write(bytes([byte[0] ^ 0x41]))
    with pytest.raises(StoreCorruptError) as caught:
        take_backup(store.path, tmp_path / "backups")
    assert caught.value.file == str(file)
    assert caught.value.offset <= 5000
    assert file_hashes(tmp_path / "backups") == before
    must_be_whole(first.path)


def test_repair_changes_no_backup_and_the_next_one_has_the_repaired_file(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path, **OPTIONS) as broker:
        fill(broker, 200)
    first = take_backup(path, tmp_path / "backups")
    before = file_hashes(first.path)
    file = log_files(path)[1]
    data = bytearray(file.read_bytes())
    data[5000] ^= 0x41
    file.write_bytes(data)
    assert run("store", "repair", path, "--yes")[0] == 0
    second = take_backup(path, tmp_path / "backups")
    assert file_hashes(first.path) == before
    linked = {one.path for one in second.files if one.is_linked}
    assert "commitlog/" + file.name not in linked
    assert f"commitlog/{0:020}" in linked
    assert look(str(restored(second.path, tmp_path / "restored"))).findings.differences == []


def removed_front(broker: EmbeddedBroker) -> int:
    """Removes all log files but the last two, as retention does; returns where the log begins then."""
    stat = broker.stat()
    below = stat.max_physical_offset // FILE * FILE - FILE
    broker.store.remove_log_files(below, keep_unread=False)
    return broker.stat().min_physical_offset


def test_after_retention_a_queue_without_messages_continues_at_its_offset(
    store: EmbeddedBroker, tmp_path: Path
) -> None:
    store.create_topic("rare", 1)
    with store.producer("p") as producer:
        sent = [producer.send(Message("rare", b"%d" % number)) for number in range(3)]
    fill(store, 300)
    for one in store.transactions():
        store.end_transaction(one.transaction_id or "", LocalTransactionState.ROLLBACK)
    fill(store, 100)
    take_backup(store.path, tmp_path / "backups")
    first = removed_front(store)
    assert first > sent[-1].physical_offset
    backup = take_backup(store.path, tmp_path / "backups")
    assert backup.first == first
    assert any(one.is_linked for one in backup.files)
    must_be_whole(backup.path)
    copy = restored(backup.path, tmp_path / "restored")
    must_equal(copy, store)
    with txstore.open(copy) as opened, opened.producer("p") as producer:
        assert producer.send(Message("rare", b"3")).queue_offset == 3


def test_retention_during_a_backup_restarts_it(store: EmbeddedBroker, tmp_path: Path) -> None:
    for one in store.transactions():
        store.end_transaction(one.transaction_id or "", LocalTransactionState.ROLLBACK)
    fill(store, 300)
    first = 0

    class Steps:
        def to(self, done: int) -> None:
            nonlocal first
            if done > FILE and not first:
                first = removed_front(store)

    @contextmanager
    def progress(label: str, total: int, /) -> Iterator[Steps]:
        yield Steps()

    backup = take_backup(store.path, tmp_path / "backups", progress=progress)
    assert backup.first == first > 0
    must_be_whole(backup.path)
    must_equal(restored(backup.path, tmp_path / "restored"), store)


def test_file_that_is_replaced_while_it_is_copied_leaves_no_folder_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / name).write_text("{}")

    def replaced(origin: Path, *_: object) -> None:
        raise FileNotFoundError(origin)

    monkeypatch.setattr(taking, "copy_file", replaced)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(FileNotFoundError):
            taking._copy_files(tmp_path, tmp_path / "copy")
        gc.collect()
    assert [str(warning.message) for warning in found] == []


def test_file_that_is_replaced_again_and_again_is_copied_whole(tmp_path: Path) -> None:
    """By its name, one file could tell its length, and another one be copied."""
    texts = [json.dumps({"group": {"orders": number}}) for number in (9, 10**30)]
    config, ends = tmp_path / "config", threading.Event()
    config.mkdir()
    (config / "offsets.json").write_text(texts[0])

    def replace() -> None:
        for number in itertools.count():
            if ends.is_set():
                return
            (tmp_path / "next").write_text(texts[number % 2])
            (tmp_path / "next").replace(config / "offsets.json")

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for number in range(3000):
            taking._copy_files(config, tmp_path / f"copy-{number}")
            assert (tmp_path / f"copy-{number}" / "offsets.json").read_text() in texts
    finally:
        ends.set()
        writer.join()


def test_manifest_that_was_changed_is_reported_and_its_files_are_not_used(
    store: EmbeddedBroker, tmp_path: Path, run: Run
) -> None:
    first = take_backup(store.path, tmp_path / "backups")
    manifest = first.path / "txstore/backup.json"
    manifest.write_text(manifest.read_text().replace('"records": ', '"records": 1'))
    code, out, err = run("store", "backup", store.path, tmp_path / "backups", "--keep", 1, "--json")
    assert code == 0
    assert "is not the manifest of a complete backup" in err
    assert json.loads(out)["linked_bytes"] == 0
    assert first.path.exists(), "only what is known to be a backup is removed"


def test_file_of_the_last_backup_that_was_changed_is_not_linked(store: EmbeddedBroker, tmp_path: Path) -> None:
    first = take_backup(store.path, tmp_path / "backups")
    log_files(first.path)[0].write_bytes(bytes(FILE))
    second = take_backup(store.path, tmp_path / "backups")
    assert f"commitlog/{0:020}" not in {one.path for one in second.files if one.is_linked}
    must_be_whole(second.path)


def test_check_compares_a_backup_and_an_unopened_copy_with_the_manifest(
    store: EmbeddedBroker, tmp_path: Path, run: Run
) -> None:
    backup = take_backup(store.path, tmp_path / "backups")
    assert backup.damages() == []
    copy = restored(backup.path, tmp_path / "restored")
    offsets_file = copy / "config/consumerOffset.json"
    whole = offsets_file.read_text()
    for text, what in [(whole.replace("32", "31"), "its bytes differ"), (whole[:-1], "it ends 1 bytes too early")]:
        assert text != whole
        offsets_file.write_text(text)
        code, out, _ = run("store", "check", "--deep", copy)
        assert (code, f"DAMAGED: config/consumerOffset.json: {what}" in out) == (4, True), out
    offsets_file.unlink()
    code, out, _ = run("store", "check", "--deep", copy)
    assert (code, "DAMAGED: config/consumerOffset.json: it is missing" in out) == (4, True), out
    txstore.open(copy, **NO_CHECKS).close()
    assert run("store", "check", "--deep", copy)[0] == 0, "an opened copy is a store of its own"
    assert run("store", "check", "--deep", backup.path)[0] == 0


def test_without_hard_links_all_is_copied(
    store: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    take_backup(store.path, tmp_path / "backups")
    monkeypatch.setattr(os, "link", refuse)  # As on FAT.
    backup = take_backup(store.path, tmp_path / "backups")
    assert (backup.linked_bytes, backup.previous) == (0, None)
    must_be_whole(backup.path)


def test_one_backup_to_a_folder_at_a_time(store: EmbeddedBroker, tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Steps:
        def to(self, done: int) -> None:
            begun.set()
            assert may_end.wait(60)

    @contextmanager
    def progress(label: str, total: int, /) -> Iterator[Steps]:
        yield Steps()

    thread = threading.Thread(target=lambda: take_backup(store.path, tmp_path / "backups", progress=progress))
    thread.start()
    try:
        assert begun.wait(60)
        with pytest.raises(StoreLockedError, match="another process takes a backup"):
            take_backup(store.path, tmp_path / "backups")
    finally:
        may_end.set()
        thread.join()
    (backup,) = backups_in(tmp_path / "backups")
    must_be_whole(backup)


def closed(store: EmbeddedBroker) -> Path:
    store.close()
    return Path(store.path)


def killed(store: EmbeddedBroker) -> Path:
    """A killed store with a torn tail."""
    path = Path(store.path)
    end = store.stat().max_physical_offset
    copy = killed_copy(path, path.with_name("killed.store"))
    with log_files(copy)[end // FILE].open("r+b") as log:
        log.seek(end % FILE)
        log.write(b"\0\0\1\0\xda\xa3\x20\xa7 a torn record")
    return copy


@pytest.mark.parametrize("make", [closed, killed])
def test_store_that_no_process_writes(
    store: EmbeddedBroker, tmp_path: Path, make: Callable[[EmbeddedBroker], Path]
) -> None:
    path = make(store)
    before = file_hashes(path)
    backup = take_backup(path, tmp_path / "backups")
    assert file_hashes(path) == before
    must_be_whole(backup.path)
    copy = restored(backup.path, tmp_path / "restored")
    with txstore.open(path, read_only=True) as broker:
        must_equal(copy, broker)


def test_empty_store(tmp_path: Path) -> None:
    path, folder = tmp_path / "empty.store", tmp_path / "backups"
    txstore.open(path, **OPTIONS).close()
    backup = take_backup(path, folder)
    assert (backup.first, backup.end) == (0, 0)
    with txstore.open(path, **OPTIONS) as broker:
        fill(broker, 1)
        again = take_backup(path, folder)
        must_equal(restored(again.path, tmp_path / "restored"), broker)
    with txstore.open(restored(backup.path, tmp_path / "empty"), **OPTIONS) as opened:
        fill(opened, 1)
    assert look(str(tmp_path / "empty")).findings.damages == []


@pytest.mark.parametrize("name", NAMES)
def test_store_of_a_broker(name: str, tmp_path: Path) -> None:
    golden: Golden = unpack(name, tmp_path / "golden")
    try:
        backup = take_backup(golden.store, tmp_path / "backups")
    except ForeignStoreError:
        with pytest.raises(ForeignStoreError):  # Nor could a copy of it be opened.
            txstore.open(golden.copy_to(tmp_path)).close()
        return
    must_be_whole(backup.path)
    copy = restored(backup.path, tmp_path / "restored")
    with txstore.open(golden.copy_to(tmp_path), **NO_CHECKS) as theirs, txstore.open(copy, **NO_CHECKS) as ours:
        assert {one[:4] for one in ours.queues() if one[3]} == {one[:4] for one in theirs.queues() if one[3]}
        for topic in sorted({topic for topic, *_ in theirs.queues() if not is_system_topic(topic)}):
            assert bodies(ours, topic) == bodies(theirs, topic)
        rows = [{one.transaction_id: one.state for one in each.store.transactions()} for each in (ours, theirs)]
        assert rows[0] == rows[1]
        sizes = [
            (stat.commit_log_file_size, stat.consume_queue_file_size, stat.max_hash_slot_num, stat.max_index_num)
            for stat in (ours.stat(), theirs.stat())
        ]
        assert sizes[0] == sizes[1]


def test_store_that_could_not_be_opened_for_writing_is_refused(store: EmbeddedBroker, tmp_path: Path) -> None:
    path = closed(store)
    (path / "consumequeue/CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(ForeignStoreError, match="RocksDB"):
        take_backup(path, tmp_path / "backups")
    assert backups_in(tmp_path / "backups") == []


def test_missing_log_file_is_named(store: EmbeddedBroker, tmp_path: Path) -> None:
    path = closed(store)
    log_files(path)[1].unlink()
    with pytest.raises(MissingFileError):
        take_backup(path, tmp_path / "backups")
    log_files(path)[0].unlink()
    log_files(path)[-1].unlink()
    with pytest.raises(MissingFileError):
        take_backup(path, tmp_path / "backups")
    assert backups_in(tmp_path / "backups") == []


def test_newest_backup_has_the_last_name_though_the_clock_was_set_back(store: EmbeddedBroker, tmp_path: Path) -> None:
    first = take_backup(store.path, tmp_path / "backups")
    future = first.path.rename(first.path.with_name("29990101T000000.000000Z"))
    second = take_backup(store.path, tmp_path / "backups", keep=1)
    assert second.path.name > future.name
    assert backups_in(tmp_path / "backups") == [second.path]
    assert second.linked_bytes > 0
