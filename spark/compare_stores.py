"""Compares two stores: messages that only one has, and messages that differ.

    spark-submit spark/compare_stores.py orders.store copy.store --output differences

In:     the directories of two stores.
Out:    counts by topic, the first differences, with `--output` all of them as Parquet; exit code 0 if there is none, 1
        if there are some, 2 for a wrong argument. Messages are compared by topic, queue and queue offset, which is
        what consumers see. With `--by physical_offset`, records of every topic are compared, for equal logs.
Always: one shuffle of each store, of hashes, not of bodies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txstore.errors import TxStoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ["topic", "queue_id", "queue_offset"]
# Compared one by one, so that a difference can be named. Store times and hosts differ between stores.
SEEN = """message_id transaction_id tags keys flag sys_flag transaction_type born_timestamp born_host reconsume_times
body properties""".split()
LISTED = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job."""
    options = _parser().parse_args(arguments)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("compare stores").getOrCreate()
    try:
        return 1 if run(spark, options) else 0
    except TxStoreError as error:
        print(f"compare_stores: {error}", file=sys.stderr)
        return 2


def run(spark: SparkSession, options: argparse.Namespace) -> int:
    """Prints the differences and returns their number."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    from txstore import _native

    for store in (options.left, options.right):
        first, visible = _native.log_range(store)
        _say(f"{store}: commit log {first:,} to {visible:,}")
    found = differences(spark, options.left, options.right, by=options.by, bodies=not options.without_bodies)
    if options.output:
        found.write.mode("errorifexists").parquet(options.output)
        found = spark.read.parquet(options.output)
    else:
        found = found.cache()
    by_topic = found.groupBy("topic", "difference").count().orderBy("topic", "difference").collect()
    for row in by_topic:
        _say(f"{row['count']:>12,}  {row['topic']}: {row['difference']}")
    for row in found.orderBy(*(F.col(name) for name in _key(options.by))).limit(LISTED).collect():
        key = ", ".join(f"{name} {row[name]}" for name in _key(options.by))
        _say(f"{key}: {row['difference']}" + (f" in {', '.join(row['columns'])}" if row["columns"] else ""))
    count: int = sum(row["count"] for row in by_topic)
    _say(f"{count:,} differences" if count else f"no difference between {options.left} and {options.right}")
    return count


def differences(
    spark: SparkSession, left: str, right: str, *, by: str = "queue_offset", bodies: bool = True
) -> DataFrame:
    """Returns a row per difference: topic, queue_id, queue_offset, physical_offset, difference, differing columns."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    seen = [name for name in SEEN if bodies or name != "body"]
    key = _key(by)
    one = _hashed(spark, left, by, seen).select(*key, F.struct("*").alias("one"))
    two = _hashed(spark, right, by, seen).select(*key, F.struct("*").alias("two"))
    both = one.join(two, key, "full_outer")
    told = [name for name in (*KEY, *seen) if name not in key]
    differing = F.array(*(F.when(~F.col(f"one.{n}").eqNullSafe(F.col(f"two.{n}")), F.lit(n)) for n in told))
    differing = F.filter(differing, lambda name: name.isNotNull())
    is_left, is_right = F.col("two").isNull(), F.col("one").isNull()
    what = F.when(is_left, F.lit(f"only in {left}")).when(is_right, F.lit(f"only in {right}")).otherwise("not the same")
    names = [name for name in (*KEY, "physical_offset") if name not in key]
    return both.select(
        *key,
        *(F.coalesce(f"one.{name}", f"two.{name}").alias(name) for name in names),
        what.alias("difference"),
        F.when(is_left | is_right, F.array().cast("array<string>")).otherwise(differing).alias("columns"),
    ).where(is_left | is_right | (F.size(differing) > 0))


def _hashed(spark: SparkSession, path: str, by: str, seen: Sequence[str]) -> DataFrame:
    """Returns the key of each record, and 64 bits of each column that is compared."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    reader = spark.read.format("txstore").option("view", "commitlog" if by == "physical_offset" else "messages")
    rows = reader.option("columns", ",".join([*KEY, "physical_offset", *seen])).load(path)
    # A map has neither order nor hash, so its sorted entries are hashed.
    rows = rows.withColumn("properties", F.array_sort(F.map_entries("properties")))
    return rows.select(*KEY, "physical_offset", *(F.xxhash64(name).alias(name) for name in seen))


def _key(by: str) -> list[str]:
    return ["physical_offset"] if by == "physical_offset" else KEY


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="compare_stores.py", description=about)
    parser.add_argument("left", help="a store's directory")
    parser.add_argument("right", help="another store's directory")
    parser.add_argument("--by", choices=("queue_offset", "physical_offset"), default="queue_offset")
    parser.add_argument("--without-bodies", action="store_true", help="do not read bodies")
    parser.add_argument("--output", metavar="FOLDER", help="write every difference there, as Parquet")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
