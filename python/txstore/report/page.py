"""Page: the report as one HTML file.

In:     a summary, the last run's numbers, where the rows are.
Out:    HTML with inline style, charts and a script that sorts tables and copies commands, light or dark like the
        reader's screen. The templates are in `templates/`.
Always: no network. Without the script everything can be read. The important numbers come first. Every time is UTC.
Not here: where the numbers come from.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from txstore.report.charts import NARROW, WIDE, Series, columns, share_bar
from txstore.report.last_run import LastRun
from txstore.report.summary import (
    BINS_PER_DECADE,
    CHECKS_MAX,
    STATES,
    Summary,
    Suspicion,
    Total,
    duration,
    moment,
)

__all__ = ["page"]

_NAMES = {state: state.replace("_", " ") for state in STATES} | {"finished_unknown": "finished, unknown"}
_PERCENTS = ("median", "90 %", "95 %", "99 %", "99.9 %", "longest")


@dataclass(frozen=True)
class _Tile:
    name: str
    value: str
    note: str
    is_bad: bool = False
    # The difference from the last run.
    change: str = ""


@dataclass(frozen=True)
class _Cell:
    """A table's cell. `key` is what a column is sorted by, if not the text."""

    text: str
    css: str = ""
    key: float | None = None


def page(summary: Summary, last: LastRun | None = None, rows: Path | None = None) -> str:
    """Returns the HTML file. `rows`: the folder of the Parquet files."""
    environment = Environment(
        loader=PackageLoader("txstore.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    first, end = summary.log
    found = [one for one in summary.suspicions if one.count]
    return environment.get_template("page.html").render(
        title=f"Transactions of {Path(summary.store).name}",
        store=summary.store,
        log=f"{first:,} to {end:,} ({_bytes(end - first)})",
        now=moment(summary.now_ms),
        last=last and moment(last.now_ms),
        tiles=_tiles(summary, last),
        found=found,
        clean=", ".join(one.name.lower() for one in summary.suspicions if not one.count),
        change=lambda one: _change(one.count, last.suspicions.get(one.name, 0) if last else None),
        charts=_charts(summary),
        percentiles=list(zip(_PERCENTS, map(duration, summary.all.latencies_ms), strict=True)),
        totals=[("topic", *_totals(summary.topics, summary.now_ms)),
                ("producer group", *_totals(summary.groups, summary.now_ms))],
        listed=[(one, _sql(one, rows), [_listed(row, summary) for row in one.rows]) for one in found],
        anchor=_anchor,
        read=f"txstore.open({summary.store!r}, read_only=True).store.read_at(offset)",
    )  # fmt: skip


def _tiles(summary: Summary, last: LastRun | None) -> list[_Tile]:
    """Returns the most important numbers."""
    total = summary.all
    counts = {one.name: one.count for one in summary.suspicions}
    by_name = dict(zip(_PERCENTS, total.latencies_ms, strict=True))
    late, twice = counts["Pending too long"], counts["Committed twice"]
    pending, discarded = total.counts.get("pending", 0), total.counts.get("discarded", 0)
    oldest = duration(_age(summary.now_ms, total.oldest_pending_ms))
    of = f"{_count(len(summary.topics), 'topic')}, {_count(len(summary.groups), 'group')}"
    tiles = [
        _Tile("Transactions", f"{total.transactions:,}", of,
              change=_change(total.transactions, last.transactions if last else None)),
        _share_of("committed", total, last),
        _share_of("rolled_back", total, last),
        _Tile("Pending", f"{pending:,}", f"oldest {oldest}" if pending else "none",
              change=_change(pending, last.counts.get("pending", 0) if last else None)),
        _Tile("Pending too long", f"{late:,}", _over(summary.pending_after_ms), late > 0),
        _Tile("Discarded", f"{discarded:,}", "can be resumed", discarded > 0,
              _change(discarded, last.counts.get("discarded", 0) if last else None)),
        _Tile("Committed twice", f"{twice:,}", "seen twice by consumers", twice > 0),
        _Tile("Decided within", duration(by_name["median"]),
              f"the median; 99 % {duration(by_name['99 %'])}, 99.9 % {duration(by_name['99.9 %'])}",
              change=f"99 % was {duration(last.latencies_ms[_PERCENTS.index('99 %')])}" if last else ""),
    ]  # fmt: skip
    named = {name: last.suspicions.get(name, 0) for name in counts} if last else {}
    return [
        replace(tile, change=_change(counts[tile.name], named[tile.name])) if tile.name in named else tile
        for tile in tiles
    ]


def _share_of(state: str, total: Total, last: LastRun | None) -> _Tile:
    count = total.counts.get(state, 0)
    before = _share(last.counts.get(state, 0), last.transactions) if last else None
    return _Tile(
        _NAMES[state].capitalize(),
        _share(count, total.transactions),
        f"{count:,}",
        change=f"was {before}" if before else "",
    )


def _change(now: int, before: int | None) -> str:
    """Returns the difference from the last run; empty without one."""
    if before is None:
        return ""
    return f"{now - before:+,}" if now != before else "as before"


def _charts(summary: Summary) -> list[dict[str, Any]]:
    """Returns titles, legends and each chart twice: for wide and for narrow screens."""
    found = [("Transactions over time", _over_time, _states(summary.all)),
             ("Time to the decision", _latencies, _decided(summary.all))]  # fmt: skip
    if summary.checks:
        found.append(("Checks that a broker sent", _checks, _states(summary.all)))
    return [
        {
            "title": title,
            "legend": [(state, _NAMES[state]) for state in states],
            "wide": Markup(draw(summary, WIDE)),  # noqa: S704 - SVG whose texts are escaped
            "narrow": Markup(draw(summary, NARROW)),  # noqa: S704
        }
        for title, draw, states in found
    ]


def _states(total: Total) -> list[str]:
    return [state for state in STATES if total.counts.get(state)]


def _decided(total: Total) -> list[str]:
    return [state for state in _states(total) if state not in ("pending", "finished_unknown")]


def _stacks(counts: dict[tuple[int, str], int], states: Sequence[str], steps: Sequence[int]) -> list[Series]:
    return [Series(state, _NAMES[state], [counts.get((step, state), 0) for step in steps]) for state in states]


def _over_time(summary: Summary, width: int) -> str:
    if not summary.over_time:
        return "<p>No transaction yet.</p>"
    starts = [start for start, _ in summary.over_time]
    steps = list(range(min(starts), max(starts) + 1, summary.bucket_ms))
    every = max(1, len(steps) // (6 if width == WIDE else 3))
    return columns(
        _stacks(summary.over_time, _states(summary.all), steps),
        [moment(step) for step in steps],
        title="Transactions over time, by state",
        x_axis=f"prepared at, UTC, from {_day(steps[0])}; a column is {duration(summary.bucket_ms)}",
        y_axis="transactions",
        shown_labels=lambda step: step % every == 0,
        shown_text=[_short(step, summary.bucket_ms, steps[-1] - steps[0]) for step in steps],
        width=width,
    )


def _latencies(summary: Summary, width: int) -> str:
    if not summary.latencies:
        return "<p>No transaction is decided yet.</p>"
    bins = [number for number, _ in summary.latencies]
    low, high = (min(bins) // BINS_PER_DECADE) * BINS_PER_DECADE, max(bins)
    high = max(high, low + 2 * BINS_PER_DECADE)
    steps = list(range(low, high + 1))
    edges = [10 ** (step / BINS_PER_DECADE) for step in [*steps, high + 1]]
    labels = [f"{duration(a)} to {duration(b)}" for a, b in pairwise(edges)]
    least = ""
    if low == 0:
        # Whole milliseconds: below the second column are 0 and 1.
        labels[0], least = "1 ms and less", "; first: 1 ms and less"
    every = BINS_PER_DECADE * (1 if width == WIDE or high - low < 5 * BINS_PER_DECADE else 2)
    return columns(
        _stacks(summary.latencies, _decided(summary.all), steps),
        labels,
        title="Time from the half message to the decision, by outcome",
        x_axis=f"from the half message to the decision{least}",
        y_axis="transactions (logarithmic scales; colours share a column by count)",
        shown_labels=lambda step: (steps[step] - low) % every == 0,
        shown_text=[duration(edge) for edge in edges],
        is_logarithmic=True,
        width=width,
    )


def _checks(summary: Summary, width: int) -> str:
    steps = list(range(1, max(max(times for times, _ in summary.checks), 3) + 1))
    labels = [f"{step} or more" if step == CHECKS_MAX else str(step) for step in steps]
    return columns(
        _stacks(summary.checks, _states(summary.all), steps),
        ["asked once", *(f"asked {label} times" for label in labels[1:])],
        title="How often a broker asked, by outcome",
        x_axis="how often a broker asked",
        y_axis="transactions",
        shown_labels=lambda _: True,
        shown_text=labels,
        label_at=0.5,
        width=width,
    )


def _totals(totals: Sequence[Total], now_ms: int) -> tuple[list[str], list[tuple[str, Markup, list[_Cell]]]]:
    """Returns the heads after the name and the shares, and a row for each total: its name, its shares, the cells."""
    states = [state for state in STATES if any(one.counts.get(state) for one in totals)]
    heads = ["transactions", *(_NAMES[state] for state in states), "twice", *_PERCENTS, "oldest pending"]
    rows = []
    for one in totals:
        bar = share_bar([Series(state, _NAMES[state], [one.counts[state]]) for state in states])
        numbers = [one.transactions, *(one.counts[state] for state in states), one.twice]
        cells = [_number(value) for value in numbers]
        cells += [_span(value) for value in one.latencies_ms]
        cells.append(_span(_age(now_ms, one.oldest_pending_ms)))
        rows.append((one.name, Markup(bar), cells))  # noqa: S704
    return heads, rows


def _listed(row: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    """Returns the values of one suspicious transaction."""
    known = row["transaction_id"]
    halves = list(zip(row["half_queue_offsets"], row["half_physical_offsets"], strict=False))
    records = [("half", [f"{physical:,} (queue offset {queue:,})" for queue, physical in halves])]
    records += [
        (name, [f"{offset:,}" for offset in row[f"{column}_physical_offsets"]])
        for name, column in (("final", "final"), ("discarded", "discarded"), ("op", "op"))
    ]
    if not halves and row["half_queue_offsets"]:
        records.append(("half queue offset", [f"{offset:,}" for offset in row["half_queue_offsets"]]))
    return {
        "id": known,
        "explain": known and f"txstore tx explain {shlex.quote(summary.store)} {shlex.quote(known)}",
        "cells": [
            _Cell(row["producer_group"] or "–"),
            _Cell(row["real_topic"] or "–"),
            _Cell(moment(row["prepared_ms"]), "number"),
            _span(_age(summary.now_ms, row["prepared_ms"])),
            _span(row["latency_ms"]),
            _number(row["check_times"]),
        ],
        "records": [(name, _some(offsets)) for name, offsets in records if offsets],
    }


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")


def _sql(one: Suspicion, rows: Path | None) -> str:
    """Returns the SQL of DuckDB that lists all of one kind."""
    return f"SELECT * FROM '{rows}/**/*.parquet' WHERE {one.where}" if rows else ""  # noqa: S608 - shown, not run


def _number(value: int) -> _Cell:
    return _Cell(f"{value:,}", "number" if value else "number zero", value)


def _span(milliseconds: int | None) -> _Cell:
    return _Cell(duration(milliseconds), "number", -1 if milliseconds is None else milliseconds)


def _over(milliseconds: int) -> str:
    return f"over {duration(milliseconds)}" if milliseconds else "whatever its age"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "–"


def _age(now_ms: int, then_ms: int | None) -> int | None:
    return None if then_ms is None else max(0, now_ms - then_ms)


def _anchor(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def _bytes(count: int) -> str:
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, count.bit_length() - 1) // 10)
    return f"{count / 1_024**power:,.4g} {units[power]}"


def _day(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1_000, UTC):%Y-%m-%d}"


def _short(milliseconds: int, width_ms: int, span_ms: int) -> str:
    at = datetime.fromtimestamp(milliseconds / 1_000, UTC)
    if span_ms > 3 * 86_400_000:
        return f"{at:%m-%d}"
    if width_ms < 1_000:
        return f"{at:%H:%M:%S}.{milliseconds % 1_000:03}"
    return f"{at:%H:%M:%S}" if width_ms < 60_000 else f"{at:%m-%d %H:%M}"
