"""Guards reading from and writing to a real RocketMQ broker: rows over the network equal those of the broker's files.

What needs no RocketMQ is in test_network.py and test_sink.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.peer.rocketmq49 import RocketMQ49
from tests.spark.stores import message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.peer]

MESSAGES = 2_000


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peer.Peer]:
    try:
        home = peer.Home.build(tmp_path_factory.mktemp("rocketmq"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))
    with home.start() as process:
        yield process


@pytest.fixture(scope="module", params=["5", "4.9"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def store(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each version its own."""
    return tmp_path_factory.mktemp("broker") / "store"


@pytest.fixture(scope="module")
def names(version: str, process: peer.Peer, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker with messages of two topics, some of them compressed."""
    older = version == "4.9"
    with RocketMQ49(tmp_path_factory.mktemp("rocketmq49"), store) if older else process.broker(store) as broker:
        with txstore.connect(broker.names, send_msg_timeout=15) as client:
            producer = client.producer("producers")
            for number in range(MESSAGES):
                producer.send(message(number))
        with process.producer(broker.names, "large") as producer_of_java:
            facts = [peer.message("orders", bytes([number]) * 6_000) for number in range(20)]
            producer_of_java.send(facts)
        yield broker.names


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.drop("broker").collect()]
    return sorted(found, key=lambda row: row["physical_offset"])


def read(spark: SparkSession, **options: object) -> DataFrame:
    texts = {"columns": "*", "subscribe": "orders,payments"} | {name: str(value) for name, value in options.items()}
    path = texts.pop("path", None)
    return spark.read.format("txstore").options(**texts).load(path)


def test_rows_equal_those_of_the_brokers_files(spark: SparkSession, names: str, store: Path) -> None:
    network = rows(read(spark, brokers=names, minPartitions=3))
    assert network == rows(read(spark, path=store))
    assert len(network) == MESSAGES + 20
    assert {len(row["body"]) for row in network} >= {6_000}


def test_unknown_topic_is_named(spark: SparkSession, names: str) -> None:
    with pytest.raises(Exception, match="option subscribe: the brokers have no topic 'order'"):
        read(spark, brokers=names, subscribe="order").count()


def test_write(spark: SparkSession, names: str) -> None:
    bodies = read(spark, brokers=names, subscribe="payments", columns="body").selectExpr("'copies' AS topic", "body")
    bodies.write.format("txstore").mode("append").option("brokers", names).save()
    copies = read(spark, brokers=names, subscribe="copies", columns="body")
    assert sorted(bytes(row.body) for row in copies.collect()) == sorted(
        message(number).body for number in range(MESSAGES) if number % 2
    )
