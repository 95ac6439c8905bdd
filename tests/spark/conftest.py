"""Fixtures of the Spark tests: one small session for all, and stores to read.

Without pyspark or Java these tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.golden.unpack import Unpacked
from tests.spark.stores import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the time of a short run, Java would take most to compile for a long one.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def missing() -> str | None:
    """The reason why Spark cannot run here, or None."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed: make installs requirements-dev.lock"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java (17 or newer) for Spark"
    return None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    from tests.spark.query import builder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder().appName("txstore tests").config("spark.driver.extraJavaOptions", JAVA_OPTIONS).getOrCreate()
        yield session
        session.stop()


def per_trigger(**limits: str) -> dict[str, str]:
    """The options that limit micro-batches; none for Spark 4.0 and 4.1, which cannot."""
    from txstore.spark.versions import LIMITS

    return limits if LIMITS else {}


@pytest.fixture
def limits() -> None:
    """For tests of limited micro-batches."""
    if not per_trigger(any="1"):
        pytest.skip("Spark 4.2 is the first that limits a micro-batch of a Python source")


@pytest.fixture(autouse=True)
def _warnings_of_others() -> Iterator[None]:
    """Ignores warnings about sockets that Spark's client leaves open, and the like: they are not this project's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of small files: messages of two topics, and transactions of every outcome."""
    path = tmp_path_factory.mktemp("spark") / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=1 << 16) as broker:
        fill(broker, 1_000)
    return path
