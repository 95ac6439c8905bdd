"""Guards takeovers of a broker's store: pending transactions are ended, more is sent, and all of it is there after
closing.

Each test works on a copy. What the engine wrote is read back by the engine and by tests/golden/reader.py, so nothing
here relies on the engine alone. What the broker wrote must stay as it was, byte for byte.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.golden import reader
from tests.golden.unpack import NAMES, TRANSACTIONAL, Unpacked
from txstore import errors
from txstore._native import Message, Store

pytestmark = pytest.mark.golden

GUARD = "commitlog/!txstore-open"


def records_of(store: Path) -> dict[int, reader.Record]:
    return {record.physical_offset: record for record in reader.records(store)}


def assert_queues_equal_the_log(store: Store, log: dict[int, reader.Record]) -> None:
    """Every queue holds, in order, exactly the log's records that belong to it."""
    belong: dict[tuple[str, int], list[int]] = {}
    for record in log.values():
        if record.sys_flag & reader.TRANSACTION_BITS in (0, reader.COMMIT_BITS):
            belong.setdefault((record.topic, record.queue_id), []).append(record.physical_offset)
    assert {(topic, queue_id) for topic, queue_id, first, end in store.queues() if end > first} == set(belong)
    for (topic, queue_id), offsets in belong.items():
        messages, _ = store.read(topic, queue_id, 0, 10_000)
        assert [message.physical_offset for message in messages] == offsets
        assert all(message.record == log[message.physical_offset].raw for message in messages)


@pytest.mark.parametrize("name", NAMES)
def test_open_send_close_reopen(golden: Unpacked, name: str, tmp_path: Path) -> None:
    directory = golden[name].copy_to(tmp_path)
    before = records_of(directory)
    with closing(Store.open(str(directory))) as store:
        assert (directory / GUARD).exists()
        healed = store.open_report.healed_ops
        sent = [
            store.append(Message("Continued", f"body {i}".encode() * 50, tags="more", keys=[f"k-{i}", "all"]), i % 4)
            for i in range(300)
        ]
        assert [m.physical_offset for m in store.query("Continued", "k-17")] == [sent[17].physical_offset]
    assert not (directory / GUARD).exists()
    assert not (directory / "abort").exists()
    after = records_of(directory)
    assert {offset: after[offset].raw for offset in before} == {o: record.raw for o, record in before.items()}
    mine = [record for offset, record in after.items() if record.topic == "Continued"]
    assert [record.physical_offset for record in mine] == [result.physical_offset for result in sent]
    assert [record.queue_offset for record in mine] == [i // 4 for i in range(300)]
    others = [r for o, r in after.items() if o not in before and r.topic != "Continued"]
    assert all(record.topic == reader.OP_TOPIC for record in others)
    assert bool(others) == bool(healed)
    with closing(Store.open(str(directory), read_only=True)) as store:
        assert store.open_report.clean
        assert store.open_report.truncated_bytes == store.open_report.healed_ops == 0
        assert_queues_equal_the_log(store, after)
        assert len(store.query("Continued", "all", 1000)) == 300
    for queue_id in range(4):
        units = reader.units(directory, "Continued", queue_id)
        assert units == [(r.physical_offset, r.size, java_hash("more")) for r in mine if r.queue_id == queue_id]


def java_hash(text: str) -> int:
    """String.hashCode of plain ASCII."""
    value = 0
    for byte in text.encode():
        value = (31 * value + byte) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_finish_pending_transactions_and_begin_more(golden: Unpacked, name: str, tmp_path: Path) -> None:
    directory = golden[name].copy_to(tmp_path)
    progress = reader.half_progress(directory)
    before = reader.transactions(list(reader.records(directory)))
    broker_end = golden[name].manifest["maxPhyAfterLoad"]
    pending = [t for t in before if t.state(progress) == "pending"]
    states = {t.halves[0].physical_offset: t.state(progress) for t in before}
    with closing(Store.open(str(directory))) as store:
        waiting = store.halves_waiting(-1, 1000)
        newest = [(t.halves[-1].queue_offset, t.halves[-1].physical_offset) for t in pending]
        assert [(w.half_queue_offset, w.prepared_transaction_offset) for w in waiting] == sorted(newest)
        for number, half in enumerate(waiting):
            commit = number % 2 == 0
            end = store.end_transaction(half.half_queue_offset, half.prepared_transaction_offset, commit=commit)
            assert (end.outcome, end.already) == ("committed" if commit else "rolled_back", False)
            again = store.end_transaction(half.half_queue_offset, half.prepared_transaction_offset, commit=commit)
            assert (again.outcome, again.already, again.physical_offset) == (end.outcome, True, None)
            with pytest.raises(errors.AlreadyEndedError):
                store.end_transaction(half.half_queue_offset, half.prepared_transaction_offset, commit=not commit)
            where = next(t for t in pending if t.halves[-1].queue_offset == half.half_queue_offset)
            states[where.halves[0].physical_offset] = end.outcome
        for number in range(40):
            sent = store.prepare(Message("TxA", f"new {number}".encode(), keys=[f"new-{number}"]), number % 4, "PG_NEW")
            outcome = ("committed", "rolled_back", "discarded", "pending")[number % 4]
            if outcome == "discarded":
                store.discard(sent.queue_offset, sent.physical_offset)
            elif outcome != "pending":
                store.end_transaction(sent.queue_offset, sent.physical_offset, commit=outcome == "committed")
            states[sent.physical_offset] = outcome
    log = list(reader.records(directory))
    after = reader.transactions(log)
    progress = min(progress, reader.half_progress(directory))
    assert {t.halves[0].physical_offset: t.state(progress) for t in after} == states
    # What the engine commits it commits once; only what the broker had doubled is doubled.
    assert sum(len(t.finals) > 1 for t in after) == sum(len(t.finals) > 1 for t in before)
    for t in after:
        for final in t.finals:
            assert_final_of(final, t, written_here=final.physical_offset >= broker_end)
    with closing(Store.open(str(directory), read_only=True)) as store:
        assert {row.halves[0][1]: row.state for row in store.transactions()} == states
        assert store.stat().pending_transactions == 10
        assert_queues_equal_the_log(store, {record.physical_offset: record for record in log})
        assert [m.body for m in store.query("TxA", "new-8")] == [b"new 8"]
        assert store.query("TxA", "new-9") == []


def assert_final_of(final: reader.Record, transaction: reader.Transaction, *, written_here: bool) -> None:
    """A committed message is its half: body, queue and properties less the half's own."""
    half = next(h for h in transaction.halves if h.physical_offset == final.prepared_transaction_offset)
    assert final.body == half.body
    assert (final.topic, str(final.queue_id)) == (half.properties["REAL_TOPIC"], half.properties["REAL_QID"])
    hidden = {"REAL_TOPIC", "REAL_QID", "__CRC32#"}
    if written_here:
        assert hidden.isdisjoint(set(final.properties) - {"__CRC32#"})
    kept = {name: value for name, value in half.properties.items() if name not in hidden}
    assert {name: value for name, value in final.properties.items() if name not in hidden} == kept


def test_store_of_a_killed_broker_is_healed_once(golden: Unpacked, tmp_path: Path) -> None:
    """A read-only opening reports what waits; the writer does it; afterwards nothing waits."""
    directory = golden["tx-crash"].copy_to(tmp_path)
    with closing(Store.open(str(directory), read_only=True)) as store:
        assert not store.open_report.clean
        would = store.open_report.healed_ops
    with closing(Store.open(str(directory))) as store:
        assert store.open_report.healed_ops == would
        # 13 are pending; a broker's checks may continue at the lowest of their newest copies.
        progress = store.consumer_offset(reader.HALF_TOPIC, reader.PROGRESS_GROUP, 0)
        assert progress == min(half.half_queue_offset for half in store.halves_waiting(-1, 100))
    with closing(Store.open(str(directory))) as store:
        assert store.open_report.healed_ops == 0
        assert len(store.halves_waiting(-1, 100)) == 13


def test_small_geometry_is_kept(golden: Unpacked, tmp_path: Path) -> None:
    """`rolled`: 64 KiB logs, 40-unit queues, 50 slots and 200 entries an index: everything rolls again."""
    directory = golden["rolled"].copy_to(tmp_path)
    with closing(Store.open(str(directory))) as store:
        stat = store.stat()
        assert (stat.commit_log_file_size, stat.consume_queue_file_size) == (65536, 800)
        assert (stat.max_hash_slot_num, stat.max_index_num) == (50, 200)
        for number in range(500):
            store.append(Message("Rolled0", b"x" * 300, keys=[f"r-{number}"]), number % 2)
    assert {path.stat().st_size for path in (directory / "commitlog").iterdir()} == {65536}
    assert {path.stat().st_size for path in (directory / "consumequeue/Rolled0/0").iterdir()} == {800}
    assert {path.stat().st_size for path in (directory / "index").iterdir()} == {40 + 4 * 50 + 20 * 200}
    with closing(Store.open(str(directory), read_only=True)) as store:
        assert_queues_equal_the_log(store, records_of(directory))
        assert all(len(store.query("Rolled0", f"r-{number}")) == 1 for number in range(500))
    with pytest.raises(errors.InvalidOptionError):
        Store.open(str(directory), mapped_file_size_commit_log=1 << 20)


def test_index_with_a_geometry_other_than_one_to_four(tmp_path: Path) -> None:
    """An index file's size does not tell its slots from its entries: the store remembers."""
    directory = tmp_path / "odd.store"
    with closing(
        Store.open(str(directory), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=97, max_index_num=101)
    ) as store:
        for number in range(250):
            store.append(Message("Odd", b"x", keys=[f"o-{number}"]), 0)
    with closing(Store.open(str(directory))) as store:
        stat = store.stat()
        assert (stat.max_hash_slot_num, stat.max_index_num) == (97, 101)
        store.append(Message("Odd", b"x", keys=["o-250"]), 0)
    assert {path.stat().st_size for path in (directory / "index").iterdir()} == {40 + 4 * 97 + 20 * 101}
    with closing(Store.open(str(directory), read_only=True)) as store:
        assert all(len(store.query("Odd", f"o-{number}")) == 1 for number in range(251))
