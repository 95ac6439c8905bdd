"""Page: the report as one HTML file.

In:     a summary.
Out:    HTML with inline style and charts, light or dark like the reader's screen.
Always: no network and no script. The important numbers come first. Every time is UTC.
Not here: where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path

from pyspark.sql import Row

from txstore.spark.report.charts import Series, columns, share_bar
from txstore.spark.report.style import STYLE
from txstore.spark.report.summary import (
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


def page(summary: Summary) -> str:
    """Returns the HTML file."""
    title = f"Transactions of {Path(summary.store).name}"
    found = [one for one in summary.suspicions if one.count]
    body = [
        _head(title, summary),
        _tiles(summary),
        _attention(summary.suspicions),
        _section("Transactions over time", _over_time(summary), _legend(_states(summary.all))),
        _section("Time to the decision", _latencies(summary), _legend(_decided(summary.all))),
    ]
    if summary.checks:
        body.append(_section("Checks that a broker sent", _checks(summary), _legend(_states(summary.all))))
    body += [
        _section("By topic", _totals("topic", summary.topics, summary.now_ms)),
        _section("By producer group", _totals("producer group", summary.groups, summary.now_ms)),
        *(_listed(one, summary.now_ms) for one in found),
        _words(summary),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(title: str, summary: Summary) -> str:
    first, end = summary.log
    return (
        f"<header><h1>{escape(title)}</h1><p>{escape(summary.store)} · commit log {first:,} to {end:,} "
        f"({_bytes(end - first)}) · ages as of {moment(summary.now_ms)} UTC</p></header>"
    )


def _tiles(summary: Summary) -> str:
    """Returns the most important numbers."""
    total = summary.all
    counts = {one.name: one.count for one in summary.suspicions}
    half, _, most, longest = total.latencies_ms
    late, twice = counts["Pending too long"], counts["Committed twice"]
    pending, discarded = total.counts.get("pending", 0), total.counts.get("discarded", 0)
    oldest = duration(_age(summary.now_ms, total.oldest_pending_ms))
    of = f"{_count(len(summary.topics), 'topic')}, {_count(len(summary.groups), 'group')}"
    tiles = [
        _tile("Transactions", f"{total.transactions:,}", of),
        _tile("Committed", _share(total.counts.get("committed", 0), total.transactions),
              f"{total.counts.get('committed', 0):,}"),
        _tile("Rolled back", _share(total.counts.get("rolled_back", 0), total.transactions),
              f"{total.counts.get('rolled_back', 0):,}"),
        _tile("Pending", f"{pending:,}", f"oldest {oldest}" if pending else "none"),
        _tile("Pending too long", f"{late:,}", _over(summary.pending_after_ms), bad=late > 0),
        _tile("Discarded", f"{discarded:,}", "can be resumed", bad=discarded > 0),
        _tile("Committed twice", f"{twice:,}", "seen twice by consumers", bad=twice > 0),
        _tile("Decided within", duration(half), f"the median; 99 % {duration(most)}, all {duration(longest)}"),
    ]  # fmt: skip
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _tile(name: str, value: str, note: str, bad: bool = False) -> str:
    css = "tile bad" if bad else "tile"
    return (
        f'<div class="{css}" data-name="{escape(name)}"><h2>{escape(name)}</h2><strong>{escape(value)}</strong>'
        f"<span>{escape(note)}</span></div>"
    )


def _attention(suspicions: Sequence[Suspicion]) -> str:
    items = []
    for one in (one for one in suspicions if one.count):
        link = f'<a href="#{_anchor(one.name)}"><b>{one.count:,}</b> {escape(one.name.lower())}</a>'
        items.append(f"<li>{link} – {escape(one.why)}</li>")
    clean = ", ".join(one.name.lower() for one in suspicions if not one.count)
    if clean:
        items.append(f'<li class="clean">none: {escape(clean)}</li>')
    return f'<section><h2>To look at</h2><ul class="attention">{"".join(items)}</ul></section>'


def _section(title: str, inside: str, legend: str = "") -> str:
    return f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{legend}{inside}</section>'


def _legend(states: Sequence[str]) -> str:
    keys = (f'<span><i class="{state}"></i>{escape(_NAMES[state])}</span>' for state in states)
    return f'<p class="legend">{"".join(keys)}</p>'


def _states(total: Total) -> list[str]:
    return [state for state in STATES if total.counts.get(state)]


def _decided(total: Total) -> list[str]:
    return [state for state in _states(total) if state not in ("pending", "finished_unknown")]


def _stacks(counts: dict[tuple[int, str], int], states: Sequence[str], steps: Sequence[int]) -> list[Series]:
    return [Series(state, _NAMES[state], [counts.get((step, state), 0) for step in steps]) for state in states]


def _over_time(summary: Summary) -> str:
    if not summary.over_time:
        return "<p>No transaction yet.</p>"
    starts = [start for start, _ in summary.over_time]
    steps = list(range(min(starts), max(starts) + 1, summary.bucket_ms))
    every = max(1, len(steps) // 6)
    return columns(
        _stacks(summary.over_time, _states(summary.all), steps),
        [moment(step) for step in steps],
        title="Transactions over time, by state",
        x_axis=f"prepared at, UTC, from {_day(steps[0])}; a column is {duration(summary.bucket_ms)}",
        y_axis="transactions",
        shown_labels=lambda step: step % every == 0,
        shown_text=[_short(step, summary.bucket_ms, steps[-1] - steps[0]) for step in steps],
    )


def _latencies(summary: Summary) -> str:
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
        labels[0], least = "1 ms and less", "; the first column: 1 ms and less"
    return columns(
        _stacks(summary.latencies, _decided(summary.all), steps),
        labels,
        title="Time from the half message to the decision, by outcome",
        x_axis=f"from the half message to the decision (a logarithmic scale{least})",
        y_axis="transactions",
        shown_labels=lambda step: steps[step] % BINS_PER_DECADE == 0,
        shown_text=[duration(edge) for edge in edges],
    )


def _checks(summary: Summary) -> str:
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
    )


def _totals(what: str, totals: Sequence[Total], now_ms: int) -> str:
    """Returns a row for each total, with its states also as a bar."""
    states = [state for state in STATES if any(one.counts.get(state) for one in totals)]
    heads = [what, "transactions", "shares", *(_NAMES[state] for state in states)]
    heads += ["twice", "median", "95 %", "99 %", "longest", "oldest pending"]
    rows = []
    for one in totals:
        bar = share_bar([Series(state, _NAMES[state], [one.counts[state]]) for state in states])
        cells = [f"<th>{escape(one.name)}</th>", _number(one.transactions), f"<td>{bar}</td>"]
        cells += [_number(one.counts[state]) for state in states]
        cells += [_number(one.twice), *(_cell(duration(value), "number") for value in one.latencies_ms)]
        rows.append([*cells, _cell(duration(_age(now_ms, one.oldest_pending_ms)), "number")])
    return _table(heads, rows, len(totals))


def _listed(one: Suspicion, now_ms: int) -> str:
    heads = ["transaction", "producer group", "topic", "prepared (UTC)", "age", "took", "asked", "half queue"]
    heads += ["half at", "final at", "discarded at", "op at"]
    rows = [_cells(row, now_ms) for row in one.rows]
    more = f"<p>The {len(rows)} oldest of {one.count:,}.</p>" if one.count > len(rows) else ""
    return (
        f'<section id="{_anchor(one.name)}"><h2>{escape(one.name)} <small>{one.count:,}</small></h2>'
        f"<p>{escape(one.why)}</p>{_table(heads, rows, one.count)}{more}</section>"
    )


def _cells(row: Row, now_ms: int) -> list[str]:
    offsets = ("half_queue_offsets", "half_physical_offsets", "final_physical_offsets", "discarded_physical_offsets",
              "op_physical_offsets")  # fmt: skip
    return [
        f"<th><code>{escape(row['transaction_id'] or '–')}</code></th>",
        _cell(row["producer_group"] or "–"),
        _cell(row["real_topic"] or "–"),
        _cell(moment(row["prepared_ms"]), "number"),
        _cell(duration(_age(now_ms, row["prepared_ms"])), "number"),
        _cell(duration(row["latency_ms"]), "number"),
        _number(row["check_times"]),
        *(_cell(_offsets(row[name]), "number") for name in offsets),
    ]


def _offsets(offsets: Sequence[int]) -> str:
    shown = ", ".join(f"{offset:,}" for offset in offsets[:4])
    return (shown + (f" and {len(offsets) - 4} more" if len(offsets) > 4 else "")) or "–"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    assert count >= len(rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str, css: str = "") -> str:
    kind = f' class="{css}"' if css else ""
    return f"<td{kind}>{escape(text)}</td>"


def _number(value: int) -> str:
    return f'<td class="number{"" if value else " zero"}">{value:,}</td>'


def _words(summary: Summary) -> str:
    call = f"txstore.open({summary.store!r}, read_only=True).store.read_at(offset)"
    words = {
        "Committed": "its topic has a final message.",
        "Rolled back": "only an op message names it.",
        "Discarded": "checked too often, or too old; TRANS_CHECK_MAX_TIME_TOPIC keeps the message.",
        "Pending": "nothing has decided it.",
        "Finished, unknown": "a broker has passed it, and the log does not tell how it ended.",
        "Asked": "checks that a broker recorded; checks by txstore leave no trace in the log.",
        "Half at, final at, discarded at, op at": "physical offsets, in bytes of the commit log.",
    }
    told = " ".join(f"<b>{escape(word)}</b>: {escape(what)}" for word, what in words.items())
    return (
        '<section class="words"><h2>Words</h2><p>A transaction is a half message with all its copies. '
        f"{told} Times are the store's own, to the millisecond, in UTC. A record: <code>{escape(call)}</code>"
        "</p></section>"
    )


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
