"""Guards the outcome rule as DataFrame operations: it finds, row for row, what the engine and the manifests say.

Also where a broker put halves back, committed twice, or a producer resumed and sent again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.golden.expected import committed_twice, outcomes
from tests.golden.reader import records, transactions
from tests.golden.unpack import TRANSACTIONAL, Unpacked
from tests.spark.stores import message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark
# All but times, which Spark shows without a zone.
COMPARED = """transaction_id producer_group real_topic real_queue_id state check_times half_queue_offsets
half_physical_offsets final_physical_offsets discarded_physical_offsets op_physical_offsets""".split()


def folded(spark: SparkSession, store: Path) -> DataFrame:
    from txstore import _native
    from txstore.spark.report.fold import COLUMNS, fold, read_traces

    first, _ = _native.log_range(store)
    return fold(read_traces(spark, str(store)), first, _native.log_half_progress(store)).select(COLUMNS)


def engine(spark: SparkSession, store: Path) -> list[Row]:
    """The engine's rows, in the order of their first halves."""
    found = spark.read.format("txstore").option("view", "transactions").load(str(store)).collect()
    return sorted(found, key=lambda row: row.half_queue_offsets[0])


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_transactions_of_a_broker_equal_the_engines_and_the_manifests(
    spark: SparkSession, golden: Unpacked, name: str
) -> None:
    found = folded(spark, golden[name].store).collect()
    expected = engine(spark, golden[name].store)
    assert sorted(found, key=lambda row: row.half_queue_offsets[0]) == expected
    manifest = golden[name].manifest
    assert Counter(row.transaction_id for row in found) == Counter(list(manifest["plans"]))
    twice = {row.transaction_id for row in found if len(row.final_physical_offsets) > 1}
    assert twice == committed_twice(manifest)
    assert twice
    # The manifest has no op bodies of more than some bytes; the test's own reader has.
    seen = transactions(list(records(golden[name].store)))
    named = {half.queue_offset for one in seen for half in one.halves if one.sent_op}
    assert {row.transaction_id: row.state for row in found} == outcomes(manifest, named)


def test_our_own_transactions_equal_the_engines(spark: SparkSession, orders: Path) -> None:
    found = folded(spark, orders).collect()
    assert sorted(found, key=lambda row: row.half_queue_offsets[0]) == engine(spark, orders)
    assert Counter(row.state for row in found) == {"committed": 34, "rolled_back": 33, "pending": 33}


def test_records_without_a_half_equal_the_engines(spark: SparkSession, tmp_path: Path) -> None:
    """A log whose beginning is gone: finals, discarded copies and ops remain whose halves are not there."""
    import pyarrow

    from txstore import _native

    store = tmp_path / "cut.store"
    with txstore.open(store, mapped_file_size_commit_log=1 << 16) as broker:
        sent = [broker.store.prepare(message(number), 0, "shop") for number in range(300)]
        for number, half in enumerate(sent):
            if number % 4 == 3:
                broker.store.discard(half.queue_offset, half.physical_offset)
            elif number % 4:
                broker.store.end_transaction(half.queue_offset, half.physical_offset, commit=number % 4 == 1)
    files = sorted((store / "commitlog").iterdir())
    assert len(files) > 3
    files[0].unlink()
    found = folded(spark, store).collect()
    expected = pyarrow.table(_native.Scan(store, view="transactions", shows_missing=True)).to_pylist()
    states = Counter(row["state"] for row in expected)
    assert {"half_missing", "committed", "rolled_back", "discarded", "pending"} == set(states)
    assert sorted(str([row[name] for name in COMPARED]) for row in found) == sorted(
        str([row[name] for name in COMPARED]) for row in expected
    )
