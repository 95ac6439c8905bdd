"""A query whose driver and executors cannot see the stores: `python -m tests.spark.unseen BROKERS OUT ROWS FOLDER`.

In:     the address of brokers, a folder for what is read, rows per micro-batch, the folder of the stores; a mount
        namespace that hides it.
Out:    OUT/batch and OUT/stream, Parquet files of the topic `orders` with all columns.
Always: ends with an error if the folder of the stores has anything in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.query import builder


def main(brokers: str, out: Path, rows: str, folder: Path) -> None:
    """Reads all messages twice, as a batch and as a stream up to the present end."""
    assert not list(folder.iterdir()), f"{folder} can be seen"
    spark = builder().getOrCreate()
    asked = {"brokers": brokers, "subscribe": "orders", "columns": "*"}
    batch = spark.read.format("txstore").options(**asked, minPartitions="6").load()
    batch.write.parquet(str(out / "batch"))
    stream = spark.readStream.format("txstore").options(**asked, maxOffsetsPerTrigger=rows).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    writer.trigger(availableNow=True).start(str(out / "stream")).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
