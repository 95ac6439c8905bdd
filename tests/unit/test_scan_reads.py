"""Guards what a read of the log reads from the disk: what was asked for, not the rest of the log.

The page cache forgets the store's files before each read, and the kernel counts what comes from the disk. A store that
txstore closed and one that a broker closed, which has no settings of ours, behave alike.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import txstore
from txstore import Message, _native

pa = pytest.importorskip("pyarrow")

MESSAGES = 96_000
"""Of 1 KiB each, so the log has 115 MB."""
RARELY = 5_600
"""So many messages are between two of the topic `rare`."""
MB = 1_000_000


def from_disk(store: Path, call: Callable[[], object]) -> int:
    """Bytes that a call reads from the disk."""
    for file in [file for file in store.rglob("*") if file.is_file()]:
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)
    before = _read_bytes()
    call()
    return _read_bytes() - before


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("reads") / "ours.store"
    with txstore.open(path, mapped_file_size_commit_log=128 << 20) as broker:
        producer = broker.producer("p")
        for first in range(0, MESSAGES, 400):
            producer.send_batch([Message("orders", b"x" * 1024, keys=[f"k{first + at}"]) for at in range(400)])
            if first % RARELY == 0:
                producer.send(Message("rare", b"x" * 1024))
    if from_disk(path, lambda: pa.table(txstore.scan(path)).num_rows) < 80 * MB:
        pytest.skip("this file system keeps its files in memory")
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture(scope="module")
def brokers(ours: Path) -> Path:
    path = ours.with_name("brokers.store")
    subprocess.run(["cp", "-r", "--sparse=always", str(ours), str(path)], check=True)
    shutil.rmtree(path / "txstore")
    (path / "lock").unlink()
    return path


@pytest.fixture(params=["ours", "brokers"])
def store(request: pytest.FixtureRequest) -> Path:
    path = request.getfixturevalue(request.param)
    assert isinstance(path, Path)
    return path


def test_a_micro_batch_reads_what_it_returns(store: Path) -> None:
    first, visible = _native.log_range(store)
    assert from_disk(store, lambda: _native.log_range(store)) < 4 * MB
    for begin in (first, _native.log_boundary(store, visible // 2)):
        scan = _native.Scan(store, columns=["physical_offset"], end=visible)
        assert from_disk(store, lambda begin=begin, scan=scan: scan.advance(begin, bytes=1 << 20)) < 2 * MB  # type: ignore[misc]
        assert from_disk(store, lambda begin=begin, scan=scan: scan.advance(begin, rows=500)) < 8 * MB  # type: ignore[misc]
        end = scan.advance(begin, bytes=1 << 20)
        batch = _native.Scan(store, start=begin, end=end, is_cut=True)
        assert from_disk(store, lambda batch=batch: pa.table(batch)) < 4 * MB  # type: ignore[misc]


def test_a_time_range_has_the_rows_of_a_filter(store: Path) -> None:
    # How much is read depends on how evenly the log was written: rust/src/recovery/log_view/tests/time.rs bounds it.
    times = [time.value // 1_000 for time in pa.table(txstore.scan(store, columns=["store_timestamp"]))[0]]
    for at in (len(times) // 100, len(times) // 2, -len(times) // 100):
        moment = datetime.fromtimestamp(times[at] / 1_000, UTC)
        after = pa.table(txstore.scan(store, columns=["size"], start_time=moment)).num_rows
        before = pa.table(txstore.scan(store, columns=["size"], end_time=moment)).num_rows
        assert (before, after) == (sum(time < times[at] for time in times), sum(time >= times[at] for time in times))


def test_a_rare_topic_reads_what_its_queue_points_to(store: Path) -> None:
    rows = len(range(0, MESSAGES, RARELY))
    first, visible = _native.log_range(store)
    queues = {"rare": dict.fromkeys(range(8), (0, 1 << 62))}
    for asked in ({"topics": ["rare"]}, {"queues": queues, "only_queues": True}):
        scan = _native.Scan(store, **asked)
        found: list[int] = []
        # An entry of 20 bytes for each record, and the records themselves.
        assert from_disk(store, lambda scan=scan, found=found: found.append(pa.table(scan).num_rows)) < 8 * MB  # type: ignore[misc]
        assert found == [rows]
        planned = _native.Scan(store, end=visible, **asked)
        assert from_disk(store, lambda scan=planned: scan.advance(first, rows=5)) < 8 * MB  # type: ignore[misc]
        assert planned.advance(first, rows=rows) == visible


def test_statistics_read_the_entries(store: Path) -> None:
    found: list[int] = []
    scan = txstore.scan(store, view="statistics")
    assert from_disk(store, lambda: found.append(sum(pa.table(scan)["messages"].to_pylist()))) < 8 * MB
    assert found == [MESSAGES + len(range(0, MESSAGES, RARELY))]
