"""Guards the kept statistics of full log files: a writer keeps them in its store, a reader only in a folder elsewhere,
and what is shown is what a count of all records finds. rust/src/store/tests/kept_statistics.rs has crashes and damage.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import IO

import pytest

import txstore
from tests.counted import assert_statistics, counted
from tests.golden.unpack import NAMES, OWN, Unpacked
from txstore import Message

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")

FILE_BYTES = 1 << 16


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=FILE_BYTES) as broker:
        send(broker, 300)
    return path


def send(broker: txstore.Broker, count: int) -> None:
    producer = broker.producer("producers")
    for number in range(count):
        producer.send(Message(("orders", "payments")[number % 3 == 0], b"x" * (1 + number % 700)))


def kept(store: Path) -> list[int]:
    return sorted(int(file.name) for file in (store / "txstore" / "statistics").glob("0*[0-9]"))


def full_files(store: Path) -> list[int]:
    return sorted(int(file.name) for file in (store / "commitlog").glob("0*"))[:-1]


def state(store: Path) -> dict[Path, tuple[int, int]]:
    """Every file and folder of a store, with length and time."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in store.rglob("*")}


def test_a_writer_keeps_them_when_files_are_full(store: Path) -> None:
    assert kept(store) == full_files(store) != []
    assert_statistics(store)
    shutil.rmtree(store / "txstore" / "statistics")
    assert_statistics(store)
    with txstore.open(store, mapped_file_size_commit_log=FILE_BYTES, snapshot_interval=0.05) as broker:
        send(broker, 200)
        while kept(store) != full_files(store):  # a job of the broker
            threading.Event().wait(0.01)
        assert_statistics(store)


def test_without_queue_files_they_still_count(store: Path) -> None:
    rows = counted(store)
    shutil.rmtree(store / "consumequeue")
    assert_statistics(store)
    # Damage in a full file is not noticed, because its records are not read.
    log = store / "commitlog" / f"{0:020}"
    log.write_bytes(bytes(FILE_BYTES // 2) + log.read_bytes()[FILE_BYTES // 2 :])
    assert pa.table(txstore.scan(store, view="statistics")).to_pylist() == rows


@pytest.mark.parametrize("name", [*NAMES, *OWN])
def test_golden_stores_before_and_after_txstore_opens_them(golden: Unpacked, name: str, tmp_path: Path) -> None:
    store, folder = golden[name].copy_to(tmp_path), tmp_path / "folder"
    for _ in range(2):
        before = state(store)
        assert_statistics(store, folder)
        assert state(store) == before
        try:
            with txstore.open(store, snapshot_interval=0.05) as broker:
                send(broker, 30)
        except (txstore.ForeignStoreError, txstore.StoreLockedError):
            break


def test_a_deleted_topic_and_a_broker_that_begins_it_again(store: Path, tmp_path: Path) -> None:
    with txstore.open(store) as broker:
        broker.delete_topic("orders")
        send(broker, 200)
    assert kept(store) == full_files(store)
    assert_statistics(store, tmp_path / "folder")
    # A broker knows no settings of ours, and cuts what it does not find whole.
    (store / "txstore" / "settings.json").unlink()
    shutil.rmtree(store / "consumequeue" / "orders")
    assert_statistics(store, tmp_path / "folder")


def test_a_reader_keeps_them_elsewhere(store: Path, tmp_path: Path) -> None:
    rows = counted(store)
    shutil.rmtree(store / "txstore")
    before = state(store)
    folder = tmp_path / "folder"
    for _ in range(2):
        assert pa.table(txstore.scan(store, view="statistics", statistics_path=folder)).to_pylist() == rows
        (found,) = (entry for entry in folder.iterdir() if entry.is_dir())
        assert [int(file.name) for file in sorted(found.iterdir())] == full_files(store)
    assert state(store) == before
    # They are used: nobody could count the first file any more.
    log = store / "commitlog" / f"{0:020}"
    log.write_bytes(bytes(FILE_BYTES // 2) + log.read_bytes()[FILE_BYTES // 2 :])
    assert pa.table(txstore.scan(store, view="statistics", statistics_path=str(folder))).to_pylist() == rows
    # Those of files that retention removed go, when the next reader comes.
    log.unlink()
    rest = [row for row in rows if row["file"] > 0]
    assert pa.table(txstore.scan(store, view="statistics", statistics_path=folder)).to_pylist() == rest
    assert [int(file.name) for file in sorted(found.iterdir())] == full_files(store)


def test_stores_and_readers_share_a_folder(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.store"
    with txstore.open(other, mapped_file_size_commit_log=FILE_BYTES) as broker:
        send(broker, 300)
    failed: list[BaseException] = []

    def read(path: Path) -> None:
        try:
            for _ in range(5):
                assert_statistics(path, tmp_path / "folder")
        except BaseException as error:
            failed.append(error)

    for path in (store, other):
        shutil.rmtree(path / "txstore" / "statistics")
    threads = [threading.Thread(target=read, args=[path]) for path in (store, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len([entry for entry in (tmp_path / "folder").iterdir() if entry.is_dir()]) == 2


def hold(file: IO[bytes], start: int, length: int) -> None:
    """Locks bytes until this object is closed. A lock of the process would end with any close of the file."""
    flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, flock)


def test_a_reader_keeps_them_while_a_reader_of_another_store_writes(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.rmtree(store / "txstore" / "statistics")
    assert_statistics(store, folder)
    (found,) = (entry for entry in folder.iterdir() if entry.is_dir())
    shutil.rmtree(found)
    own_byte = zlib.crc32(found.name.encode())
    with (folder / "lock").open("r+b") as lock:
        hold(lock, 0, own_byte)
        assert_statistics(store, folder)
        assert [int(file.name) for file in sorted(found.iterdir())] == full_files(store)
        # Another reader of this store writes the same.
        shutil.rmtree(found)
        hold(lock, own_byte, 1)
        assert_statistics(store, folder)
        assert not found.exists()


def test_a_folder_in_the_store_is_refused(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(store)
    monkeypatch.chdir(store)
    before = state(store)
    for folder in (store, store / "cache", store / "txstore" / "cache", tmp_path / "link" / "cache", "cache", "."):
        with pytest.raises(txstore.InvalidOptionError, match="into which no reader writes"):
            txstore.scan(store, view="statistics", statistics_path=folder)
    with pytest.raises(txstore.InvalidOptionError, match="only the view statistics"):
        txstore.scan(store, statistics_path=tmp_path / "folder")
    with pytest.raises(txstore.StoreIOError, match="nowhere"):
        txstore.scan(store, view="statistics", statistics_path=tmp_path / "nowhere" / "folder")
    assert state(store) == before
    # A name that only begins like the store's is another folder.
    assert_statistics(store, os.path.relpath(f"{store}-cache"))
