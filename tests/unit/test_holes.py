"""Guards against lost pages: a page of the log that reads as zeros is never taken for the end of the log.

A scan names file and byte; told to skip, it loses exactly what is damaged. The same holds for planned ranges, `check`
and an opening.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.spark.holes import HOLES, SIZES, Hole, copy_store, dig, write
from tests.unit.conftest import Run
from txstore import _native

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")


@pytest.fixture(scope="module", params=sorted(SIZES))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("holes") / "whole.store"
    write(path, SIZES[request.param])
    return path, SIZES[request.param]


@pytest.fixture
def damaged(whole: tuple[Path, int], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Hole]]:
    path, file_size = whole
    copy = tmp_path / "orders.store"
    copy_store(path, copy)
    hole = dig(copy, request.param, file_size)
    if hole is None:
        pytest.skip("a log in one file has no such page")
    yield copy, hole
    shutil.rmtree(copy)


def found(path: Path, **options: Any) -> list[int]:
    table = pa.table(txstore.scan(path, view="commitlog", columns=["physical_offset"], **options))
    offsets: list[int] = table["physical_offset"].to_pylist()
    return offsets


@pytest.mark.parametrize("damaged", HOLES, indirect=True)
def test_scan_names_the_hole_or_skips_exactly_it(damaged: tuple[Path, Hole]) -> None:
    path, hole = damaged
    scan = txstore.scan(path, view="commitlog", columns=["physical_offset"])
    with pytest.raises(pa.ArrowException):
        pa.table(scan)
    with pytest.raises(txstore.StoreCorruptError, match="txstore store check") as raised:
        scan.raise_failure()
    assert (Path(str(raised.value.file)).name, raised.value.offset) == (hole.file, hole.offset)
    skipping = txstore.scan(path, view="commitlog", columns=["physical_offset"], bad_records="skip")
    assert tuple(pa.table(skipping)["physical_offset"].to_pylist()) == hole.kept
    assert (skipping.bad_records, skipping.bad_bytes) == (1, hole.bytes)


@pytest.mark.parametrize("damaged", HOLES, indirect=True)
def test_planned_ranges_report_the_hole_once(damaged: tuple[Path, Hole]) -> None:
    path, hole = damaged
    first, end = _native.log_range(path)
    assert end >= max(*hole.kept, *hole.lost)
    for parts in (1, 7):
        left: list[int] = []
        failures, bad_bytes = 0, 0
        for start, stop in _native.log_cut(path, first, end, parts):
            planned: dict[str, Any] = {"start_physical_offset": start, "end_physical_offset": stop}
            scan = txstore.scan(path, view="commitlog", columns=["physical_offset"], bad_records="skip", **planned)
            left += pa.table(scan)["physical_offset"].to_pylist()
            failures += scan.bad_records
            bad_bytes += scan.bad_bytes
        assert tuple(left) == hole.kept
        assert (failures, bad_bytes) == (1, hole.bytes)


@pytest.mark.parametrize("damaged", HOLES, indirect=True)
def test_opening_names_the_hole(damaged: tuple[Path, Hole]) -> None:
    path, hole = damaged
    (path / "txstore" / "snapshot").unlink()
    for read_only in (True, False):
        with pytest.raises(txstore.StoreCorruptError) as raised:
            txstore.open(path, read_only=read_only)
        assert (Path(str(raised.value.file)).name, raised.value.offset) == (hole.file, hole.offset)


@pytest.mark.parametrize("damaged", ["middle record", "middle page"], indirect=True)
@pytest.mark.parametrize("options", [[], ["--deep"]])
def test_check_prints_a_line_for_a_hole(damaged: tuple[Path, Hole], options: list[str], run: Run) -> None:
    path, hole = damaged
    code, output, errors = run("store", "check", str(path), *options)
    assert code == 4, output
    told = [line for line in (output + errors).splitlines() if not line.startswith(("note", "`txstore"))]
    assert [hole.file in line for line in told if "commitlog" in line or line.startswith("DIFFERS")] == [True], told
