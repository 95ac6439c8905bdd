"""Guards the report: run by run, with only open transactions kept, it ends as a report of the whole log does.

It agrees with the simulator's list of transactions and with the report that needs no Spark, and its page shows the
numbers.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.simulate_transactions import Simulated, simulate, write_list
from tests.golden.unpack import Unpacked
from tests.report_page import Shown
from txstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
# `make deep` asks for a million.
SIMULATED = int(os.environ.get("TXSTORE_SPARK_TRANSACTIONS", "0")) or 3_000


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Simulated]]:
    """A store of transactions of every kind, and the list of them, also as Parquet."""
    path = tmp_path_factory.mktemp("simulated") / "trial.store"
    listed: list[Simulated] = []
    for done, so_far in simulate(path, SIMULATED, seed=7):
        listed = so_far
        print(f"{done:,} transactions of {SIMULATED:,}", flush=True)
    write_list(listed, path.with_suffix(".parquet"))
    return path, listed


def test_report_equals_the_simulators_list(
    spark: SparkSession, simulated: tuple[Path, list[Simulated]], tmp_path: Path
) -> None:
    from txstore.spark.report.ledger import Ledger

    store, listed = simulated
    ledger = Ledger(spark, str(store), tmp_path)
    assert ledger.advance() == ledger.visible > 0
    names = list(Simulated.__dataclass_fields__)
    found = ledger.transactions().selectExpr(
        "transaction_id", "producer_group", "real_topic", "real_queue_id",
        "half_queue_offsets[0] AS half_queue_offset", "half_physical_offsets[0] AS half_physical_offset", "state",
        "get(final_physical_offsets, 0) AS final_physical_offset",
    )  # fmt: skip
    expected = spark.read.parquet(str(store.with_suffix(".parquet"))).select(names)
    assert found.count() == expected.count() == len(listed)
    assert found.select(names).exceptAll(expected).count() == 0
    assert expected.exceptAll(found.select(names)).count() == 0
    assert {one.state for one in listed} == {"committed", "rolled_back", "discarded", "pending"}
    several = "size(half_queue_offsets) > 1 OR size(final_physical_offsets) > 1"
    assert ledger.transactions().where(several).count() == 0


@pytest.mark.parametrize("name", ["5.3.3-tx", "tx-crash"])
def test_report_in_several_runs_equals_the_report_of_one(
    spark: SparkSession, golden: Unpacked, tmp_path: Path, name: str
) -> None:
    from txstore import _native
    from txstore.spark.report.fold import COLUMNS, fold, read_traces
    from txstore.spark.report.ledger import Ledger
    from txstore.spark.report.time_search import last_store_ms

    store = str(golden[name].store)
    first, end = _native.log_range(store)
    whole = fold(read_traces(spark, store), first, _native.log_half_progress(store)).select(COLUMNS)
    begun = spark.read.format("txstore").option("columns", "store_timestamp").load(store).head()
    assert begun is not None
    begin_ms, end_ms = int(begun[0].timestamp() * 1_000), last_store_ms(store, end)
    assert end_ms is not None
    carried = []
    for part in (1, 2, 3):
        until = None if part == 3 else begin_ms + (end_ms - begin_ms) * part // 3
        Ledger(spark, store, tmp_path / "report").advance(until, lookback_ms=3_000)
        rows = spark.read.parquet(str(tmp_path / "report" / "transactions"))
        carried.append((rows.where("open = 'true'").count(), rows.count()))
    assert all(0 < opened < every for opened, every in carried[1:]), carried
    ledger = Ledger(spark, store, tmp_path / "report")
    assert ledger.advance() == 0
    found = ledger.transactions().select(COLUMNS).collect()
    assert sorted(found, key=lambda row: row.half_queue_offsets) == sorted(
        whole.collect(), key=lambda row: row.half_queue_offsets
    )


def test_killed_run_is_repeated(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    from txstore.spark.report.ledger import Ledger

    Ledger(spark, str(orders), tmp_path).advance()
    # The files of a run that wrote its rows and was killed before it noted them.
    shutil.copytree(tmp_path / "transactions" / "run=00000", tmp_path / "transactions" / "run=00001")
    assert Ledger(spark, str(orders), tmp_path).transactions().count() == 100
    other = shutil.copytree(orders, tmp_path / "other.store")
    with pytest.raises(InvalidOptionError, match="name another folder"):
        Ledger(spark, str(other), tmp_path)


@pytest.fixture(scope="module")
def report(spark: SparkSession, golden: Unpacked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a broker's store, made by the job itself."""
    from spark import transaction_report

    folder = tmp_path_factory.mktemp("report")
    arguments = [str(golden["tx-crash"].store), str(folder), "--now", "2030-01-01T00:00:00+00:00"]
    assert transaction_report.main(arguments) == 0
    return folder / "report.html"


def test_page_is_one_file_and_shows_the_numbers(report: Path) -> None:
    text = report.read_text()
    assert not any(word in text for word in ("http:", "https:", "<link", "src=", "@import", "url("))
    shown = Shown(text)
    assert shown.tiles["Transactions"] == "108"
    assert shown.tiles["Pending too long"] == "13"
    assert (shown.tiles["Discarded"], shown.tiles["Committed twice"]) == ("1", "2")
    assert json.loads((report.parent / "ledger.json").read_text())["run"] == 1


def test_report_without_spark_has_the_same_rows_and_page(
    spark: SparkSession, golden: Unpacked, report: Path, tmp_path: Path
) -> None:
    from txstore.report.writing import write_report
    from txstore.spark.report.fold import COLUMNS

    store, now = golden["tx-crash"].store, datetime(2030, 1, 1, tzinfo=UTC)
    write_report(store, tmp_path / "whole", now=now)
    texts = [
        (folder / "report.html").read_text().replace(str(folder.resolve()), "")
        for folder in (report.parent, tmp_path / "whole")
    ]
    assert texts[0] == texts[1]
    found, expected = (
        sorted(spark.read.parquet(str(folder / "transactions")).select(COLUMNS).collect(), key=str)
        for folder in (report.parent, tmp_path / "whole")
    )
    assert found == expected


def test_folder_of_the_other_kind_of_report_is_refused(
    spark: SparkSession, golden: Unpacked, report: Path, tmp_path: Path
) -> None:
    from txstore.report.writing import write_report
    from txstore.spark.report.ledger import Ledger

    store = golden["tx-crash"].store
    with pytest.raises(InvalidOptionError, match="the report of the Spark job\nhint: name another folder"):
        write_report(store, report.parent)
    write_report(store, tmp_path / "whole")
    with pytest.raises(InvalidOptionError, match="the report of txstore tx report"):
        Ledger(spark, str(store), tmp_path / "whole")
