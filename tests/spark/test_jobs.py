"""Guards the jobs: an archive has each record once, also after a kill; a comparison names what two stores do not
share.

A batch may be written and then not noted. Each job also runs as it is submitted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from spark import archive_commit_log, compare_stores, transaction_report
from tests.copies import killed_copy
from tests.spark.conftest import JAVA_OPTIONS
from tests.spark.stores import message
from tests.spark.workers import environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
JOBS = Path(__file__).resolve().parents[2] / "spark"
# Each kill is a start of Spark.
KILLS = int(os.environ.get("TXSTORE_SPARK_KILLS", "5"))


def offsets(spark: SparkSession, store: Path) -> list[int]:
    frame = spark.read.format("txstore").options(view="commitlog", columns="physical_offset").load(str(store))
    return sorted(row.physical_offset for row in frame.collect())


@pytest.mark.usefixtures("limits")
def test_batch_that_was_written_and_not_noted_is_archived_once(
    spark: SparkSession, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = archive_commit_log.write_batch

    def written_then_lost(batch: DataFrame, number: int, lake: Path) -> None:
        write(batch, number, lake)
        written.append(number)
        if written.count(1) == 1:
            raise RuntimeError("the power went")

    monkeypatch.setattr(archive_commit_log, "write_batch", written_then_lost)
    arguments = [str(orders), str(tmp_path / "lake"), "--batch-bytes", "150k"]
    assert archive_commit_log.main(arguments) == 1
    assert archive_commit_log.main(arguments) == 0
    assert written.count(1) == 2
    assert len(set(written)) > 2
    # As any reader of Parquet sees it.
    rows = (
        spark.read.parquet(str(tmp_path / "lake"))
        .select("physical_offset", "topic", "day", "store_timestamp")
        .collect()
    )
    assert sorted(row.physical_offset for row in rows) == offsets(spark, orders)
    assert {row.topic for row in rows} == {
        "orders",
        "payments",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    }
    assert len(list((tmp_path / "lake" / "topic=orders").glob("day=*"))) in (1, 2)


def test_two_stores_are_compared(spark: SparkSession, orders: Path, tmp_path: Path, capsys: Any) -> None:
    copy = killed_copy(orders, tmp_path / "copy.store")
    assert compare_stores.main([str(orders), str(copy)]) == 0
    assert compare_stores.main([str(orders), str(copy), "--by", "physical_offset"]) == 0
    with txstore.open(copy) as broker:
        sent = broker.producer("more").send(message(1))
    capsys.readouterr()
    assert compare_stores.main([str(orders), str(copy), "--output", str(tmp_path / "differences")]) == 1
    assert f"only in {copy}" in capsys.readouterr().out
    (found,) = spark.read.parquet(str(tmp_path / "differences")).collect()
    assert (found.topic, found.queue_id, found.queue_offset) == (sent.topic, sent.queue_id, sent.queue_offset)
    assert found.physical_offset == sent.physical_offset


def test_messages_that_differ_are_named_with_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    for name, body in (("one", b"left"), ("two", b"right")):
        with txstore.open(tmp_path / name) as broker:
            broker.create_topic("orders", 1)
            producer = broker.producer("producers")
            producer.send(txstore.Message("orders", body, tags="a", properties={"n": "1"}))
    rows = compare_stores.differences(spark, str(tmp_path / "one"), str(tmp_path / "two")).collect()
    (row,) = rows
    assert row.difference == "not the same"
    assert set(row["columns"]) >= {"body"}
    assert "tags" not in row["columns"]
    without = compare_stores.differences(spark, str(tmp_path / "one"), str(tmp_path / "two"), bodies=False).collect()
    assert all("body" not in row["columns"] for row in without)


@pytest.mark.parametrize("job", [archive_commit_log, compare_stores, transaction_report], ids=lambda job: job.__name__)
def test_error_is_one_sentence(spark: SparkSession, tmp_path: Path, capsys: Any, job: Any) -> None:
    assert job.main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "nowhere" in said
    assert "Traceback" not in said


def submitted(job: str, *arguments: object) -> subprocess.Popen[str]:
    """Runs the job with `spark-submit`."""
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--driver-memory", "1g"]
    command += ["--driver-java-options", JAVA_OPTIONS]
    # A machine with other work starts a worker late.
    command += ["--conf", "spark.python.authenticate.socketTimeout=2m"]
    for setting in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
        command += ["--conf", setting]
    return subprocess.Popen(
        [*command, str(JOBS / job), *map(str, arguments)], env=os.environ | environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


# Each is a start of a Java machine. What they do is tested in the session that all tests share.
@pytest.mark.parametrize(
    "job",
    [
        "transaction_report.py",
        pytest.param("archive_commit_log.py", marks=pytest.mark.torture),
        pytest.param("compare_stores.py", marks=pytest.mark.torture),
    ],
)
def test_job_runs_as_it_is_submitted(spark: SparkSession, orders: Path, tmp_path: Path, job: str) -> None:
    arguments, says = {
        "transaction_report.py": ((orders, tmp_path / "report"), "100 transactions"),
        "archive_commit_log.py": ((orders, tmp_path / "lake"), "everything is archived"),
        "compare_stores.py": ((orders, orders), "no difference between"),
    }[job]
    child = submitted(job, *arguments)
    out, _ = child.communicate(timeout=400)
    assert child.returncode == 0, out
    assert says in out
    if job == "transaction_report.py":
        assert (tmp_path / "report" / "report.html").exists()
    if job == "archive_commit_log.py":
        assert spark.read.parquet(str(tmp_path / "lake")).count() == len(offsets(spark, orders))


@pytest.mark.torture
def test_killed_archive_has_each_record_once(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for kill in range(KILLS):
        child = submitted("archive_commit_log.py", orders, lake, "--batch-bytes", "60k")
        limit = time.monotonic() + 300
        # Kills it when the next batch's folders begin to appear, noted or not.
        while len(list(lake.glob("topic=*/day=*/batch=*"))) <= 2 * kill and child.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.02)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    child = submitted("archive_commit_log.py", orders, lake, "--batch-bytes", "60k")
    out, _ = child.communicate(timeout=400)
    assert child.returncode == 0, out
    rows = Counter(row.physical_offset for row in spark.read.parquet(str(lake)).collect())
    assert set(rows.values()) == {1}
    assert sorted(rows) == offsets(spark, orders)
