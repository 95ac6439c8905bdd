"""The recipe into Delta of docs/data/spark.md, as a program: `python -m tests.spark.delta STORE CHECKPOINT TABLE`.

In:     a store, and folders for the checkpoint and the table. Delta's jars come from Maven Central.
Out:    a line of JSON: the rows of the table, and how many of them are distinct, after the recipe has run; its
        micro-batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.spark.query import builder
from tests.unit.pages import blocks
from txstore.spark.versions import LIMITS, SPARK_VERSION

DELTA, SERIES = "4.4.0", ("4.0", "4.1", "4.2")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "spark.md"


def jar() -> str | None:
    """Delta for this version of Spark, by its name in Maven Central; None if there is none."""
    series = ".".join(SPARK_VERSION.split(".")[:2])
    return f"io.delta:delta-spark_{series}_2.13:{DELTA}" if series in SERIES else None


def only_central(folder: Path) -> Path:
    """Ivy's settings without Maven's local folder, which can have a package's description without its jar."""
    resolver = '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers>'
    settings = folder / "ivysettings.xml"
    settings.write_text(f'<ivysettings><settings defaultResolver="central"/>{resolver}</ivysettings>')
    return settings


def recipe(store: str, checkpoint: str, table: str) -> str:
    """The page's program, with these paths and small micro-batches."""
    (program,) = (text for language, text in blocks(PAGE) if language == "python" and "txnAppId" in text)
    for shown, used in (
        ('"orders.store"', repr(store)),
        ('"checkpoint"', repr(checkpoint)),
        ('"lake/orders"', repr(table)),
        (", maxOffsetsPerTrigger=200_000", ", maxOffsetsPerTrigger=150" if LIMITS else ""),
    ):
        assert shown in program
        program = program.replace(shown, used)
    return program


def main(store: str, checkpoint: str, table: str) -> None:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.jars.packages": jar() or "",
        "spark.jars.ivySettings": str(only_central(Path(checkpoint).parent)),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = builder().config(map=settings).getOrCreate()
    exec(recipe(store, checkpoint, table), {"spark": spark})
    rows = spark.read.format("delta").load(table)
    batches = len([path for path in (Path(checkpoint) / "commits").iterdir() if path.name.isdigit()])
    print(json.dumps({"rows": rows.count(), "distinct": rows.select("physical_offset").distinct().count(),
                      "batches": batches}), flush=True)  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
