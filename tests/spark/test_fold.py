"""Guards the outcome rule as DataFrame operations: it finds, row for row, what the engine and the manifests say.

Also where a broker put halves back, committed twice, or a producer resumed and sent again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden.expected import committed_twice, outcomes
from tests.golden.reader import records, transactions
from tests.golden.unpack import TRANSACTIONAL, Unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def folded(spark: SparkSession, store: Path) -> DataFrame:
    from txstore import _native
    from txstore.spark.report.fold import COLUMNS, fold, read_traces

    first, _ = _native.log_range(store)
    return fold(read_traces(spark, str(store)), first, _native.log_half_progress(store)).select(COLUMNS)


def engine(spark: SparkSession, store: Path) -> DataFrame:
    return spark.read.format("txstore").option("view", "transactions").load(str(store))


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_transactions_of_a_broker_equal_the_engines_and_the_manifests(
    spark: SparkSession, golden: Unpacked, name: str
) -> None:
    found = folded(spark, golden[name].store).collect()
    expected = engine(spark, golden[name].store).collect()
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
    assert sorted(found, key=lambda row: row.half_queue_offsets[0]) == engine(spark, orders).collect()
    assert Counter(row.state for row in found) == {"committed": 34, "rolled_back": 33, "pending": 33}
