"""Guards reading a cluster of three RocketMQ brokers: each message once, where nobody can see the brokers' files.

The query is a program in a mount namespace of its own, in which the folder of the stores is empty, for its driver and
its executors. What it has read is compared with the files by a full outer join, so rows that only one side has are
found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.peer import rocketmq as peer
from txstore import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.peer]

MESSAGES = int(os.environ.get("TXSTORE_CLUSTER_MESSAGES", "30000"))
NAMES = ("broker-a", "broker-b", "broker-c")
QUEUES, BATCH = 4, 500
# Messages fill several files.
CONFIG = peer.SMALL | {"mappedFileSizeCommitLog": 1 << 26, "mappedFileSizeConsumeQueue": 2_000_000}
ROOT = Path(__file__).resolve().parents[2]


def message(number: int) -> Message:
    body = f"{number}:".encode() + bytes([number % 251]) * (number % 200)
    return Message("orders", body, tags=f"t{number % 3}", keys=[f"o-{number}"], properties={"number": str(number)})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the three stores, each named as its broker."""
    path = tmp_path_factory.mktemp("stores")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[str]:
    """The name server of three brokers, each a process, with messages in all queues."""
    try:
        home = peer.Home.build(tmp_path_factory.mktemp("rocketmq"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))
    with ExitStack() as stack:
        known: dict[str, str] = {}
        for name in NAMES:
            process = stack.enter_context(home.start())
            settings = {"brokerName": name, "defaultTopicQueueNums": QUEUES} | known
            broker = stack.enter_context(process.broker(stores / name, config=CONFIG, settings=settings))
            process.call("broker.topic", handle=broker.facts["handle"], topic="orders", queues=QUEUES, type="NORMAL")
            known = known or {"namesrvAddr": broker.names}
        address = known["namesrvAddr"]
        with txstore.connect(address, send_msg_timeout=15) as client:
            producer = client.producer("producers")
            for start in range(0, MESSAGES, BATCH):
                producer.send_batch([message(number) for number in range(start, min(start + BATCH, MESSAGES))])
        yield address


def by_files(spark: SparkSession, stores: Path) -> DataFrame:
    frames = []
    for name in NAMES:
        frame = spark.read.format("txstore").options(columns="*", subscribe="orders").load(str(stores / name))
        frames.append(frame.drop("store", "broker").selectExpr("*", f"'{name}' AS broker"))
    return frames[0].unionByName(frames[1]).unionByName(frames[2])


def differing(one: DataFrame, other: DataFrame) -> tuple[int, int, int, int]:
    """How many rows only one has, only the other has, both have with different values, and both have."""
    keys = ["broker", "physical_offset"]
    columns = [name for name in one.columns if name not in keys]
    shown = [*keys, *(f"sort_array(map_entries({c})) AS {c}" if c == "properties" else c for c in columns)]
    left, right = one.selectExpr(*shown, "1 AS found").alias("l"), other.selectExpr(*shown, "1 AS found").alias("r")
    equal = " AND ".join(f"l.{column} <=> r.{column}" for column in columns)
    counts = left.join(right, keys, "full_outer").selectExpr(
        "count_if(r.found IS NULL)",
        "count_if(l.found IS NULL)",
        f"count_if(l.found = r.found AND NOT ({equal}))",
        "count_if(l.found = r.found)",
    )
    row = counts.first()
    assert row is not None
    return row[0], row[1], row[2], row[3]


def hides(tmp_path: Path, stores: Path) -> list[str]:
    """The beginning of a command that runs a program without a view of the stores."""
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    for flags in ("-m", "-Urm"):
        hidden = ["unshare", flags, "sh", "-c", script, str(stores)]
        if (
            shutil.which("unshare")
            and not subprocess.run([*hidden, "true"], check=False, capture_output=True).returncode
        ):
            return hidden
    pytest.skip("no program can have a mount namespace of its own here (unshare)")


def test_each_message_once_where_nobody_sees_the_files(
    spark: SparkSession, names: str, stores: Path, tmp_path: Path
) -> None:
    begin = time.monotonic()
    program = [sys.executable, "-m", "tests.spark.unseen", names, str(tmp_path), str(MESSAGES // 5), str(stores)]
    subprocess.run([*hides(tmp_path, stores), *program], check=True, cwd=ROOT)
    print(f"{MESSAGES} messages read twice in {time.monotonic() - begin:.0f} s")
    files = by_files(spark, stores)
    brokers = files.groupBy("broker").count().collect()
    assert len(brokers) == 3, brokers
    for read in ("batch", "stream"):
        network = spark.read.parquet(str(tmp_path / read)).drop("store")
        assert differing(files, network) == (0, 0, 0, MESSAGES)
        numbers = network.selectExpr("count(*)", "count(DISTINCT split(CAST(body AS STRING), ':')[0])").first()
        assert numbers is not None
        assert tuple(numbers) == (MESSAGES, MESSAGES)
    shutil.rmtree(tmp_path)
