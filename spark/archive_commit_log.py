"""Archives the commit log in Parquet by topic and day, so that a lake keeps what retention deletes.

    spark-submit spark/archive_commit_log.py orders.store lake/orders

In:     a store's directory, even while it is written.
Out:    `topic=…/day=…/batch=N/*.parquet` with each record once, and `_checkpoint/`. A day that is over is rewritten in
        few files.
Always: exactly once, even after SIGKILL. A micro-batch is a range of the log that the checkpoint has before it is
        written; if it is repeated, it overwrites its own folders with the same rows. Any reader of Parquet sees the
        same rows. A day is one of UTC. By default it archives what is there and ends; `--follow` continues.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txstore.errors import TxStoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns 0 on success, 2 for a wrong argument."""
    options = _parser().parse_args(arguments)
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    from txstore.spark.compaction import Compaction

    spark = SparkSession.builder.appName("archive commit log").getOrCreate()
    try:
        _watch(start(spark, options), options.follow)
        if not options.keep_files:
            _say_compacted(Compaction(spark, Path(options.lake)).run())
    except TxStoreError as error:
        print(f"archive_commit_log: {error}", file=sys.stderr)
        return 2
    except StreamingQueryException as error:
        print(f"archive_commit_log: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("archive_commit_log: stopped; the next run continues", file=sys.stderr)
    return 0


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Starts the query."""
    from txstore import _native
    from txstore.spark.compaction import Compaction
    from txstore.spark.versions import LIMITS

    first, visible = _native.log_range(options.store)
    _say(f"{options.store}: commit log {first:,} to {visible:,}")
    lake = Path(options.lake)

    compaction = Compaction(spark, lake)
    compaction.finish()

    def write(batch: DataFrame, number: int) -> None:
        if not options.keep_files:
            _say_compacted(compaction.run(before=number))
        write_batch(batch, number, lake)

    reader = spark.readStream.format("txstore").option("view", options.view).option("columns", "*")
    reader = reader.option("failOnDataLoss", not options.skip_lost)
    # Spark 4.0 and 4.1 cannot limit a micro-batch: it is all that is there.
    batch_bytes = options.batch_bytes or ("512m" if LIMITS else None)
    if batch_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", batch_bytes)
    writer = reader.load(options.store).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(lake / "_checkpoint"))
    every = {"processingTime": f"{options.follow} seconds"} if options.follow else {"availableNow": True}
    return writer.trigger(**every).start()


def write_batch(batch: DataFrame, number: int, lake: Path) -> None:
    """Writes one micro-batch. Repeating it writes the same folders with the same rows."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    # The day in UTC, whatever the session's zone, because a repeated batch must find its own folders.
    day = F.expr("CAST(date_add(DATE'1970-01-01', CAST(unix_millis(store_timestamp) DIV 86400000 AS INT)) AS STRING)")
    rows = batch.withColumn("day", day).withColumn("batch", F.lit(number))
    # Rows of one topic and day go to one file, unless there are very many.
    by = rows.repartition("topic", "day").sortWithinPartitions("topic", "day", "physical_offset")
    writer = by.write.partitionBy("topic", "day", "batch").option("partitionOverwriteMode", "dynamic")
    writer.mode("overwrite").parquet(str(lake))


def _watch(query: StreamingQuery, follow: float) -> None:
    """Prints what each batch did, until the query ends."""
    begin, seen = time.monotonic(), -1
    while not query.awaitTermination(1):
        seen = _progress(query, seen, begin)
    _progress(query, seen, begin)
    if not follow:
        _say(f"{time.monotonic() - begin:6.1f} s  everything is archived")


def _progress(query: StreamingQuery, seen: int, begin: float) -> int:
    for progress in query.recentProgress:
        if progress.batchId > seen and progress.numInputRows:
            seen = progress.batchId
            end = progress.sources[0].endOffset
            _say(f"{time.monotonic() - begin:6.1f} s  batch {seen}: {progress.numInputRows:,} records, up to {end}")
    return seen


def _say_compacted(days: Sequence[Path]) -> None:
    for day in days:
        _say(f"{day.parent.name}/{day.name}: compacted")


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="archive_commit_log.py", description=about)
    parser.add_argument("store", help="the store's directory, as the driver and the executors see it")
    parser.add_argument("lake", help="a folder for the archive alone, as the driver and the executors see it")
    parser.add_argument(
        "--view", choices=("commitlog", "messages"), default="commitlog",
        help="commitlog: every record, half and op messages too; messages: what consumers can see (commitlog)",
    )  # fmt: skip
    parser.add_argument("--batch-bytes", metavar="SIZE", help="bytes of the log per batch (512m)")
    parser.add_argument(
        "--follow", type=float, default=0, metavar="SECONDS", help="continue, with a batch every SECONDS"
    )
    parser.add_argument(
        "--skip-lost", action="store_true", help="continue after what retention removed before it was archived"
    )
    parser.add_argument(
        "--keep-files", action="store_true", help="do not rewrite the files of a day when the next one has begun"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
