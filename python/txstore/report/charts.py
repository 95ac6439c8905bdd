"""Charts: inline SVG from numbers.

In:     stacked series over labelled steps.
Out:    SVG text with axes, units and a tooltip for each bar.
Always: colours are CSS classes of the page, so both themes work. Nothing is loaded.
Not here: the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["NARROW", "WIDE", "Series", "columns", "nice_ticks", "powers_of_ten", "share_bar"]

WIDE, NARROW = 1_100, 400
_HEIGHT = 300
_RIGHT, _TOP, _BOTTOM = 24, 28, 48
_TICK_GAP, _DIGIT = 8, 8  # The gap between a tick's number and its line; the width of a digit, at most.


@dataclass(frozen=True)
class Series:
    """One colour of a stack: its CSS class, its name, and a value for each step."""

    css: str
    name: str
    values: Sequence[int]


def nice_ticks(highest: int, count: int = 4) -> list[int]:
    """Returns round whole numbers from 0 to `highest` or a little above."""
    if highest <= 0:
        return [0, 1]
    power = 10 ** max(0, math.floor(math.log10(highest / count)))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= highest)
    return list(range(0, highest + step, step))


def powers_of_ten(highest: int) -> list[int]:
    """Returns 0, 1, 10, … to `highest` or above."""
    return [0, *(10**power for power in range(len(str(max(highest - 1, 0))) + 1))]


def columns(
    series: Sequence[Series],
    labels: Sequence[str],
    *,
    title: str,
    x_axis: str,
    y_axis: str,
    shown_labels: Callable[[int], bool],
    shown_text: Sequence[str] | None = None,
    label_at: float = 0.0,
    is_logarithmic: bool = False,
    width: int = WIDE,
) -> str:
    """Returns stacked columns, one for each label. `shown_text` has shorter labels for the axis. They are at the left
    edges of their columns, or with `label_at=0.5` below the middles. With a logarithmic scale, a column's height is the
    logarithm of its sum, and its colours share it by count."""
    stacks = [sum(one.values[step] for one in series) for step in range(len(labels))]
    highest = max(stacks, default=0)
    ticks = powers_of_ten(highest) if is_logarithmic else nice_ticks(highest)
    left = 2 * _TICK_GAP + _DIGIT * len(f"{ticks[-1]:,}")
    floor = _HEIGHT - _BOTTOM
    scale = _Scale(ticks, floor - _TOP, is_logarithmic)
    step_width = (width - left - _RIGHT) / max(1, len(labels))
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="axis-name" x="{left}" y="14">{escape(y_axis)}</text>',
        f'<text class="axis-name" x="{width - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_axis)}</text>',
    ]
    for tick in ticks:
        y = floor - scale.height(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - _TICK_GAP}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>')
    for step, label in enumerate(labels):
        parts += _column(series, step, label, left + step * step_width, step_width, floor, scale)
        if shown_labels(step):
            x = left + (step + label_at) * step_width
            text = escape((shown_text or labels)[step])
            parts.append(f'<text class="tick" x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<line class="base" x1="{left}" x2="{width - _RIGHT}" y1="{floor}" y2="{floor}"/></svg>')
    return "".join(parts)


@dataclass(frozen=True)
class _Scale:
    """The y axis."""

    ticks: Sequence[int]
    pixels: float
    is_logarithmic: bool

    def height(self, value: int) -> float:
        """Returns how high a value is. On a logarithmic scale, 0 is as far below 1 as 1 below 10."""
        if not self.is_logarithmic:
            return value * self.pixels / self.ticks[-1]
        steps = len(self.ticks) - 1
        return (1 + math.log10(value)) * self.pixels / steps if value else 0.0


def _column(
    series: Sequence[Series], step: int, label: str, left: float, width: float, floor: float, scale: _Scale
) -> list[str]:
    """Returns the bars of one stack, with all its numbers as the tooltip."""
    told = "\n".join([label, *(f"{one.name}: {one.values[step]:,}" for one in series if one.values[step])])
    gap = min(2.0, width * 0.15)
    whole = sum(one.values[step] for one in series)
    y, parts = floor, []
    for one in series:
        value = one.values[step]
        if value:
            height = max(scale.height(whole) * value / whole, 0.75)
            y -= height
            parts.append(
                f'<rect class="{one.css}" x="{left + gap / 2:.1f}" y="{y:.1f}" width="{width - gap:.1f}" '
                f'height="{height:.1f}"/>'
            )
    return [f"<g><title>{escape(told)}</title>{''.join(parts)}</g>"] if parts else []


def share_bar(series: Sequence[Series]) -> str:
    """Returns one horizontal bar of shares, for a table's cell."""
    total = sum(one.values[0] for one in series)
    x, parts = 0.0, []
    for one in series:
        width = 100 * one.values[0] / total if total else 0
        if width:
            told = escape(f"{one.name}: {one.values[0]:,} ({width:.3g} %)")
            position = f'x="{x:.2f}" y="0" width="{width:.2f}" height="10"'
            parts.append(f'<rect class="{one.css}" {position}><title>{told}</title></rect>')
            x += width
    return f'<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'
