"""Guards benchmark tables: a ratio that is inverted by mistake would report the opposite of what was measured."""

from __future__ import annotations

import json

from benches.peers.growth import Point, markdown
from benches.peers.table import Row
from benches.python.measure import Measured


def row(ours: float, theirs: float, unit: str, *, less_is_better: bool) -> Row:
    return Row("engine", "work", "us", Measured((ours,)), "them", Measured((theirs,)), unit, less_is_better)


def test_ratio_above_one_means_that_ours_is_better() -> None:
    rate, seconds = row(300, 100, "/s", less_is_better=False).ratio, row(2, 8, "s", less_is_better=True).ratio
    assert rate is not None
    assert seconds is not None
    assert (rate.median, seconds.median) == (3, 4)


def test_zero_has_no_ratio() -> None:
    found = row(0, 20_406, "bytes", less_is_better=True)
    assert found.ratio is None
    assert found.line() == "| work | us: 0 bytes | them: 20,406 bytes | – |"


def test_row_survives_a_round_trip_through_json() -> None:
    found = row(2, 8, "s", less_is_better=True)
    assert Row.of(json.loads(json.dumps(found.plain()))) == found


def test_growth_is_of_costs_for_rates_and_times() -> None:
    points = [
        Point("topics", "make", 1, 100, "/s"),
        Point("topics", "make", 10, 25, "/s"),
        Point("topics", "open", 1, 2, "ms"),
        Point("topics", "open", 10, 6, "ms"),
    ]
    lines = markdown(points).splitlines()
    assert lines[2:4] == ["| make | 100/s | 25/s | 4.00 |", "| open | 2 ms | 6 ms | 3.00 |"]


def test_size_without_a_measurement_leaves_its_cell_empty() -> None:
    points = [
        Point("topics", "make", 1, 4, "ms"),
        Point("topics", "make", 10, 8, "ms"),
        Point("topics", "open", 10, 6, "ms"),
    ]
    assert markdown(points).splitlines()[3] == "| open |  | 6 ms | 1.00 |"
