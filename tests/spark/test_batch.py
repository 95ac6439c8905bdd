"""Guards DataFrames: each holds exactly what the store holds, every row once, for any range and number of
partitions.

Wrong options are named.
"""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden.reader import records
from tests.golden.unpack import TRANSACTIONAL, Unpacked
from tests.spark.stores import GROUP
from tests.unit.pages import blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "spark.md"
SMALL = {"maxPartitionBytes": "80k"}


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("txstore").options(**{name: str(value) for name, value in options.items()}).load(str(path))


def test_source_needs_no_register_call_and_reads_every_message(spark: SparkSession, orders: Path) -> None:
    frame = load(spark, orders, **SMALL)
    assert frame.rdd.getNumPartitions() > 4
    rows = {row.physical_offset: row for row in frame.collect()}
    with txstore.open(orders, read_only=True) as broker:
        stored = [message for message in broker.store.scan(0, 1 << 20)[0] if not message.topic.startswith("RMQ_SYS")]
    assert len(rows) == len(stored) == frame.count()
    for message in stored:
        row = rows[message.physical_offset]
        assert (row.topic, row.queue_id, row.queue_offset, row.size) == (
            message.topic, message.queue_id, message.queue_offset, message.size,
        )  # fmt: skip
        assert (row.message_id, row.offset_message_id, row.transaction_id) == (
            message.message_id, message.offset_message_id, message.transaction_id,
        )  # fmt: skip
        assert bytes(row.body) == message.body
        assert row.properties == message.properties
        assert tuple(row["keys"]) == message.keys
        assert (row.tags, row.flag, row.sys_flag) == (message.tags, message.flag, message.sys_flag)
        assert (row.born_host, row.store_host) == (message.born_host, message.store_host)
        assert row.store_timestamp.timestamp() * 1000 == pytest.approx(message.store_timestamp_ms)
        assert row.transaction_type == message.transaction_type


def test_ranges_lose_no_row_and_show_none_twice(spark: SparkSession, orders: Path) -> None:
    every = load(spark, orders, columns="physical_offset", view="commitlog").collect()
    whole = Counter(row.physical_offset for row in every)
    assert set(whole.values()) == {1}
    for parts in (1, 7, 40):
        frame = load(spark, orders, columns="physical_offset", view="commitlog", minPartitions=parts)
        assert Counter(row.physical_offset for row in frame.collect()) == whole
    offsets = sorted(whole)
    for cut in (offsets[300], offsets[300] + 1, offsets[301] - 1):
        left = load(spark, orders, columns="physical_offset", view="commitlog", endingPhysicalOffset=cut).collect()
        right = load(spark, orders, columns="physical_offset", view="commitlog", startingPhysicalOffset=cut).collect()
        assert sorted(row.physical_offset for row in left + right) == offsets


def test_options_select_topics_queues_times_and_columns(spark: SparkSession, orders: Path) -> None:
    every = load(spark, orders).collect()
    found = load(spark, orders, subscribe="payments", columns="size,topic")
    assert found.columns == ["size", "topic"]
    assert found.count() == sum(row.topic == "payments" for row in every)
    assert load(spark, orders, subscribePattern="pay.*").count() == found.count()
    assert load(spark, orders, assign='{"orders":[1,2]}').count() == sum(
        row.topic == "orders" and row.queue_id in (1, 2) for row in every
    )
    limits = {"startingOffsets": '{"orders":{"0":5,"1":-2}}', "endingOffsets": '{"orders":{"0":9,"1":-1}}'}
    assert load(spark, orders, **limits).count() == sum(
        row.topic != "orders" or row.queue_id != 0 or 5 <= row.queue_offset < 9 for row in every
    )
    middle = sorted(row.store_timestamp for row in every)[len(every) // 2]
    milliseconds = round(middle.timestamp() * 1000)
    later = sum(row.store_timestamp >= middle for row in every)
    assert load(spark, orders, startingTimestamp=milliseconds).count() == later
    assert load(spark, orders, endingTimestamp=milliseconds).count() == len(every) - later
    assert "body" not in load(spark, orders, includeBody="false").columns
    assert load(spark, orders, transactionTypes="commit").count() == 34


def test_views_show_halves_ops_and_transactions(spark: SparkSession, orders: Path) -> None:
    halves = load(spark, orders, view="halves").collect()
    assert len(halves) == 100
    assert {(row.producer_group, row.check_times, row.transaction_type) for row in halves} == {(GROUP, 0, "prepared")}
    assert Counter(row.real_topic for row in halves) == {"orders": 50, "payments": 50}
    ops = load(spark, orders, view="ops").collect()
    assert len({row.half_queue_offset for row in ops}) == len(ops) == 67
    rows = load(spark, orders, view="transactions").collect()
    assert Counter(row.state for row in rows) == {"committed": 34, "rolled_back": 33, "pending": 33}
    committed = {row.final_physical_offsets[0]: row for row in rows if row.state == "committed"}
    finals = load(spark, orders, transactionTypes="commit").collect()
    assert {row.physical_offset: row.transaction_id for row in finals} == {
        offset: row.transaction_id for offset, row in committed.items()
    }
    for row in finals:
        assert row.prepared_transaction_offset in committed[row.physical_offset].half_physical_offsets


def test_statistics_count_each_queue(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    rows = load(spark, orders, view="statistics").collect()
    for _ in range(2):
        assert load(spark, orders, view="statistics", statisticsPath=f"file:{tmp_path}/folder").collect() == rows
    with pytest.raises(Exception, match="into which no reader writes"):
        load(spark, orders, view="statistics", statisticsPath=str(orders / "folder")).collect()
    every = load(spark, orders, includeSystemTopics="true", columns="topic,queue_id,size").collect()
    assert {row.file % (1 << 16) for row in rows} == {0}
    counted: Counter[tuple[str, int]] = Counter()
    for row in rows:
        counted[row.topic, row.queue_id] += row.messages
        assert row.first_store_timestamp <= row.last_store_timestamp
    assert counted == Counter((row.topic, row.queue_id) for row in every)
    assert sum(row.bytes for row in rows) == sum(row.size for row in every)


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_transactions_of_a_broker_equal_the_engines(spark: SparkSession, golden: Unpacked, name: str) -> None:
    store = golden[name].store
    with txstore.open(store, read_only=True) as broker:
        expected = broker.store.transactions()
    rows = load(spark, store, view="transactions").collect()
    # The view shows a transaction when it has ended.
    assert sorted((row.transaction_id, row.state, row.final_physical_offsets) for row in rows) == sorted(
        (row.transaction_id, str(row.state), row.finals) for row in expected
    )
    assert load(spark, store, view="commitlog", columns="size").count() == len(list(records(store)))


def test_schema_of_the_user_selects_columns(spark: SparkSession, orders: Path) -> None:
    frame = spark.read.format("txstore").schema("topic STRING, physical_offset BIGINT NOT NULL").load(str(orders))
    assert frame.columns == ["topic", "physical_offset"]
    assert frame.count() == 1_034
    assert frame.where("topic = 'orders'").count() < 1_034
    for wrong in ("topic STRING, zz BIGINT", "topic BIGINT"):
        with pytest.raises(Exception, match="hint:"):
            spark.read.format("txstore").schema(wrong).load(str(orders)).count()


def test_two_filters_on_one_frame_are_independent(spark: SparkSession, orders: Path) -> None:
    """A source that pushes filters fails here in Spark 4.3: it keeps the filter of another query of the frame."""
    frame = load(spark, orders, columns="topic")
    orders_only, payments_only = frame.where("topic = 'orders'"), frame.where("topic = 'payments'")
    counts = orders_only.count(), payments_only.count(), frame.count()
    assert counts[0] + counts[1] == counts[2] == 1_034
    assert orders_only.union(payments_only).count() == 1_034


def test_empty_store_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "empty"):
        assert load(spark, tmp_path / "empty").count() == 0
    for view in ("messages", "ops", "transactions"):
        assert load(spark, tmp_path / "empty", view=view).count() == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"subscrib": "orders"}, "did you mean subscribe"),
    ({"subscribe": "order"}, "did you mean 'orders'"),
    ({"columns": "topic,sise"}, "its columns are topic"),
    ({"view": "half"}, "the views are messages, commitlog"),
    ({"startingPhysicalOffset": 1 << 40}, "the log holds 0 to"),
    ({"endingPhysicalOffset": 1 << 40}, "the log holds 0 to"),
    ({"subscribe": "orders", "assign": '{"orders":[0]}'}, "keep one of the two"),
    ({"startingOffsets": "newest"}, "hint: for example"),
    ({"startingOffsets": "latest"}, "cannot begin at latest"),
    ({"batchBytes": "many"}, "for example 16m"),
    ({"failOnDataLoss": "perhaps"}, "must be true or false"),
    ({"subscribePattern": "("}, "not a valid regular expression"),
    ({"transactionTypes": "half"}, "none, prepared, commit and rollback"),
    ({"maxOffsetsPerTrigger": 5}, "only streams accept it"),
    ({"startingTimestamp": 5, "view": "transactions"}, "or read the view traces"),
    ({"badRecords": "skip", "view": "transactions"}, "or read the view traces"),
    ({"startingTimestamp": 5, "view": "statistics"}, "or read the view commitlog"),
    ({"endingOffsets": '{"orders":{"0":1}}', "view": "statistics"}, "or read the view commitlog"),
    ({"endingPhysicalOffset": 0, "view": "transactions"}, "or read the view traces"),
    ({"statisticsPath": "/folder"}, "only the view statistics"),
    ({"statisticsPath": "", "view": "statistics"}, "names a folder"),
    ({"subscribe": "orders", "view": "ops"}, "no topics to select"),
]


@pytest.mark.parametrize(("options", "says"), BAD, ids=[next(iter(options)) for options, _ in BAD])
def test_wrong_option_is_named(spark: SparkSession, orders: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match="InvalidOptionError") as raised:
        load(spark, orders, **options).count()
    assert says in str(raised.value)


def test_path_without_a_store_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="check the path"):
        load(spark, tmp_path / "nowhere").count()
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="not a store"):
        load(spark, tmp_path).count()


def test_relative_path_is_that_of_the_driver() -> None:
    """Tasks run in other directories, so the path is completed before they get it."""
    from txstore.spark.options import ReadOptions

    assert ReadOptions.of({"path": "stores/orders.store"}).path == str(Path.cwd() / "stores" / "orders.store")
    assert ReadOptions.of({"path": "file:///stores/orders.store"}).path == "/stores/orders.store"


def test_error_of_a_task_names_its_host(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    store = killed_copy(orders, tmp_path / "orders.store")
    planned = load(spark, store, columns="size").rdd
    assert planned.getNumPartitions() == 1
    store.rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="this host has no store at") as raised:
        planned.count()
    said = str(raised.value)
    assert f"on host {socket.gethostname()}" in said
    assert "hint: mount the store's directory under that path on every executor" in said


def test_table_of_the_catalog_is_refused_with_the_view_that_works(spark: SparkSession, orders: Path) -> None:
    def read_table() -> None:
        spark.sql(f"CREATE TABLE refused USING txstore OPTIONS (path '{orders}', columns 'topic')")
        spark.sql("SELECT count(*) FROM refused").collect()

    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW orders USING txstore OPTIONS"):
            read_table()
    finally:
        spark.sql("DROP TABLE IF EXISTS refused")


def warnings_of_a_plan(caplog: pytest.LogCaptureFixture, path: Path, **options: str) -> list[str]:
    """The warnings of a query that is planned, and then read in many tasks."""
    from txstore.spark.datasource import TxStoreDataSource

    caplog.clear()
    source = TxStoreDataSource({"path": str(path), **SMALL, **options})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert len(tasks) > 4
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 1_034
    return [record.getMessage() for record in caplog.records]


def test_plan_of_all_columns_warns_once(orders: Path, caplog: pytest.LogCaptureFixture) -> None:
    from txstore.spark.datasource import TxStoreDataSource

    (warning,) = warnings_of_a_plan(caplog, orders)
    assert "reads all 21 columns" in warning
    assert 'hint: option("columns", "topic,size")' in warning
    for option in ({"columns": "*"}, {"columns": "topic,body"}, {"includeBody": "false"}):
        assert warnings_of_a_plan(caplog, orders, **option) == []
    source = TxStoreDataSource({"path": str(orders)})
    stream = source.streamReader(source.schema())
    tasks = stream.partitions(stream.initialOffset(), stream.latestOffset())
    assert sum(batch.num_rows for task in tasks for batch in stream.read(task)) == 1_034
    assert [record.getMessage() for record in caplog.records] == [warning]


def test_star_is_every_column(spark: SparkSession, orders: Path) -> None:
    assert load(spark, orders, columns="*").columns == load(spark, orders).columns


def test_examples_of_the_page_print_what_it_shows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "orders.store"
    with txstore.open(store) as broker:
        producer = broker.producer("shop")
        for topic in ("orders", "orders", "payments"):
            producer.send(txstore.Message(topic, b"paid"))
    (_, program), (_, shown), (_, statements), (_, of_view) = blocks(PAGE)[:4]
    capsys.readouterr()
    exec(program.replace("orders.store", str(store)), {"spark": spark})
    assert capsys.readouterr().out.strip() == shown.strip()
    *before, query = statements.replace("orders.store", str(store)).strip().rstrip(";").split(";")
    for statement in before:
        spark.sql(statement)
    spark.sql(query).show()
    assert capsys.readouterr().out.strip() == of_view.strip()
    spark.catalog.dropTempView("messages")
