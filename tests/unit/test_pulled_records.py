"""Guards pulled records: what a broker's answer has becomes the rows of a scan of its files, in batches within limits.

A damaged record is an error or, on request, skipped; no bytes make the decoder fail in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txstore
from tests.frames import frame, json_header
from tests.spark.stores import fill
from txstore import StoredMessage
from txstore._native import Frame, FrameReader, PulledRecords, RemotingCommand, Scan
from txstore.errors import InvalidOptionError, ProtocolError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")

EVERY = 1 << 62


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pulled") / "orders.store"
    with txstore.open(path) as broker:
        fill(broker, 200)
    return path


@pytest.fixture(scope="module")
def messages(store: Path) -> list[StoredMessage]:
    """Those of one queue, in its order."""
    with txstore.open(store, read_only=True) as broker:
        return list(broker.read("orders", 0, 0, 1_000)[0])


def answer(records: Iterable[bytes]) -> RemotingCommand:
    header = json_header(0, {"nextBeginOffset": 1}, 1, flag=1)
    [command] = FrameReader().feed(frame(header, b"".join(records)))
    return command


def rows(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in frames:
        table = pa.table(one)
        table.validate(full=True)
        found += table.to_pylist(maps_as_pydicts="strict")
    return found


def read(records: PulledRecords, *answers: RemotingCommand, start: int = 0, end: int = EVERY) -> list[Frame]:
    """The batches of some answers."""
    found = []
    for one in answers:
        records.add(one, start, end)
        while (full := records.full()) is not None:
            found.append(full)
    rest = records.rest()
    return found if rest is None else [*found, rest]


def columns() -> Sequence[str]:
    return Scan("").columns


def test_rows_are_those_of_a_scan(store: Path, messages: list[StoredMessage]) -> None:
    bodies = [message.record for message in messages]
    found = rows(read(PulledRecords(columns()), answer(bodies[:7]), answer(bodies[7:])))
    scan = Scan(store, topics=["orders"], queues={"orders": {0: (0, EVERY)}}, only_queues=True)
    assert found == pa.table(scan).to_pylist(maps_as_pydicts="strict")
    assert len(found) == len(messages) > 20


@pytest.mark.parametrize("limits", [{"batch_rows": 4}, {"batch_bytes": 2_000}, {"batch_rows": 1}])
def test_batches_keep_their_limits(messages: list[StoredMessage], limits: dict[str, int]) -> None:
    records = PulledRecords(["queue_offset", "size", "body"], batch_rows=limits.get("batch_rows"),
                            batch_bytes=limits.get("batch_bytes"))  # fmt: skip
    batches = [rows([one]) for one in read(records, answer(message.record for message in messages))]
    assert len(batches) > 1
    for batch in batches:
        assert len(batch) <= limits.get("batch_rows", EVERY)
        assert len(batch) == 1 or sum(row["size"] for row in batch) <= limits.get("batch_bytes", EVERY)
    assert [row["queue_offset"] for batch in batches for row in batch] == [one.queue_offset for one in messages]


def test_only_wanted_queue_offsets_and_types_are_rows(messages: list[StoredMessage]) -> None:
    whole = answer(message.record for message in messages)
    found = rows(read(PulledRecords(["queue_offset"]), whole, start=3, end=9))
    assert [row["queue_offset"] for row in found] == [3, 4, 5, 6, 7, 8]
    types = rows(read(PulledRecords(["transaction_type"], transaction_types=["commit"]), whole))
    assert {row["transaction_type"] for row in types} == {"commit"}


def test_damage_is_an_error_or_skipped(messages: list[StoredMessage]) -> None:
    bodies = [bytearray(message.record) for message in messages[:5]]
    at = bodies[2].index(messages[2].stored_body)
    bodies[2][at] ^= 1
    with pytest.raises(ProtocolError, match=r"at byte .* of an answer: the body's CRC is"):
        read(PulledRecords(["body"]), answer(map(bytes, bodies)))
    records = PulledRecords(["queue_offset", "body"], skip_bad_records=True)
    found = rows(read(records, answer(map(bytes, bodies))))
    assert [row["queue_offset"] for row in found] == [0, 1, 3, 4]
    assert records.bad_records == 1


def test_record_that_is_cut_off_is_an_error(messages: list[StoredMessage]) -> None:
    with pytest.raises(ProtocolError, match="the bytes end inside the record"):
        read(PulledRecords(["topic"]), answer([messages[0].record, messages[1].record[:-1]]))


def test_unknown_columns_and_types_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match='there is no column "colour" in this view'):
        PulledRecords(["colour"])
    with pytest.raises(InvalidOptionError, match='there is no transaction type "maybe"'):
        PulledRecords(["topic"], transaction_types=["maybe"])


@given(st.binary(max_size=300), st.integers(0, 400), st.booleans())
def test_no_bytes_make_it_fail_otherwise(
    messages: list[StoredMessage], noise: bytes, at: int, skip_bad_records: bool
) -> None:
    whole = messages[0].record + messages[1].record
    bytes_of = whole[:at] + noise + whole[at + len(noise) :]
    records = PulledRecords(columns(), skip_bad_records=skip_bad_records)
    try:
        for one in read(records, answer([bytes_of])):
            pa.table(one).validate(full=True)
    except ProtocolError:
        assert not skip_bad_records
