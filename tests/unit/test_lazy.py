"""Guards reads by several threads, and lazy ones of Polars and DuckDB: they show what a plain scan shows, in its order,
and read only what a query needs.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden.unpack import NAMES, Unpacked
from tests.process import threads_named
from tests.spark.stores import fill
from tests.waiting import eventually
from txstore import _native
from txstore.arrow import View
from txstore.errors import InvalidOptionError, StoreCorruptError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pl = pytest.importorskip("polars", reason="Polars is not installed: make installs requirements-dev.lock")
duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed: make installs requirements-dev.lock")

# The names of `conditions`.
CONDITIONS = (
    "equal, in, unknown, not, greater text, or, and, from, turned, at, between, beyond, up to far, below, after, "
    "before, both, long ago, computed, null"
).split(", ")
VIEWS: tuple[View, ...] = ("messages", "commitlog", "halves", "ops", "traces", "transactions", "statistics")


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store in small files."""
    path = tmp_path_factory.mktemp("lazy") / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=1 << 16) as broker:
        fill(broker, 400)
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


def plain(path: Path, **options: Any) -> Any:
    return pa.table(txstore.scan(path, **options))


def by_threads(path: Path, **options: Any) -> Any:
    return pa.table(_native.Scan(path, **{"threads": 3, "piece_bytes": 4_096, **options}))


@pytest.mark.golden
@pytest.mark.parametrize("name", NAMES)
def test_threads_read_what_one_reads(golden: Unpacked, name: str) -> None:
    store = golden[name].store
    for view in VIEWS:
        expected = plain(store, view=view)
        assert by_threads(store, view=view).equals(expected)
        # DuckDB and Polars have types of their own for text, so that values are compared.
        assert txstore.scan_polars(store, view=view).collect().to_dicts() == pl.DataFrame(expected).to_dicts()
        assert txstore.dataset(store, view=view).to_table().equals(expected)


@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize("piece_bytes", [1, 5_000, 1 << 20])
def test_threads_keep_the_order_and_the_range(orders: Path, threads: int, piece_bytes: int) -> None:
    first, end = _native.log_range(orders)
    for options in (
        {},
        {"columns": ["physical_offset"]},
        {"topics": ["payments"]},
        {"start": first + 100_001, "end": end - 50_001},
        {"batch_rows": 3, "columns": ["queue_offset", "body"]},
    ):
        read: dict[str, Any] = {"view": "commitlog", **options}
        found = by_threads(orders, threads=threads, piece_bytes=piece_bytes, **read)
        assert found.equals(pa.table(_native.Scan(orders, **read)))


@pytest.mark.parametrize("rows", [1, 0, 10_000])
def test_stream_that_is_left_ends_its_threads(orders: Path, rows: int) -> None:
    scan = _native.Scan(orders, view="commitlog", threads=4, piece_bytes=4_096, batch_rows=1)
    reader = pa.RecordBatchReader.from_stream(scan)
    seen = [batch for batch, _ in zip(reader, range(rows), strict=False)]
    assert len(seen) <= rows
    reader.close()
    eventually(lambda: not threads_named("txstore-scan"))  # The kernel lists a thread that has ended for a moment.


def test_damage_is_an_error_after_the_rows_before_it(orders: Path, tmp_path: Path) -> None:
    store = killed_copy(orders, tmp_path / "damaged.store")
    offsets = plain(store, view="commitlog", columns=["physical_offset"])["physical_offset"].to_pylist()
    damaged = offsets[200]
    file = max(path for path in (store / "commitlog").iterdir() if int(path.name) <= damaged)
    with file.open("r+b") as log:
        log.seek(damaged - int(file.name))
        log.write(b"\xff" * 30)
    scan = _native.Scan(store, view="commitlog", columns=["physical_offset"], threads=3, piece_bytes=4_096)
    seen: list[int] = []
    frames = (pa.table(frame)["physical_offset"].to_pylist() for frame in scan.frames(1))
    with pytest.raises(StoreCorruptError, match=file.name):
        seen.extend(offset for frame in frames for offset in frame)
    assert seen == offsets[: len(seen)]
    assert seen
    skipping = {"view": "commitlog", "columns": ["physical_offset"], "skip_bad_records": True}
    found = by_threads(store, **skipping)["physical_offset"].to_pylist()
    assert found == offsets[:200] + offsets[201:]
    with pytest.raises(Exception, match=file.name):
        txstore.scan_polars(store, view="commitlog").collect()


def test_frames_have_the_rows_asked_for(orders: Path) -> None:
    scan = txstore.scan(orders, batch_rows=10, columns=["size"])
    heights = [pl.DataFrame(frame).height for frame in scan.frames(95)]
    assert heights == [100] * 4 + [14]


class Reads:
    """What lazy reads ask of the engine."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def scan(self, path: Path, **options: Any) -> txstore.Scan:
        self.all.append(options)
        return txstore.scan(path, **options)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    seen = Reads()
    monkeypatch.setattr("txstore.lazy.polars_frame.scan", seen.scan)
    monkeypatch.setattr("txstore.lazy.arrow_dataset.scan", seen.scan)
    return seen


def test_polars_reads_the_columns_that_a_query_uses(orders: Path, reads: Reads) -> None:
    lazy = txstore.scan_polars(orders)
    reads.all.clear()
    found = lazy.group_by("topic").agg(pl.col("size").sum()).sort("topic").collect().rows()
    table = plain(orders, columns=["topic", "size"]).group_by("topic").aggregate([("size", "sum")]).sort_by("topic")
    assert found == [(row["topic"], row["size_sum"]) for row in table.to_pylist()]
    assert [set(read["columns"]) for read in reads.all] == [{"topic", "size"}]
    assert lazy.select(pl.len()).collect().item() == plain(orders).num_rows
    assert lazy.filter(pl.col("size") > 300).select("queue_id").collect().height > 0
    assert set(reads.all[-1]["columns"]) == {"size", "queue_id"}


def conditions(orders: Path) -> dict[str, tuple[Any, set[str]]]:
    """Filters, and the options that each restricts."""
    rows = pl.DataFrame(plain(orders))
    topic, offset, time = pl.col("topic"), pl.col("physical_offset"), pl.col("store_timestamp")
    middle, moment = rows["physical_offset"][200], rows["store_timestamp"][200]
    start, end = "start_physical_offset", "end_physical_offset"
    return {
        "equal": (topic == "orders", {"topics"}),
        "in": (topic.is_in(["orders", "payments"]), {"topics"}),
        "unknown": (topic == "nothing", set()),
        "not": (topic != "orders", set()),
        "greater text": (topic > "orders", set()),
        "or": ((topic == "orders") | (offset > middle), set()),
        "and": ((topic == "orders") & (offset > middle) & (pl.col("size") > 100), {"topics", start}),
        "from": (offset >= middle, {start}),
        "turned": (pl.lit(middle) > offset, {end}),
        "at": (offset == middle, {start, end}),
        "between": (offset.is_between(middle, middle + 10_000), {start, end}),
        "beyond": (offset > 1 << 60, {start}),
        "up to far": (offset < 1 << 60, {end}),
        "below": (offset < 0, set()),
        "after": (time >= moment, {"start_time"}),
        "before": (time < moment, {"end_time"}),
        "both": ((time > moment - timedelta(milliseconds=1)) & (time <= moment), {"start_time", "end_time"}),
        "long ago": (time > moment - timedelta(days=100_000), {"start_time"}),
        "computed": (offset + 1 >= middle, set()),
        "null": (pl.col("tags").is_null(), set()),
    }


@pytest.mark.parametrize("name", CONDITIONS)
def test_filter_of_polars_restricts_what_is_read(orders: Path, reads: Reads, name: str) -> None:
    known = conditions(orders)
    assert list(known) == CONDITIONS
    condition, restricted = known[name]
    expected = pl.DataFrame(plain(orders)).filter(condition)
    lazy = txstore.scan_polars(orders)
    reads.all.clear()
    assert lazy.filter(condition).collect().to_dicts() == expected.to_dicts()
    assert set().union(*(read.keys() for read in reads.all)) - {"columns", "threads"} == restricted
    assert lazy.filter(condition).head(3).collect().to_dicts() == expected.head(3).to_dicts()
    assert lazy.head(150).filter(condition).collect().height <= expected.height


@pytest.mark.parametrize("view", ["messages", "commitlog"])
def test_filter_on_a_system_topic_shows_what_the_view_shows(orders: Path, view: View) -> None:
    for topic in (_native.HALF_TOPIC, _native.OP_TOPIC, "orders"):
        condition = pl.col("topic") == topic
        expected = pl.DataFrame(plain(orders, view=view)).filter(condition)
        assert txstore.scan_polars(orders, view=view).filter(condition).collect().to_dicts() == expected.to_dicts()


def test_filter_and_options_both_apply(orders: Path) -> None:
    first, end = _native.log_range(orders)
    options: Any = {"topics": ["orders"], "start_physical_offset": first + 50_000, "end_physical_offset": end - 50_000}
    expected = pl.DataFrame(plain(orders, **options))
    lazy = txstore.scan_polars(orders, **options)
    for condition in (
        pl.col("physical_offset") >= first,
        pl.col("physical_offset") < first + 100_000,
        pl.col("topic") == "payments",
        pl.col("topic").is_in(["payments", "orders"]),
    ):
        assert lazy.filter(condition).collect().to_dicts() == expected.filter(condition).to_dicts()


def test_duckdb_reads_the_columns_that_a_query_uses(orders: Path, reads: Reads) -> None:
    log = txstore.dataset(orders)
    reads.all.clear()
    query = "SELECT topic, sum(size) AS bytes FROM log WHERE queue_id = 0 AND topic IN ('orders', 'x') GROUP BY topic"
    found = duckdb.sql(query).fetchall()
    rows = [row for row in plain(orders).to_pylist() if row["queue_id"] == 0 and row["topic"] == "orders"]
    assert found == [("orders", sum(row["size"] for row in rows))]
    assert [set(read["columns"]) for read in reads.all] == [{"topic", "size", "queue_id"}]
    assert duckdb.sql("SELECT count(*) FROM log").fetchall() == [(plain(orders).num_rows,)]
    assert all("body" not in read["columns"] for read in reads.all)
    newest = duckdb.sql("SELECT max(store_timestamp) FROM log WHERE store_timestamp < now()").fetchall()
    assert newest[0][0] == max(row["store_timestamp"] for row in plain(orders).to_pylist())
    assert log.count_rows() == plain(orders).num_rows
    with pytest.raises(NotImplementedError, match="no fragments"):
        log.get_fragments()


def test_lazy_reads_see_what_is_appended_later(tmp_path: Path) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path) as broker:
        producer = broker.producer("producers")
        producer.send(txstore.Message("orders", b"1"))
        lazy, log = txstore.scan_polars(path), txstore.dataset(path)
        assert (lazy.select(pl.len()).collect().item(), log.count_rows()) == (1, 1)
        producer.send(txstore.Message("orders", b"2"))
        assert (lazy.select(pl.len()).collect().item(), log.count_rows()) == (2, 2)


def test_wrong_number_of_threads_is_refused(orders: Path) -> None:
    for threads in (0, 257):
        with pytest.raises(InvalidOptionError, match=f"must be between 1 and 256, got {threads}"):
            txstore.scan(orders, threads=threads)
    with pytest.raises(InvalidOptionError, match="no topic 'nothing'"):
        txstore.scan_polars(orders, topics=["nothing"])
