"""Plots ratios on one axis, with their spread, and what one operation costs against size.

In:     rows or points, or `python -m benches.peers.plot FILE.json` for those of an earlier run.
Out:    an SVG and a PNG.
Always: right of the line at 1 ours is better; axes are logarithmic, so that twice and half are equally far from it;
        limits of the machine are drawn hollow, since no store can exceed them. Growth: costs are shown as multiples of
        the cost at the first size; along the dashed line a cost grows as its size does.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches.peers.growth import Point
from benches.peers.table import Row

__all__ = ["plot_growth", "plot_ratios"]

_COLOURS = {"engine": "#1b6ca8", "wire": "#0a8754", "others": "#b5651d", "outbox": "#7b3fa0"}
_GREY = "#777777"
_TITLES = {
    "messages": "messages in the log",
    "pending": "pending transactions",
    "topics": "topics",
    "threads": "threads that send",
    "recovery": "MiB of log to recover",
}
_DIGITS = (1, 2, 5)  # Of the labels on the axis.


def plot_ratios(rows: Sequence[Row], path: Path) -> None:
    """Writes `path`.svg and `path`.png; nothing if no row has a ratio."""
    shown = [row for row in rows if row.ratio is not None]
    if not shown:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.2 + 0.27 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for at, row in enumerate(shown):
        _draw(axes, at, row)
    axes.set_yticks(range(len(shown)), [f"{row.work}  –  {row.theirs}" for row in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = (bound(value for row in shown for value in row.ratio.values) for bound in (min, max))  # type: ignore[union-attr]
    axes.set_xlim(min(0.4, low / 1.3), max(2.5, high * 1.8))
    axes.axvline(1, color="black", linewidth=1)
    axes.grid(axis="x", which="both", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    ticks = [digit * 10**power for power in range(-3, 6) for digit in _DIGITS]
    axes.set_xticks([tick for tick in ticks if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]], minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("txstore is so many times as good")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    for suffix in ("svg", "png"):
        # Without a date the same measurements make the same file.
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=110, metadata={"Date": None} if suffix == "svg" else None)


def _draw(axes: Any, at: int, row: Row) -> None:
    ratio = row.ratio
    assert ratio is not None
    colour, limit = _COLOURS.get(row.section, _GREY), row.theirs.startswith("limit")
    axes.plot([min(ratio.values), max(ratio.values)], [at, at], color=colour, linewidth=2, alpha=0.6)
    face = "white" if limit else colour
    axes.plot([ratio.median], [at], marker="o", markersize=6, color=colour, markerfacecolor=face)
    axes.annotate(
        f"{ratio.median:.2f}" if ratio.median < 100 else f"{ratio.median:,.0f}",
        (max(ratio.values), at),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=colour,
    )


def plot_growth(points: Sequence[Point], path: Path) -> None:
    """Writes `path`.svg and `path`.png: a panel for each sweep; nothing without points."""
    sweeps = list(dict.fromkeys(point.sweep for point in points))
    if not sweeps:
        return
    from matplotlib.figure import Figure

    lines = (len(sweeps) + 1) // 2
    figure = Figure(figsize=(11, 4.2 * lines), layout="constrained")
    for number, sweep in enumerate(sweeps, 1):
        here = [point for point in points if point.sweep == sweep]
        _draw_sweep(figure.add_subplot(lines, 2, number), sweep, here)
    _save(figure, path)


def _draw_sweep(axes: Any, sweep: str, points: Sequence[Point]) -> None:
    highest = 10.0
    for measure in dict.fromkeys(point.measure for point in points):
        row = [point for point in points if point.measure == measure]
        costs = [point.cost / row[0].cost for point in row]
        highest = max(highest, *costs)
        axes.plot([point.size for point in row], costs, marker="o", markersize=4, linewidth=1.4, label=measure)
    sizes = sorted({point.size for point in points})
    axes.plot([sizes[0], sizes[-1]], [1, sizes[-1] / sizes[0]], color=_GREY, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", title=_TITLES[sweep], ylabel="cost, first size = 1")
    axes.set_ylim(0.1, 8 * highest)  # Room for the names.
    axes.grid(which="major", color="#e4e4e4", linewidth=0.6)
    axes.legend(fontsize=7, loc="upper left")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_formatter("")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers.plot", description=__doc__)
    parser.add_argument("file", type=Path)
    path: Path = parser.parse_args().file
    run = json.loads(path.read_text())
    plot_ratios([Row.of(plain) for plain in run.get("rows", [])], path.with_suffix(""))
    plot_growth([Point(**plain) for plain in run.get("points", [])], path.with_suffix(""))


if __name__ == "__main__":
    main()
