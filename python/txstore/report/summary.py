"""Summary: the statistics of a report, small enough for one page.

In:     the rows of the view `transactions`, in Arrow batches.
Out:    `Summary`: totals, by topic, by group, over time, latencies, suspicious transactions.
Always: memory is bounded by the number of topics, groups and times, not by the number of rows.
Not here: HTML, where the rows come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstore.report.tally import Tally, percentiles

__all__ = [
    "BINS_PER_DECADE",
    "CHECKS_MAX",
    "COLUMNS",
    "HALF_MISSING",
    "PERCENTILES",
    "STATES",
    "Statistics",
    "Summary",
    "Suspicion",
    "Total",
    "duration",
    "moment",
]

STATES = ("committed", "rolled_back", "discarded", "pending", "finished_unknown")
# The state of a row without a transaction: an op, final or discarded copy whose half is not in the log.
HALF_MISSING = "half_missing"
# What the statistics read of a row.
COLUMNS = """transaction_id producer_group real_topic state prepared_timestamp ended_timestamp check_times
half_queue_offsets half_physical_offsets final_physical_offsets discarded_physical_offsets
op_physical_offsets""".split()
_LISTS = [name for name in COLUMNS if name.endswith("_offsets")]
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
LISTED_MAX = 50
NAMES_MAX = 200
BUCKETS_MAX = 72
BINS_PER_DECADE = 4
CHECKS_MAX = 15
# Latencies below are counted to the millisecond, others with four digits.
_EXACT_MS = 10_000
_WIDTHS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500]
_WIDTHS_MS += [1_000 * seconds for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600)]
_WIDTHS_MS += [3_600_000 * hours for hours in (2, 3, 6, 12, 24, 48, 168, 336, 720, 2_160, 8_760, 87_600)]
# While rows are counted, the whole time is not known. Each of these divides the widths of the spans that need it.
_FINE_MS = (1, 100, 1_000, 60_000, 3_600_000, 86_400_000)
_FINE_BUCKETS_MAX = 100_000


@dataclass(frozen=True)
class Total:
    """The transactions of a topic, of a group, or all."""

    name: str
    counts: dict[str, int]
    twice: int
    # Milliseconds from the half to the decision: the values of PERCENTILES, then the maximum.
    latencies_ms: Sequence[int | None]
    oldest_pending_ms: int | None

    @property
    def transactions(self) -> int:
        """The number of transactions."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Suspicion:
    """One kind of transactions that need attention."""

    name: str
    why: str
    # A condition on the rows' columns, for DuckDB.
    where: str
    count: int = 0
    # The oldest ones: `COLUMNS`, prepared_ms, latency_ms.
    rows: Sequence[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Summary:
    """The content of the page."""

    store: str
    log: tuple[int, int]
    now_ms: int
    pending_after_ms: int
    all: Total
    topics: list[Total]
    groups: list[Total]
    # (start of the bucket in ms, state) -> transactions prepared in it.
    bucket_ms: int
    over_time: dict[tuple[int, str], int]
    # (bin, state): bin b holds latencies from 10 ** (b / BINS_PER_DECADE) ms on.
    latencies: dict[tuple[int, str], int]
    # (number of checks by a broker, state)
    checks: dict[tuple[int, str], int]
    suspicions: list[Suspicion]


class Statistics:
    """Counts rows, batch by batch. Ages are as of `now_ms`."""

    def __init__(self, log_first: int, *, now_ms: int, pending_after_ms: int) -> None:
        self._now_ms, self._pending_after_ms = now_ms, pending_after_ms
        sums = {"twice": "sum", "oldest": "min", "longest": "max"}
        self._topics = Tally(["name", "state", "latency"], sums)
        self._groups = Tally(["name", "state", "latency"], sums)
        self._latencies = Tally(["bin", "state"])
        self._checks = Tally(["checks", "state"])
        self._over_time = Tally(["bucket", "state"], {"first": "min", "last": "max"})
        self._fine = 0
        self._suspicions = _suspicions(log_first, now_ms, pending_after_ms)

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Counts the rows of a batch or a table, which has at least `COLUMNS`."""
        rows = pa.table({name: batch.column(name) for name in COLUMNS})
        rows = rows.append_column("prepared_ms", _milliseconds(rows["prepared_timestamp"]))
        latency = pc.subtract(_milliseconds(rows["ended_timestamp"]), rows["prepared_ms"])
        rows = rows.append_column("latency_ms", latency)
        rows = rows.append_column("finals", pc.list_value_length(rows["final_physical_offsets"]))
        self._suspicions = [_noted(one, rows, self._selected(one.name, rows)) for one in self._suspicions]
        known = rows.filter(pc.not_equal(rows["state"], HALF_MISSING))
        if known.num_rows:
            self._count(known)

    def _count(self, rows: pa.Table) -> None:
        state, latency = rows["state"], rows["latency_ms"]
        pending = pc.if_else(pc.equal(state, "pending"), rows["prepared_ms"], pa.scalar(None, pa.int64()))
        counted = {
            "state": state,
            "latency": _rounded(latency),
            "twice": pc.cast(pc.greater(rows["finals"], 1), pa.int64()),
            "oldest": pending,
            "longest": latency,
        }
        self._topics.add({**counted, "name": pc.fill_null(rows["real_topic"], "(none)")})
        self._groups.add({**counted, "name": pc.fill_null(rows["producer_group"], "(none)")})
        decided = rows.filter(pc.is_valid(latency))
        self._latencies.add({"bin": _bins(decided["latency_ms"]), "state": decided["state"]})
        asked = rows.filter(pc.greater(rows["check_times"], 0))
        checks = pc.min_element_wise(pc.cast(asked["check_times"], pa.int64()), CHECKS_MAX)
        self._checks.add({"checks": checks, "state": asked["state"]})
        prepared = rows["prepared_ms"]
        self._over_time.add({"bucket": self._bucket(prepared), "state": state, "first": prepared, "last": prepared})
        while self._fine + 1 < len(_FINE_MS) and self._over_time.has_more_than(_FINE_BUCKETS_MAX):
            self._fine += 1
            self._over_time.change("bucket", self._bucket)

    def _bucket(self, prepared_ms: pa.ChunkedArray) -> pa.ChunkedArray:
        width = _FINE_MS[self._fine]
        return pc.multiply(pc.divide(prepared_ms, width), width)

    def _selected(self, name: str, rows: pa.Table) -> pa.ChunkedArray:
        """Returns which rows are suspicious in that way."""
        state, missing = rows["state"], pc.equal(rows["state"], HALF_MISSING)
        names_queue_offset = pc.greater(pc.list_value_length(rows["half_queue_offsets"]), 0)
        discarded = pc.greater(pc.list_value_length(rows["discarded_physical_offsets"]), 0)
        match name:
            case "Pending too long":
                late = pc.less(rows["prepared_ms"], self._now_ms - self._pending_after_ms)
                return pc.and_(pc.equal(state, "pending"), late)
            case "Committed twice":
                return pc.greater(rows["finals"], 1)
            case "Discarded":
                return pc.equal(state, "discarded")
            case "Committed and discarded":
                return pc.and_(pc.greater(rows["finals"], 0), discarded)
            case "Op without half":
                return pc.and_(missing, names_queue_offset)
            case "Final without half":
                return pc.and_(missing, pc.invert(names_queue_offset))
            case _:
                return pc.equal(state, "finished_unknown")

    def summary(self, store: str, log: tuple[int, int]) -> Summary:
        """Returns the statistics of all rows so far. `log`: the range of physical offsets that they come from."""
        topics = _totals(self._topics.table())
        bucket_ms, over_time = _over_time(self._over_time.table())
        every = self._topics.table()
        every = every.set_column(every.column_names.index("name"), "name", pa.repeat("all", every.num_rows))
        return Summary(
            store=store,
            log=log,
            now_ms=self._now_ms,
            pending_after_ms=self._pending_after_ms,
            all=next(iter(_totals(every)), Total("all", {}, 0, (None,) * (len(PERCENTILES) + 1), None)),
            topics=topics[:NAMES_MAX],
            groups=_totals(self._groups.table())[:NAMES_MAX],
            bucket_ms=bucket_ms,
            over_time=over_time,
            latencies=_counts(self._latencies.table(), "bin"),
            checks=_counts(self._checks.table(), "checks"),
            suspicions=self._suspicions,
        )


def _milliseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns times of any unit in whole milliseconds."""
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[times.type.unit]
    numbers = pc.cast(times, pa.int64())
    return pc.divide(numbers, per_ms) if per_ms else pc.multiply(numbers, 1_000)


def _rounded(latency_ms: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns latencies with four digits, so that there are not too many different ones."""
    large = pc.cast(pc.max_element_wise(latency_ms, 1, skip_nulls=False), pa.float64())
    step = pc.power(10.0, pc.subtract(pc.floor(pc.log10(large)), 3.0))
    rounded = pc.cast(pc.multiply(pc.floor(pc.divide(large, step)), step), pa.int64(), safe=False)
    return pc.if_else(pc.less(latency_ms, _EXACT_MS), latency_ms, rounded)


def _bins(latency_ms: pa.ChunkedArray) -> pa.ChunkedArray:
    log10 = pc.log10(pc.cast(pc.max_element_wise(latency_ms, 1), pa.float64()))
    return pc.cast(pc.floor(pc.add(pc.multiply(log10, float(BINS_PER_DECADE)), 1e-9)), pa.int64())


def _totals(table: pa.Table) -> list[Total]:
    """Returns the totals of each name, largest first."""
    if not table.num_rows:
        return []
    sums = [("n", "sum"), ("twice", "sum"), ("oldest", "min"), ("longest", "max")]
    by_state: dict[str, dict[str, int]] = {}
    facts: dict[str, list[Any]] = {}
    for row in table.group_by(["name", "state"]).aggregate(sums).to_pylist():
        name = row["name"]
        by_state.setdefault(name, dict.fromkeys(STATES, 0))[row["state"]] = row["n_sum"]
        twice, oldest, longest = facts.setdefault(name, [0, None, None])
        facts[name] = [twice + row["twice_sum"], _of(min, oldest, row["oldest_min"]),
                       _of(max, longest, row["longest_max"])]  # fmt: skip
    largest = sorted(by_state, key=lambda name: (-sum(by_state[name].values()), name))[:NAMES_MAX]
    latencies = percentiles(table, largest, PERCENTILES)
    return [
        Total(
            name,
            by_state[name],
            facts[name][0],
            (*latencies.get(name, (None,) * len(PERCENTILES)), facts[name][2]),
            facts[name][1],
        )
        for name in largest
    ]


def _of(choose: Any, one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return choose(known) if known else None


def _counts(table: pa.Table, key: str) -> dict[tuple[int, str], int]:
    return {(row[key], row["state"]): row["n"] for row in table.to_pylist()}


def _over_time(table: pa.Table) -> tuple[int, dict[tuple[int, str], int]]:
    """Returns a round width that makes at most `BUCKETS_MAX` buckets, and the counts in each."""
    first, last = pc.min(table["first"]).as_py(), pc.max(table["last"]).as_py()
    span = (last or 0) - (first or 0) + 1
    fitting = (width for width in _WIDTHS_MS if math.ceil(span / width) < BUCKETS_MAX)
    width = next(fitting, math.ceil(span / BUCKETS_MAX / _FINE_MS[-1]) * _FINE_MS[-1])
    found: dict[tuple[int, str], int] = {}
    for row in table.to_pylist():
        key = (row["bucket"] // width * width, row["state"])
        found[key] = found.get(key, 0) + row["n"]
    return width, found


def _suspicions(log_first: int, now_ms: int, pending_after_ms: int) -> list[Suspicion]:
    waited = f"{duration(pending_after_ms)} and more after it was prepared" if pending_after_ms else "yet"
    before = datetime.fromtimestamp((now_ms - pending_after_ms) / 1_000, UTC).isoformat(timespec="milliseconds")
    gone = "; retention has removed the beginning of this log, including halves" if log_first > 0 else ""
    return [
        Suspicion(
            "Pending too long",
            f"no decision {waited}: its producer group does not answer, or answers UNKNOWN",
            f"state = 'pending' AND prepared_timestamp < '{before}'",
        ),
        Suspicion(
            "Committed twice",
            "two final messages: consumers saw it twice; a broker accepted a producer's end and a check's answer",
            "len(final_physical_offsets) > 1",
        ),
        Suspicion(
            "Discarded",
            "checked too often or too old: TRANS_CHECK_MAX_TIME_TOPIC keeps the message; txstore tx resume makes it "
            "pending again",
            "state = 'discarded'",
        ),
        Suspicion(
            "Committed and discarded",
            "both a final message and a discarded copy",
            "len(final_physical_offsets) > 0 AND len(discarded_physical_offsets) > 0",
        ),
        Suspicion(
            "Op without half",
            f"an op names a half that the log does not hold{gone}",
            f"state = '{HALF_MISSING}' AND len(half_queue_offsets) > 0",
        ),
        Suspicion(
            "Final without half",
            f"a message with commit bits, or a discarded copy, names a half that the log does not hold{gone}",
            f"state = '{HALF_MISSING}' AND len(half_queue_offsets) = 0",
        ),
        Suspicion(
            "Finished, outcome unknown",
            "a broker has passed it, and the log does not tell how it ended",
            "state = 'finished_unknown'",
        ),
    ]


def _noted(one: Suspicion, rows: pa.Table, selected: pa.ChunkedArray) -> Suspicion:
    """Returns a suspicion with further rows: the count of all, and the oldest."""
    count = pc.sum(selected).as_py() or 0
    if not count:
        return one
    found = rows.filter(selected)
    oldest = pc.sort_indices(pc.fill_null(found["prepared_ms"], 0))
    listed = [*one.rows, *found.take(oldest.slice(0, 2 * LISTED_MAX)).to_pylist()]
    listed.sort(key=lambda row: (row["prepared_ms"] or 0, [row[name] for name in _LISTS]))
    return Suspicion(one.name, one.why, one.where, one.count + count, listed[:LISTED_MAX])


def duration(milliseconds: float | None) -> str:
    """Formats a duration such as `1.5 s`, `12 min`, `3 d 4 h`."""
    if milliseconds is None:
        return "–"
    ms = round(milliseconds)
    if ms == 0:
        return "< 1 ms"
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.3g} s"
    units = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
    parts: list[str] = []
    for name, size in units:
        if ms >= size and len(parts) < 2:
            parts.append(f"{ms // size} {name}")
            ms %= size
        elif parts:
            break
    return " ".join(parts)


def moment(milliseconds: int | None) -> str:
    """Formats a time such as `2026-05-01 12:00:00.123`, in UTC."""
    if milliseconds is None:
        return "–"
    return f"{datetime.fromtimestamp(milliseconds / 1_000, UTC):%Y-%m-%d %H:%M:%S}.{milliseconds % 1_000:03}"
