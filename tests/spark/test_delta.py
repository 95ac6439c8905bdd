"""Guards the recipe into Delta: a micro-batch that is written and then repeated is in the table once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import missing, per_trigger

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


def test_repeated_batch_is_in_the_table_once(orders: Path, tmp_path: Path) -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
    from tests.spark.delta import DELTA, jar

    if jar() is None:
        pytest.skip(f"Delta {DELTA} has no build for this version of Spark")
    first = run(orders, tmp_path)
    assert first["rows"] == first["distinct"] == 1_034
    assert first["batches"] > (3 if per_trigger(any="1") else 0)
    # As after a kill between the write and the commit: Spark repeats the last batch.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)
    assert run(orders, tmp_path) == first


def run(store: Path, work: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.delta", str(store), str(work / "checkpoint"), str(work / "table")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
