"""Summary: the statistics of a report, small enough for one page.

In:     the table of transactions.
Out:    `Summary`: totals, by topic, by group, over time, latencies, suspicious transactions.
Always: the amount of data that Spark passes to the driver is bounded, whatever the table's size.
Not here: HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

from txstore.spark.report.fold import HALF_MISSING

__all__ = ["BINS_PER_DECADE", "STATES", "Summary", "Suspicion", "Total", "duration", "moment", "summarize"]

STATES = ("committed", "rolled_back", "discarded", "pending", "finished_unknown")
LISTED_MAX = 50
NAMES_MAX = 200
BUCKETS_MAX = 72
BINS_PER_DECADE = 4
CHECKS_MAX = 15
_WIDTHS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500]
_WIDTHS_MS += [1_000 * seconds for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600)]
_WIDTHS_MS += [3_600_000 * hours for hours in (2, 3, 6, 12, 24, 48, 168, 336, 720, 2_160, 8_760, 87_600)]


@dataclass(frozen=True)
class Total:
    """The transactions of a topic, of a group, or all."""

    name: str
    counts: dict[str, int]
    twice: int
    asked: int
    # Milliseconds from the half to the decision: the median, the 95th and 99th percentile, and the maximum.
    latencies_ms: tuple[int | None, int | None, int | None, int | None]
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
    count: int
    rows: list[Row] = field(default_factory=list)


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


def summarize(table: DataFrame, store: str, log: tuple[int, int], *, now_ms: int, pending_after_ms: int) -> Summary:
    """Computes the statistics of a table of transactions, with ages as of `now_ms`."""
    known = table.withColumn("latency_ms", _ms("ended_timestamp") - _ms("prepared_timestamp"))
    known = known.withColumn("prepared_ms", _ms("prepared_timestamp"))
    rows = known.where(F.col("state") != HALF_MISSING)
    totals = _totals(rows, F.lit("all"))
    first, last = rows.agg(F.min("prepared_ms"), F.max("prepared_ms")).first() or (None, None)
    bucket_ms = _bucket_ms(first, last)
    bucket = F.floor(F.col("prepared_ms") / bucket_ms) * bucket_ms
    log10 = F.log10(F.greatest(F.col("latency_ms"), F.lit(1)))
    bins = F.floor(log10 * BINS_PER_DECADE + 1e-9)
    return Summary(
        store=store,
        log=log,
        now_ms=now_ms,
        pending_after_ms=pending_after_ms,
        all=totals[0] if totals else Total("all", {}, 0, 0, (None,) * 4, None),
        topics=_totals(rows, F.coalesce("real_topic", F.lit("(none)"))),
        groups=_totals(rows, F.coalesce("producer_group", F.lit("(none)"))),
        bucket_ms=bucket_ms,
        over_time=_counted(rows, bucket),
        latencies=_counted(rows.where("latency_ms IS NOT NULL"), bins),
        checks=_counted(rows.where("check_times > 0"), F.least("check_times", F.lit(CHECKS_MAX))),
        suspicions=_suspicions(known, log[0], now_ms, pending_after_ms),
    )


def _ms(name: str) -> Column:
    return F.unix_millis(F.col(name))


def _totals(rows: DataFrame, name: Column) -> list[Total]:
    """Returns the totals, largest first."""
    counts = (F.count_if(F.col("state") == state).alias(state) for state in STATES)
    found = (
        rows.groupBy(name.alias("name"))
        .agg(
            *counts,
            F.count("*").alias("count"),
            F.count_if(F.size("final_physical_offsets") > 1).alias("twice"),
            F.count_if(F.col("check_times") > 0).alias("asked"),
            F.percentile_approx("latency_ms", [0.5, 0.95, 0.99], 10_000).alias("percentiles"),
            F.max("latency_ms").alias("longest"),
            F.min(F.when(F.col("state") == "pending", F.col("prepared_ms"))).alias("oldest"),
        )
        .orderBy(F.desc("count"), "name")
        .limit(NAMES_MAX)
        .collect()
    )
    return [
        Total(
            row["name"],
            {state: row[state] for state in STATES},
            row["twice"],
            row["asked"],
            (*(row["percentiles"] or (None,) * 3), row["longest"]),
            row["oldest"],
        )
        for row in found
    ]


def _counted(rows: DataFrame, by: Column) -> dict[tuple[int, str], int]:
    found = rows.groupBy(by.cast("long").alias("by"), "state").count().collect()
    return {(row["by"], row["state"]): row["count"] for row in found}


def _bucket_ms(first: int | None, last: int | None) -> int:
    """Returns a round width that makes at most `BUCKETS_MAX` buckets."""
    span = (last or 0) - (first or 0) + 1
    fitting = (width for width in _WIDTHS_MS if math.ceil(span / width) < BUCKETS_MAX)
    return next(fitting, math.ceil(span / BUCKETS_MAX))


def _suspicions(table: DataFrame, log_first: int, now_ms: int, pending_after_ms: int) -> list[Suspicion]:
    pending = F.col("state") == "pending"
    waited = f"{duration(pending_after_ms)} and more after it was prepared" if pending_after_ms else "yet"
    waits = pending & (F.col("prepared_ms") < now_ms - pending_after_ms)
    missing = F.col("state") == HALF_MISSING
    named = F.coalesce(F.get("half_queue_offsets", F.lit(0)), F.lit(-1))
    kinds: Sequence[tuple[str, str, Column]] = (
        (
            "Pending too long",
            f"no decision {waited}: its producer group does not "
            "answer, or answers UNKNOWN",
            waits,
        ),
        (
            "Committed twice",
            "two final messages: consumers saw it twice; a broker accepted a producer's end and a check's answer",
            F.size("final_physical_offsets") > 1,
        ),
        (
            "Discarded",
            "checked too often or too old: TRANS_CHECK_MAX_TIME_TOPIC keeps the message; `txstore tx resume` makes it "
            "pending again",
            F.col("state") == "discarded",
        ),
        (
            "Committed and discarded",
            "both a final message and a discarded copy",
            (F.size("final_physical_offsets") > 0) & (F.size("discarded_physical_offsets") > 0),
        ),
        ("Op without half", "an op names a half that the log does not hold", missing & (named >= 0)),
        (
            "Final without half",
            "a message with commit bits, or a discarded copy, names a half that the log does not hold",
            missing & (named < 0),
        ),
        ("Finished, outcome unknown", "a broker has passed it, and the log does not tell how it ended",
         F.col("state") == "finished_unknown"),
    )  # fmt: skip
    counted = table.agg(*(F.count_if(where).alias(name) for name, _, where in kinds)).first()
    counts = counted.asDict() if counted else {}
    found = []
    for name, why, where in kinds:
        if log_first > 0 and name.endswith("without half"):
            why += "; retention has removed the beginning of this log, including halves"
        rows: list[Row] = []
        if counts.get(name):
            order = "prepared_ms", F.get("final_physical_offsets", F.lit(0)), F.get("op_physical_offsets", F.lit(0))
            rows = table.where(where).orderBy(*order).limit(LISTED_MAX).collect()
        found.append(Suspicion(name, why, counts.get(name, 0), rows))
    return found


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
