"""The story: a table that turns a ratio round tells the opposite of what was measured, and nobody would see it."""

from __future__ import annotations

import json

from benches.peers.growth import Point, markdown
from benches.peers.table import Row
from benches.python.measure import Figure


def row(ours: float, theirs: float, unit: str, *, less_is_better: bool) -> Row:
    return Row("engine", "work", "us", Figure((ours,)), "them", Figure((theirs,)), unit, less_is_better)


def test_a_ratio_above_one_says_that_ours_is_better() -> None:
    rate, seconds = row(300, 100, "/s", less_is_better=False).ratio, row(2, 8, "s", less_is_better=True).ratio
    assert rate is not None
    assert seconds is not None
    assert (rate.median, seconds.median) == (3, 4)


def test_nothing_has_no_ratio() -> None:
    found = row(0, 20_406, "bytes", less_is_better=True)
    assert found.ratio is None
    assert found.line() == "| work | us: 0 bytes | them: 20,406 bytes | – |"


def test_a_row_comes_back_from_json_as_it_was() -> None:
    found = row(2, 8, "s", less_is_better=True)
    assert Row.of(json.loads(json.dumps(found.plain()))) == found


def test_growth_is_of_costs_whether_a_rate_or_a_time_was_measured() -> None:
    points = [
        Point("topics", "make", 1, 100, "/s"),
        Point("topics", "make", 10, 25, "/s"),
        Point("topics", "open", 1, 2, "ms"),
        Point("topics", "open", 10, 6, "ms"),
    ]
    lines = markdown(points).splitlines()
    assert lines[2:4] == ["| make | 100/s | 25/s | 4.00 |", "| open | 2 ms | 6 ms | 3.00 |"]


def test_a_size_without_a_figure_leaves_its_cell_empty() -> None:
    points = [
        Point("topics", "make", 1, 4, "ms"),
        Point("topics", "make", 10, 8, "ms"),
        Point("topics", "open", 10, 6, "ms"),
    ]
    assert markdown(points).splitlines()[3] == "| open |  | 6 ms | 1.00 |"
