"""Guards the pipeline of the examples: a web service, its store, a stream over the network, Parquet, a report.

The service is killed between two runs of the job: each payment that its database has is in the lake once.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def service(directory: Path, brokers: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The web service as a process, and its address."""
    command = [sys.executable, "-m", "examples.payments_service", str(directory), "--port", "0", "--brokers", brokers]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def pay(url: str, order: int, amount: int) -> None:
    request = urllib.request.Request(f"{url}/orders/{order}/payment?amount={amount}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response) == {"order_id": order, "amount": amount}


@pytest.mark.kill
def test_each_payment_is_in_the_lake_once(spark: SparkSession, tmp_path: Path) -> None:
    from spark.payments_to_lake import copy, report

    brokers, lake = f"127.0.0.1:{free_port()}", tmp_path / "lake"
    with service(tmp_path, brokers) as (process, url):
        for order in range(20):
            pay(url, order, 10 + order)
        copy(spark, brokers, lake)
        assert report(spark, lake)[0] == 20
        pay(url, 20, 1_000)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with service(tmp_path, brokers) as (_, url):
        pay(url, 21, 2_000)
        copy(spark, brokers, lake)
    with closing(sqlite3.connect(tmp_path / "payments.db")) as database:
        expected = database.execute("SELECT count(*), sum(amount) FROM payments").fetchone()
    assert report(spark, lake) == expected == (22, 3_390)
