"""Keeps a service's payments in Parquet, read over the network, and prints a report: the second half of a pipeline.

    spark-submit spark/payments_to_lake.py 127.0.0.1:9876 lake/payments

In:     the address of `examples/payments_service.py`, or of a RocketMQ name server; messages of JSON.
Out:    Parquet with each payment once, and `_checkpoint/`; a line with the number and the sum of all payments.
Always: executors need no access to the service's disk. A run continues where the last one ended, also after a kill.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "payments"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns 0 on success, 1 if the stream fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("brokers", help="the address of the service's store, HOST:PORT")
    parser.add_argument("lake", type=Path, help="the folder of the payments")
    options = parser.parse_args(arguments)
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("payments to lake").getOrCreate()
    try:
        copy(spark, options.brokers, options.lake)
    except StreamingQueryException as error:
        print(f"payments_to_lake: {error}", file=sys.stderr)
        return 1
    count, amount = report(spark, options.lake)
    print(f"{count} payments of {amount}")
    return 0


def copy(spark: SparkSession, brokers: str, lake: Path) -> None:
    """Appends the payments that there are and that the lake does not have yet."""
    stream = spark.readStream.format("txstore").option("brokers", brokers).option("subscribe", TOPIC)
    messages = stream.option("columns", "body,store_timestamp").load()
    payment = "from_json(CAST(body AS STRING), 'order_id BIGINT, amount BIGINT') AS payment"
    rows = messages.selectExpr(payment, "store_timestamp AS paid_at").select("payment.*", "paid_at")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(lake / "_checkpoint"))
    writer.trigger(availableNow=True).start(str(lake)).awaitTermination()


def report(spark: SparkSession, lake: Path) -> tuple[int, int]:
    """Returns the number of payments and their sum."""
    found = spark.read.parquet(str(lake)).selectExpr("count(*) AS count", "sum(amount) AS amount").first()
    assert found is not None
    return found[0], found[1] or 0


if __name__ == "__main__":
    sys.exit(main())
