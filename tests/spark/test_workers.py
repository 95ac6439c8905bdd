"""Guards how the tests start Spark's Python workers: soon enough for Spark, also on a busy machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_worker_imports_the_installed_package(spark: SparkSession) -> None:
    import pyspark

    def imported(_: int) -> tuple[str, str]:
        import pyspark

        return sys.executable, pyspark.__file__

    found = spark.sparkContext.parallelize([0], 1).map(imported).collect()
    assert found == [(sys.executable, pyspark.__file__)]
