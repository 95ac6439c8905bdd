"""Guards scans of some topics and queues, which read what the queues point to: they have the rows of a filter over the
whole log. rust/src/arrow/tests/skips.rs compares them on random logs with damaged queues.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.counted import assert_statistics
from tests.golden.unpack import NAMES, OWN, Unpacked
from txstore import Message, _native

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")

NEVER = 1 << 63
"""As `skip_bytes_min`: nothing is skipped, all records are filtered."""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


def questions(store: Path) -> Iterator[dict[str, Any]]:
    """Each topic and each queue, in each view that has them."""
    queues = pa.table(_native.Scan(store, view="commitlog", columns=["topic", "queue_id", "queue_offset"]))
    found = {(row["topic"], row["queue_id"]) for row in queues.to_pylist()}
    for topic in sorted({topic for topic, _ in found} | {"none"}):
        for view in ("messages", "commitlog"):
            yield {"view": view, "topics": [topic], "system_topics": True}
    for topic, queue in sorted(found):
        yield {"queues": {topic: {queue: (0, 1 << 62)}}, "only_queues": True, "system_topics": True}
        yield {"queues": {topic: {queue: (2, 5)}}, "only_queues": True, "system_topics": True}
        yield {"queues": {topic: {queue: (2, 5)}}}
    yield {"topic_pattern": "[a-p].*"}
    yield {"view": "halves"}
    yield {"view": "ops"}


def assert_rows_of_a_filter(store: Path) -> None:
    assert_statistics(store)
    first, visible = _native.log_range(store)
    for number, asked in enumerate(questions(store)):
        skipping, filtering = (_native.Scan(store, skip_bytes_min=least, **asked) for least in (1, NEVER))
        expected = pa.table(filtering)
        assert pa.table(skipping).equals(expected), asked
        if number % 6 == 0:
            rows = max(1, expected.num_rows // 9)
            at, parts = first, []
            while at < visible:
                end = skipping.advance(at, rows=rows)
                assert at < end <= visible
                parts.append(pa.table(_native.Scan(store, skip_bytes_min=1, start=at, end=end, is_cut=True, **asked)))
                assert parts[-1].num_rows <= rows or asked.get("view") == "ops"
                at = end
            assert pa.concat_tables(parts).combine_chunks().equals(expected.combine_chunks()), asked


@pytest.mark.parametrize("name", [*NAMES, *OWN])
def test_golden_stores(golden: Unpacked, name: str) -> None:
    assert_rows_of_a_filter(golden[name].store)


def send(broker: txstore.Broker, topic: str, count: int) -> None:
    with broker.producer("producers") as producer:
        producer.send_batch([Message(topic, b"x" * (10 + number % 50)) for number in range(count)])


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """Records of the deleted topic have no entries any more, and are still in the log."""
    store = tmp_path / "orders.store"
    with txstore.open(store, mapped_file_size_commit_log=1 << 18) as broker:
        for topic in ("orders", "payments", "orders", "payments"):
            send(broker, topic, 40)
        broker.delete_topic("orders")
        send(broker, "payments", 40)
        send(broker, "orders", 30)
    assert pa.table(txstore.scan(store, topics=["orders"])).num_rows == 110
    assert_rows_of_a_filter(store)
    # A broker begins such a topic at 0 again, and has no settings of ours.
    shutil.rmtree(store / "txstore")
    assert_rows_of_a_filter(store)


def test_while_a_process_writes_and_after_it_was_killed(tmp_path: Path) -> None:
    """The newest entries are not in the files yet."""
    store = tmp_path / "orders.store"
    with txstore.open(store, mapped_file_size_commit_log=1 << 18) as broker:
        for topic in ("orders", "payments", "orders"):
            send(broker, topic, 300)
            assert_rows_of_a_filter(store)
        killed = killed_copy(store, tmp_path / "killed.store")
        assert_rows_of_a_filter(killed)


def test_without_queue_files(tmp_path: Path) -> None:
    store = tmp_path / "orders.store"
    with txstore.open(store, mapped_file_size_commit_log=1 << 18) as broker:
        for topic in ("orders", "payments", "orders"):
            send(broker, topic, 100)
    for queue in sorted((store / "consumequeue").glob("orders/*")):
        shutil.rmtree(queue)
        assert_rows_of_a_filter(store)
    file = next(iter((store / "consumequeue" / "payments").glob("*/*")))
    file.write_bytes(file.read_bytes()[:-7])
    assert_rows_of_a_filter(store)
    shutil.rmtree(store / "consumequeue")
    assert_rows_of_a_filter(store)
