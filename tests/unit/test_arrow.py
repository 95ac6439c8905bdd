"""Guards scans as Arrow: every record is one row with the values that the engine reads, while a writer appends, after a
crash and around damage; bytes in a body are never taken for a record.
"""

from __future__ import annotations

import shutil
import struct
import threading
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden.reader import records
from tests.golden.unpack import NAMES, Unpacked
from tests.spark.stores import fill
from txstore import Message, StoredMessage, _native

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store in small files."""
    path = tmp_path_factory.mktemp("arrow") / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=1 << 16) as broker:
        fill(broker, 400)
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    table = pa.table(txstore.scan(path, **options))
    table.validate(full=True)
    return list(table.to_pylist(maps_as_pydicts="strict"))


def stored(path: Path) -> list[StoredMessage]:
    """Every record, as the engine reads it."""
    with txstore.open(path, read_only=True) as broker:
        found: list[StoredMessage] = []
        at = broker.store.stat().min_physical_offset
        while True:
            more, at = broker.store.scan(at, 1_000)
            if not more:
                return found
            found += more


def as_row(message: StoredMessage) -> dict[str, Any]:
    def time(milliseconds: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)

    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "transaction_id": message.transaction_id,
        "keys": list(message.keys),
        "tags": message.tags,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "transaction_type": message.transaction_type,
        "born_timestamp": time(message.born_timestamp_ms),
        "born_host": message.born_host,
        "store_timestamp": time(message.store_timestamp_ms),
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body": message.body,
        "properties": message.properties,
    }


@pytest.mark.parametrize("name", NAMES)
def test_records_of_a_broker_equal_the_engines_reading(golden: Unpacked, name: str) -> None:
    """Compressed bodies, IPv6 hosts, long topics, empty bodies and null properties among them."""
    store = golden[name].store
    found = rows(store, view="commitlog")
    assert found == [as_row(message) for message in stored(store)]
    assert [row["physical_offset"] for row in found] == [record.physical_offset for record in records(store)]


def test_our_records_equal_the_engines_reading(orders: Path) -> None:
    every = [as_row(message) for message in stored(orders)]
    assert rows(orders, view="commitlog") == every
    visible = [row for row in every if not _native.is_system_topic(row["topic"])]
    assert rows(orders) == visible
    assert rows(orders, system_topics=True) == every
    assert rows(orders, topics=["payments"]) == [row for row in visible if row["topic"] == "payments"]
    assert rows(orders, topic_pattern="ord.*s") == [row for row in visible if row["topic"] == "orders"]
    assert rows(orders, columns=["size", "topic"]) == [{"size": row["size"], "topic": row["topic"]} for row in visible]
    assert rows(orders, transaction_types=["commit"]) == [row for row in every if row["transaction_type"] == "commit"]
    middle = visible[200]["store_timestamp"]
    assert rows(orders, start_time=middle) == [row for row in visible if row["store_timestamp"] >= middle]
    assert rows(orders, end_time=middle) == [row for row in visible if row["store_timestamp"] < middle]
    offset = visible[200]["physical_offset"]
    for start in (offset, offset - 1, visible[199]["physical_offset"] + 1):
        assert rows(orders, start_physical_offset=start) == visible[200:]
    assert rows(orders, end_physical_offset=offset + 1) == visible[:201]


def test_batches_are_bounded_and_each_reading_begins_again(orders: Path) -> None:
    scan = txstore.scan(orders, batch_rows=50, columns=["size"])
    for _ in range(2):
        lengths = [batch.num_rows for batch in pa.RecordBatchReader.from_stream(scan)]
        assert lengths == [50] * 8 + [14]
    for batch in pa.RecordBatchReader.from_stream(txstore.scan(orders, batch_bytes=2_000, columns=["size"])):
        assert sum(batch["size"].to_pylist()) <= 2_000 or batch.num_rows == 1
    assert pa.schema(txstore.scan(orders)) == pa.table(txstore.scan(orders)).schema


def test_polars_duckdb_and_pandas_read_it(orders: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    scan = txstore.scan(orders, columns=["topic", "size", "body"])
    expected = rows(orders, columns=["topic", "size", "body"])
    assert polars.DataFrame(scan).to_dicts() == expected
    batches = pa.RecordBatchReader.from_stream(scan)  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("SELECT count(*), sum(size) FROM batches").fetchall() == [
        (len(expected), sum(row["size"] for row in expected))
    ]
    assert pa.table(scan).to_pandas().to_dict("records") == expected


def test_scan_next_to_a_writer_ends_at_the_visible_end(tmp_path: Path) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=1 << 16) as broker:
        stop, producer = threading.Event(), broker.producer("producers")
        sent: list[int] = []

        def write() -> None:
            while not stop.is_set():
                sent.append(producer.send(Message("orders", b"x" * (len(sent) % 500 + 1))).physical_offset)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            before: list[int] = []
            while len(before) < 3_000:
                known = len(sent)
                # Every second scan has bodies, whose CRCs are checked.
                columns = ["physical_offset", "body"][: 1 + len(before) % 2]
                found = pa.table(txstore.scan(path, columns=columns))["physical_offset"].to_pylist()
                assert found[: len(before)] == before
                assert len(found) >= known
                before = found
        finally:
            stop.set()
            thread.join()
        assert before == sent[: len(before)]
        first, end = _native.log_range(path)
        cuts = _native.log_cut(path, first, end, 9)
        assert [start for start, _ in cuts[1:]] == [end for _, end in cuts[:-1]]
        assert {start for start, _ in cuts} <= set(sent)


def test_topic_is_known_from_its_first_message_on(tmp_path: Path) -> None:
    with txstore.open(tmp_path / "orders.store") as broker:
        broker.producer("producers").send(Message("orders", b"first"))
        assert len(rows(tmp_path / "orders.store", topics=["orders"])) == 1


def crashed(path: Path, tail: bytes, tmp_path: Path) -> Path:
    """A copy of an open store, as a crash would leave it, with a torn record at its end."""
    copy = killed_copy(path, tmp_path / "crashed")
    _, end = _native.log_range(path)
    file = max(file for file in (copy / "commitlog").iterdir() if file.name.isdigit() and int(file.name) <= end)
    with file.open("r+b") as log:
        log.seek(end - int(file.name))
        log.write(tail)
    return copy


@pytest.mark.parametrize("cut", [5, 40, 90, -1])
def test_scan_after_a_crash_ends_at_the_torn_tail(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path) as broker:
        producer = broker.producer("producers")
        for number in range(50):
            producer.send(Message("orders", b"%d" % number))
        (last,) = broker.store.scan(0, 100)[0][-1:]
        _, end = _native.log_range(path)
        torn = bytearray(last.record)
        torn[28:36] = struct.pack(">q", end)
        copy = crashed(path, bytes(torn[:cut]) if cut > 0 else bytes(torn), tmp_path)
    for columns in (["topic"], ["topic", "body"]):
        assert len(rows(copy, columns=columns)) == 50
    assert _native.log_range(copy) == (0, end)


def test_damage_is_named_or_skipped(orders: Path, tmp_path: Path) -> None:
    copy = killed_copy(orders, tmp_path / "damaged")
    every = rows(copy, view="commitlog")
    bad = every[100]["physical_offset"]
    files = sorted(file for file in (copy / "commitlog").iterdir() if file.name.isdigit())
    file = max(file for file in files if int(file.name) <= bad)
    with file.open("r+b") as log:
        log.seek(bad - int(file.name) + 4)
        log.write(b"\0\0\0\1")
    scan = txstore.scan(copy, view="commitlog", columns=["physical_offset"])
    with pytest.raises(pa.ArrowException, match=rf"{file.name}.*(?s:.)*bad_records"):
        pa.table(scan)
    with pytest.raises(txstore.StoreCorruptError) as raised:
        scan.raise_failure()
    assert (raised.value.file, raised.value.offset) == (str(file), bad - int(file.name))
    scan = txstore.scan(copy, view="commitlog", columns=["physical_offset"], bad_records="skip")
    left = pa.table(scan)["physical_offset"].to_pylist()
    assert left == [row["physical_offset"] for row in every if row["physical_offset"] != bad]
    assert (scan.bad_records, scan.bad_bytes) == (1, every[100]["size"])


def forged(like: bytes, offset: int) -> bytes:
    """A record that names the given physical offset, with the right CRC for that."""
    record = bytearray(like)
    record[28:36] = struct.pack(">q", offset)
    crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
    record[-20:] = b"__CRC32#\x01" + f"{crc:010}"[::-1].encode() + b"\x02"
    return bytes(record)


@pytest.mark.parametrize("with_queues", [True, False])
def test_bytes_in_a_body_are_not_a_record(tmp_path: Path, with_queues: bool) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path) as broker:
        producer = broker.producer("producers")
        producer.send(Message("orders", b"first"))
        (first,) = broker.store.scan(0, 1)[0]
        _, end = _native.log_range(path)
        # The body of the next record begins 88 bytes after its own beginning.
        bait = end + 88 + 7
        producer.send(Message("orders", b"padding" + forged(first.record, bait) + b"rest"))
        last = producer.send(Message("orders", b"last")).physical_offset
    if not with_queues:
        shutil.rmtree(path / "consumequeue")
    for offset in (end + 1, bait - 1, bait, bait + 1):
        assert _native.log_boundary(path, offset) == last
    assert _native.log_boundary(path, end) == end
    assert all(cut in (0, end, last) for cut, _ in _native.log_cut(path, 0, _native.log_range(path)[1], 50))
    assert len(rows(path, start_physical_offset=bait)) == 1


def test_removed_files_are_an_error_or_counted(orders: Path, tmp_path: Path) -> None:
    copy = killed_copy(orders, tmp_path / "short")
    every = rows(copy, columns=["physical_offset"])
    (copy / "commitlog" / f"{0:020}").unlink()
    left = [row for row in every if row["physical_offset"] >= 1 << 16]
    assert rows(copy, columns=["physical_offset"]) == left
    with pytest.raises(txstore.OffsetTooOldError) as raised:
        txstore.scan(copy, start_physical_offset=5)
    assert raised.value.minimum == 1 << 16
    scan = txstore.scan(copy, columns=["physical_offset"], start_physical_offset=5, fail_on_data_loss=False)
    assert pa.table(scan).num_rows == len(left)
    assert scan.lost_bytes == (1 << 16) - 5


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_removed_files_are_counted_once_over_planned_ranges(orders: Path, tmp_path: Path, parts: int) -> None:
    copy = killed_copy(orders, tmp_path / "short")
    every = rows(copy, columns=["physical_offset"])
    planned = _native.log_cut(copy, *_native.log_range(copy), parts)
    (copy / "commitlog" / f"{0:020}").unlink()
    left: list[int] = []
    lost = 0
    for start, end in planned:
        scan = _native.Scan(
            copy, columns=["physical_offset"], start=start, end=end, is_cut=True, fail_on_data_loss=False
        )
        left += pa.table(scan)["physical_offset"].to_pylist()
        lost += scan.lost_bytes
    assert left == [row["physical_offset"] for row in every if row["physical_offset"] >= 1 << 16]
    assert lost == 1 << 16


BAD: list[tuple[dict[str, Any], str]] = [
    ({"view": "half"}, "the views are"),
    ({"columns": ["sise"]}, "its columns are topic"),
    ({"columns": []}, "no column is named"),
    ({"columns": ["topic", "topic"]}, "named twice"),
    ({"topics": ["order"]}, "did you mean 'orders'"),
    ({"view": "ops", "topics": ["orders"]}, "has no topics to select"),
    ({"topic_pattern": "("}, "not a valid regular expression"),
    ({"transaction_types": ["half"]}, "none, prepared, commit and rollback"),
    ({"start_physical_offset": 1 << 50}, "the log contains 0 to"),
    ({"end_physical_offset": 1 << 50}, "the log contains 0 to"),
    ({"start_physical_offset": 9, "end_physical_offset": 3}, "before its start"),
    ({"start_physical_offset": -1}, "between 0 and"),
    ({"batch_rows": 0}, "must be between 1"),
    ({"batch_bytes": 1 << 40}, "must be between 1"),
    ({"bad_records": "ignore"}, "expected 'fail' or 'skip'"),
    ({"view": "transactions", "start_time": datetime(2026, 1, 1)}, "read the view traces"),
    ({"view": "transactions", "end_physical_offset": 0}, "read the view traces"),
    ({"view": "transactions", "transaction_types": ["commit"]}, "read the view traces"),
    ({"view": "transactions", "bad_records": "skip"}, "read the view traces"),
]


@pytest.mark.parametrize(("options", "says"), BAD, ids=[str(options) for options, _ in BAD])
def test_wrong_option_is_named(orders: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(txstore.InvalidOptionError, match=says):
        txstore.scan(orders, **options)


def test_missing_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(txstore.StoreIOError, match="check the path"):
        txstore.scan(tmp_path / "nowhere")
    with pytest.raises(txstore.ForeignStoreError, match="not a store"):
        txstore.scan(tmp_path)
