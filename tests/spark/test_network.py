"""Guards reading over the network: the rows are those of the store's files, in batch and stream, whatever is asked for.

Errors name the option or the address. Real brokers are in tests/spark/test_network_brokers.py.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from tests.certificates import Authority
from tests.ports import free_port
from tests.spark.conftest import per_trigger
from tests.spark.stores import message
from tests.unit.test_failover import Pair
from txstore.errors import BrokerRefusedError, BrokerUnreachableError, InvalidOptionError, StoreCorruptError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition

pytestmark = pytest.mark.spark

SETTINGS: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 16}


@pytest.fixture(scope="module")
def served(orders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[txstore.Server]:
    """A server of the store that other tests read by its files."""
    path = shutil.copytree(orders, tmp_path_factory.mktemp("network") / "orders.store")
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **SETTINGS) as server:
        yield server


def names(server: txstore.Server) -> str:
    assert server.name_server is not None
    return server.name_server


def by_network(spark: SparkSession, server: txstore.Server, **options: object) -> DataFrame:
    texts = {"columns": "*"} | {name: str(value) for name, value in options.items()}
    return spark.read.format("txstore").option("brokers", names(server)).options(**texts).load()


def by_files(spark: SparkSession, server: txstore.Server, **options: object) -> DataFrame:
    texts = {"columns": "*"} | {name: str(value) for name, value in options.items()}
    return spark.read.format("txstore").options(**texts).load(str(server.broker.path))


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows without the column that only brokers know, in the log's order."""
    found = [row.asDict() for row in frame.drop("broker").collect()]
    return sorted(found, key=lambda row: row["physical_offset"])


def test_rows_and_columns_equal_those_of_the_files(spark: SparkSession, served: txstore.Server) -> None:
    files, network = by_files(spark, served), by_network(spark, served)
    assert network.schema.names == [*files.schema.names, "broker"]
    assert rows(network) == rows(files)
    assert network.select("broker").distinct().count() == 1
    assert network.count() > 1000


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "orders"},
        {"subscribePattern": "pay.*"},
        {"assign": '{"orders":[0,1],"payments":[2]}'},
        {"subscribe": "payments", "transactionTypes": "commit"},
        {
            "subscribe": "orders",
            "startingOffsets": '{"orders":{"0":23,"1":-2}}',
            "endingOffsets": '{"orders":{"0":40}}',
        },
        {"subscribe": "orders", "minPartitions": 7, "batchRows": 10},
        {"subscribe": "orders", "maxPartitionBytes": "10k"},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_choose_the_same_rows(spark: SparkSession, served: txstore.Server, options: dict[str, object]) -> None:
    found = rows(by_network(spark, served, **options))
    assert found == rows(by_files(spark, served, **options))
    assert found


def test_times_choose_the_same_rows(spark: SparkSession, served: txstore.Server) -> None:
    stored = sorted(
        row["store_timestamp"] for row in rows(by_files(spark, served, columns="physical_offset,store_timestamp"))
    )
    middle = round(stored[len(stored) // 2].timestamp() * 1000)
    for options in ({"startingTimestamp": middle}, {"endingTimestamp": middle}):
        assert rows(by_network(spark, served, **options)) == rows(by_files(spark, served, **options))


def test_partitions_split_queues_and_share_small_ones(spark: SparkSession, served: txstore.Server) -> None:
    assert by_network(spark, served).rdd.getNumPartitions() == 1
    assert by_network(spark, served, minPartitions=6).rdd.getNumPartitions() >= 6


def test_columns_of_the_other_source_are_null(spark: SparkSession, served: txstore.Server) -> None:
    network = by_network(spark, served, columns="store,topic,broker").first()
    files = by_files(spark, served, columns="store,topic,broker").first()
    assert network is not None
    assert files is not None
    assert (network.store, files.broker) == (None, None)
    assert files.store == str(served.broker.path)


class Streamed:
    """A stream from a server to Parquet, up to the present end of its queues."""

    def __init__(self, spark: SparkSession, server: txstore.Server, work: Path) -> None:
        self._spark, self._server, self._work = spark, server, work
        self.lags: list[int | None] = []
        """How many rows the query had not read after each micro-batch."""

    def run(self, **options: object) -> list[int]:
        """Returns the rows of each micro-batch."""
        from txstore.spark.lag import StreamLag

        texts = {name: str(value) for name, value in options.items()}
        reader = self._spark.readStream.format("txstore").option("brokers", names(self._server))
        frame = reader.option("columns", "topic,queue_id,queue_offset,physical_offset,body").options(**texts).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self._work / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self._work / "out"))
        query.awaitTermination()
        self.lags = [lag.rows for progress in query.recentProgress for lag in StreamLag.of(progress)]
        return [progress["numInputRows"] for progress in query.recentProgress]

    def written(self) -> list[dict[str, Any]]:
        return rows(self._spark.read.parquet(str(self._work / "out")))


def test_stream_reads_each_row_once_and_continues(spark: SparkSession, tmp_path: Path) -> None:
    with txstore.serve(
        tmp_path / "orders.store", listen="127.0.0.1:0", name_server="127.0.0.1:0", **SETTINGS
    ) as server:
        producer = server.broker.producer("producers")
        for number in range(300):
            producer.send(message(number))
        streamed = Streamed(spark, server, tmp_path)
        counts = streamed.run(**per_trigger(maxOffsetsPerTrigger="120"))
        assert sum(counts) == 300
        if per_trigger(any=""):
            assert [count for count in counts if count] == [120, 120, 60]
            assert streamed.lags[:3] == [180, 60, 0]
        # A topic that is new to the query, and more of a known one.
        for number in range(300, 330):
            producer.send(message(number))
            producer.send(txstore.Message("later", b"%d" % number))
        streamed.run()
        assert streamed.written() == rows(
            by_files(spark, server, columns="topic,queue_id,queue_offset,physical_offset,body")
        )


def stream_of(server: txstore.Server, **options: object) -> Any:
    """What Spark's driver asks of a stream, without Spark."""
    from txstore.spark.datasource import TxStoreDataSource

    texts = {"brokers": names(server), "columns": "size"} | {name: str(value) for name, value in options.items()}
    source = TxStoreDataSource(texts)
    return source.streamReader(source.schema())


def total(offset: dict[str, Any]) -> int:
    return sum(at for brokers in offset["queues"].values() for queues in brokers.values() for at in queues.values())


def test_stream_stores_the_offsets_of_its_group(tmp_path: Path) -> None:
    with txstore.serve(tmp_path / "store", listen="127.0.0.1:0", name_server="127.0.0.1:0", **SETTINGS) as server:
        for number in range(30):
            server.broker.producer("producers").send(message(number))
        stream = stream_of(server, subscribe="orders", groupId="lake")
        end = stream.latestOffset(stream.initialOffset(), None)
        assert total(end) == 15
        stream.commit(end)
        lags = [one for one in server.broker.lag("lake") if one.topic == "orders"]
        assert len(lags) > 1
        assert {one.lag for one in lags} == {0}
        server.broker.producer("producers").send(message(0))
        assert sum(one.lag for one in server.broker.lag("lake") if one.topic == "orders") == 1
        stream.stop()


def test_offset_of_files_or_of_other_brokers_is_refused(served: txstore.Server) -> None:
    stream = stream_of(served, subscribe="orders")
    with pytest.raises(InvalidOptionError, match=r"option checkpointLocation: .* is not an offset of queues"):
        stream.latestOffset({"v": 2, "phy": 1024}, None)
    begin = stream.initialOffset()
    late = {"v": 4, "queues": {"orders": {"txstore": {"0": 1 << 40}}}}
    with pytest.raises(StoreCorruptError, match="the checkpoint is one of other brokers, or they lost messages"):
        stream.partitions(late, begin)
    stream.stop()


def test_stream_survives_a_server_that_restarts(spark: SparkSession, tmp_path: Path) -> None:
    ports: dict[str, Any] = {"listen": f"127.0.0.1:{free_port()}", "name_server": f"127.0.0.1:{free_port()}"}
    path = tmp_path / "orders.store"
    with txstore.serve(path, **ports, **SETTINGS) as server:
        for number in range(200):
            server.broker.producer("producers").send(message(number))
        streamed = Streamed(spark, server, tmp_path)
        streamed.run()
    with txstore.serve(path, **ports, **SETTINGS) as server:
        server.broker.producer("producers").send(message(200))
        restarted = Streamed(spark, server, tmp_path)
        restarted.run()
        assert len(restarted.written()) == 201


def test_driver_continues_after_a_server_has_restarted(tmp_path: Path) -> None:
    """Its connections are those of the former server, and the next request finds out."""
    from txstore.spark.datasource import TxStoreDataSource

    ports: dict[str, Any] = {"listen": f"127.0.0.1:{free_port()}", "name_server": f"127.0.0.1:{free_port()}"}
    with txstore.serve(tmp_path / "orders.store", **ports, **SETTINGS) as server:
        for number in range(200):
            server.broker.producer("producers").send(message(number))
        source = TxStoreDataSource({"brokers": names(server), "columns": "topic"})
        reader = source.streamReader(source.schema())
        first = reader.latestOffset(reader.initialOffset())
    with txstore.serve(tmp_path / "orders.store", **ports, **SETTINGS):
        # It asks for topics and routes again when those that it knows are a second old.
        vars(reader)["_known_until"] = 0.0
        assert reader.latestOffset(first) == first
        reader.stop()


def test_tasks_wait_for_a_server_that_is_away(spark: SparkSession, tmp_path: Path) -> None:
    ports: dict[str, Any] = {"listen": f"127.0.0.1:{free_port()}", "name_server": f"127.0.0.1:{free_port()}"}
    path = tmp_path / "orders.store"
    with txstore.serve(path, **ports, **SETTINGS) as server:
        for number in range(200):
            server.broker.producer("producers").send(message(number))
        frame = by_network(spark, server, columns="physical_offset")
        # The driver plans now; the tasks begin after the server has stopped.
        assert frame.rdd.getNumPartitions() == 1
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.append(frame.count()))
    reading.start()
    with txstore.serve(path, **ports, **SETTINGS):
        reading.join()
    assert found == [200]


def test_tasks_continue_at_the_replica_of_a_source_that_is_gone(tmp_path: Path) -> None:
    from txstore.spark.datasource import TxStoreDataSource

    pair = Pair(tmp_path)
    try:
        assert pair.source is not None
        for number in range(100):
            pair.source.broker.producer("producers").send(message(number))
        pair.caught_up()
        texts = {"brokers": pair.addresses, "columns": "queue_offset,topic,queue_id", "minPartitions": "4"}
        source = TxStoreDataSource(texts)
        reader = source.reader(source.schema())
        parts = reader.partitions()
        # One task has pulled something when its broker is lost, the others begin later.
        first = reader.read(parts[0])
        found = [next(first)]
        pair.lose_source()
        found += [batch for stream in (first, *map(reader.read, parts[1:])) for batch in stream]
        assert sum(batch.num_rows for batch in found) == 100
        assert len({tuple(row.values()) for batch in found for row in batch.to_pylist()}) == 100
    finally:
        pair.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "commitlog"}, "option view: brokers send only messages, and not the view 'commitlog'"),
        ({"path": "orders.store"}, "option path: conflicts with brokers"),
        ({"startingPhysicalOffset": 0}, "option startingPhysicalOffset: conflicts with brokers"),
        ({"subscribe": "order"}, "option subscribe: the brokers have no topic 'order'"),
        ({"subscribePattern": "("}, '"(" is not a valid regular expression'),
        ({"assign": '{"orders":[0,77]}'}, "option assign: there is no queue 77 of 'orders' to read"),
        ({"assign": '{"orders":["b:0"]}'}, "option assign: there is no queue 0 of 'orders' on broker b to read"),
        ({"startingOffsets": '{"orders":{"0":100000}}'}, "has the offsets 0 to "),
        ({"startingOffsets": "latest"}, "option startingOffsets: a batch cannot begin at latest"),
        ({"accessKey": "reader"}, "option accessKey: applies only with secretKey"),
        ({"tls": "/nowhere.pem"}, "'/nowhere.pem' cannot be used"),
        ({"fetchTimeout": "soon"}, "option fetchTimeout: must be a duration"),
        ({"groupId": "a b"}, "option groupId:"),
        ({"brokers": "nowhere"}, "option brokers: invalid address 'nowhere'"),
        ({"brokers": ""}, "option brokers: invalid address"),
    ],
)
def test_errors_name_the_option(served: txstore.Server, options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        planned({"brokers": names(served)} | options)
    assert text in str(raised.value)


def test_option_of_the_network_needs_brokers(served: txstore.Server) -> None:
    with pytest.raises(InvalidOptionError, match="option tls: applies only with brokers"):
        planned({"path": str(served.broker.path), "tls": "true"})


def test_broker_that_is_away_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachableError) as raised:
        planned({"brokers": address})
    assert f"option brokers: '{address}': {address} cannot be reached" in str(raised.value)
    assert "hint: start it, or check the address" in str(raised.value)


def planned(options: Mapping[str, object]) -> Sequence[InputPartition]:
    """What Spark does on the driver before any task, without Spark."""
    from txstore.spark.datasource import TxStoreDataSource

    source = TxStoreDataSource({name: str(value) for name, value in options.items()})
    return source.reader(source.schema()).partitions()


def test_read_by_tls(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    path = shutil.copytree(orders, tmp_path / "orders.store")
    settings = SETTINGS | authority.pair().options
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **settings) as server:
        trusted = by_network(spark, server, tls=authority.file)
        assert rows(trusted) == rows(by_files(spark, server))
        streamed = Streamed(spark, server, tmp_path)
        streamed.run(tls=authority.file)
        assert len(streamed.written()) == trusted.count()
        with pytest.raises(BrokerUnreachableError, match=r"option brokers: .*certificate verify failed"):
            planned({"brokers": names(server), "tls": "true"})


def test_account_without_permission_is_named(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(
        '[analyst]\nsecret_key = "secret-of-reader"\ntopics = { orders = "SUB" }\ndefault_group_perm = "SUB"\n'
    )
    path = shutil.copytree(orders, tmp_path / "orders.store")
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", accounts=accounts, **SETTINGS) as server:
        account = {"accessKey": "analyst", "secretKey": "secret-of-reader"}
        allowed = by_network(spark, server, subscribe="orders", **account)
        assert rows(allowed) == rows(by_files(spark, server, subscribe="orders"))
        for options in (account | {"subscribe": "payments"}, {"subscribe": "orders"}):
            with pytest.raises(BrokerRefusedError, match="NO_PERMISSION") as raised:
                planned({"brokers": names(server)} | options)
            assert "hint: ask the broker's operator for an account with it" in str(raised.value)
