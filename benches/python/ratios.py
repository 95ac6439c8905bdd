"""Compares rates with the machine's limits and with peers, as one table in Markdown.

In:     `python -m benches.python.ratios [--quick] [--large] [--only WORD]`.
Out:    the table; what is compared ran in turns.
Always: shows, never asserts: values vary with the machine, and with its other load. Criterion and pytest-benchmark
        report values of their own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import txstore
from benches.python import loads, peers, rounds, states, stops, topics
from benches.python.measure import Measured, Scale, disk_bytes, in_turns, scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUICK = Scale("quick", turns=1, part=0.05)
DEFAULT = Scale("default", turns=3, part=1.0)
_MIB = 1 << 20
_GIB = 1 << 30
_LARGE_BYTES = 10 * _GIB


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    ours: str
    other: str = ""
    theirs: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    def line(self) -> str:
        verdict = "" if self.met is None else " ✓" if self.met else " ✗"
        return f"| {self.what} | {self.ours} | {self.other} | {self.theirs} | {self.ratio} | {self.goal}{verdict} |"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def against(what: str, ours: Measured, other: str, theirs: Measured, goal: float | None = None) -> Row:
    """A comparison of two rates that were measured in the same turns."""
    ratio = ours.over(theirs)
    spread = f" ({min(ratio.values):.2f}..{max(ratio.values):.2f})" if len(ratio.values) > 1 else ""
    text, met = ("", None) if goal is None else (f"≥ {goal:g}", ratio.median >= goal)
    rates = f"{number(ours.median)}/s", f"{number(theirs.median)}/s"
    return Row(what, rates[0], other, rates[1], f"{ratio.median:.2f}{spread}", text, met)


def below(what: str, value: float, unit: str, bound: float) -> Row:
    """A value that should stay below a bound."""
    return Row(what, f"{number(value)} {unit}", goal=f"< {bound:g} {unit}", met=value < bound)


def appends(scale: Scale) -> list[Row]:
    size = loads.record_bytes()
    count, few = scale.count(1_000_000), scale.count(150_000)
    found = in_turns(
        scale.turns,
        {
            "pwrite": lambda: peers.limit("pwrite", count, size),
            "send": lambda: loads.send(count),
            "append": lambda: loads.append(count),
            "batch": lambda: loads.send_batch(count),
            "two": lambda: loads.append(count, threads=2),
            "synced": lambda: peers.limit("pwrite", count, size, sync_every_ms=500),
            "sqlite": lambda: peers.sqlite_insert(few),
        },
    )
    pwrite, sqlite = "Rust, pwrite to fresh pages", "sqlite3 insert, WAL, OFF"
    synced = "the same, synced each 500 ms meanwhile"
    return [
        against("send, one by one", found["send"], pwrite, found["pwrite"], 0.5),
        against("send, one by one", found["send"], synced, found["synced"]),
        against("send, one by one", found["send"], sqlite, found["sqlite"], 4),
        against("store.append, one by one", found["append"], pwrite, found["pwrite"]),
        against("send_batch of 100", found["batch"], pwrite, found["pwrite"]),
        against("store.append, 2 threads", found["two"], pwrite, found["pwrite"]),
        against("store.append, 2 threads", found["two"], "1 thread", found["append"]),
    ]


def transactions(scale: Scale) -> list[Row]:
    size = loads.transaction_bytes() // 2
    count, few = scale.count(300_000), scale.count(60_000)
    found = in_turns(
        scale.turns,
        {
            "pwrite": lambda: peers.limit("pwrite", 2 * count, size) / 2,
            "listener": lambda: loads.send_in_transaction(count),
            "broker": lambda: loads.prepare_and_end(count),
            "business": lambda: loads.send_with_business(few),
            "outbox": lambda: peers.outbox(few),
            "outbox alone": lambda: peers.outbox(few, relay=False),
            "insert": lambda: peers.business_only(few),
        },
    )
    limit, outbox = "Rust, pwrite of the same bytes", "SQLite outbox with relay, its user's insert included"
    goal = found["listener"].median
    return [
        Row("send_in_transaction, COMMIT", f"{number(goal)}/s", goal="≥ 150,000/s", met=goal >= 150_000),
        against("send_in_transaction, COMMIT", found["listener"], limit, found["pwrite"]),
        against("broker.prepare + end_transaction", found["broker"], limit, found["pwrite"]),
        against("send_in_transaction, COMMIT (without an insert)", found["listener"], outbox, found["outbox"]),
        against("send_in_transaction with a SQLite insert", found["business"], outbox, found["outbox"]),
        against(
            "send_in_transaction with a SQLite insert",
            found["business"],
            "SQLite outbox, not relayed",
            found["outbox alone"],
        ),
        against("send_in_transaction with a SQLite insert", found["business"], "the insert alone", found["insert"]),
    ]


def durable(scale: Scale) -> list[Row]:
    size, count, many = loads.record_bytes(), scale.count(10_000), scale.count(100_000, 6400)
    found = in_turns(
        scale.turns,
        {
            "limit": lambda: peers.limit("fdatasync", count, size),
            "one": lambda: loads.append(count, flush_disk_type="SYNC_FLUSH"),
            "many": lambda: loads.append(many, threads=64, flush_disk_type="SYNC_FLUSH"),
            "sqlite": lambda: peers.sqlite_insert(count, "FULL"),
        },
    )
    limit = "Rust, pwrite and fdatasync, zeros written before"
    return [
        against("SYNC_FLUSH append, 1 thread", found["one"], limit, found["limit"], 0.85),
        against("SYNC_FLUSH append, 1 thread", found["one"], "sqlite3 insert, WAL, FULL", found["sqlite"]),
        against("SYNC_FLUSH append, 64 threads", found["many"], "1 thread", found["one"], 8),
    ]


def checks(scale: Scale) -> list[Row]:
    halves = scale.count(1_000_000)
    pending = min(1_000, halves)
    what = f"{pending:,} of {halves:,} halves pending"
    with scratch() as folder:
        states.filled(folder / "store", halves=halves, pending=pending)
        with txstore.open(folder / "store", transaction_timeout=timedelta(0)) as broker:
            rounds.stop_own(broker)

            def one_round() -> float:
                rounds.make_due(broker, pending)
                return rounds.round_seconds(broker, pending)

            measured = in_turns(max(3, scale.turns), {"round": one_round})["round"]
    rows = [below(f"check round, {what}", measured.median * 1e3, "ms", 10)]
    with scratch() as folder:
        store = folder / "store"
        states.filled(store, halves=halves, pending=halves, crash=True)
        crashed = states.opened(store)
        clean = states.opened(store)
    if (crashed.pending, clean.pending, crashed.clean, clean.clean) != (halves, halves, False, True):
        raise RuntimeError(f"not what was prepared: {crashed}, {clean}")
    what = f"{halves:,} pending halves"
    rows += [
        below(f"open, {what}, after kill -9 ({number(crashed.scanned_bytes / _MIB)} MiB)", crashed.seconds, "s", 3),
        below(f"open, {what}, clean", clean.seconds, "s", 3),
        below(f"table's own count, {what}", clean.pending_table_bytes / _MIB, "MiB", 150),
        below(f"anonymous memory, {what}, clean", clean.anonymous_bytes / _MIB, "MiB", 150),
        below(f"anonymous memory, {what}, after kill -9", crashed.anonymous_bytes / _MIB, "MiB", 150),
    ]
    return rows


def opening(scale: Scale, *, large: bool) -> list[Row]:
    total = _LARGE_BYTES if large else scale.count(_GIB)
    with scratch() as folder:
        store = folder / "store"
        states.filled(store, messages=total // loads.record_bytes(), crash=True)
        crashed = states.opened(store)
        opens = [states.opened(store) for _ in range(max(3, scale.turns))]
        clean = Measured(tuple(found.seconds for found in opens))
        size = f"{number(total / _GIB)} GiB" if total >= _GIB else f"{number(total / _MIB)} MiB"
        per_gib = crashed.seconds / (crashed.scanned_bytes / _GIB)
        rows = [
            below(f"open a clean store of {size}", clean.median, "s", 1),
            below(f"anonymous memory of it, {size}, clean", opens[0].anonymous_bytes / _MIB, "MiB", 200),
            below(
                f"open after kill -9, {number(crashed.scanned_bytes / _MIB)} MiB after its snapshot",
                per_gib,
                "s/GiB",
                1,
            ),
            below("anonymous memory of it, after kill -9", crashed.anonymous_bytes / _MIB, "MiB", 200),
        ]
    with scratch() as folder:
        with txstore.open(folder / "store"):
            rows.append(below("disk, an empty store, open", disk_bytes(folder / "store") / _MIB, "MiB", 1))
        rows.append(below("disk, an empty store, closed", disk_bytes(folder / "store") / _MIB, "MiB", 1))
    return rows


def reads(scale: Scale) -> list[Row]:
    count, size = scale.count(300_000, 32_000) // 100 * 100, loads.record_bytes()
    with scratch() as folder, txstore.open(folder / "store") as broker:
        loads.fill(broker, count)
        database = peers.sqlite_table(folder / "messages.db", "OFF")
        peers.sqlite_fill(database, count)
        found = in_turns(
            max(3, scale.turns),
            {
                "read": lambda: loads.read_by_32(broker, count),
                "poll": lambda: loads.poll_by_32(broker, count),
                "sqlite": lambda: peers.sqlite_read(database, count),
                "pread": lambda: peers.limit("pread", count, size),
            },
        )
        database.close()
    return [
        against("read by 32, bodies read", found["read"], "sqlite3 select by 32", found["sqlite"]),
        against("poll by 32 with acknowledgement, bodies read", found["poll"], "broker.read by 32", found["read"]),
        against("read by 32, bodies read", found["read"], "Rust, pread of the same bytes", found["pread"]),
    ]


def keys(scale: Scale, *, large: bool) -> list[Row]:
    count = 10_000_000 if large else scale.count(1_000_000, 32_000) // 100 * 100
    with scratch() as folder, txstore.open(folder / "store") as broker:
        loads.fill_with_keys(broker, count)
        asked = random.Random(1).sample(range(count), 1000)
        return [below(f"query by key over {count:,} messages, warm", loads.query_ms(broker, asked), "ms", 1)]


def scans(scale: Scale) -> list[Row]:
    from benches.python import tables

    count = scale.count(1_000_000, 32_000) // 100 * 100
    with scratch() as folder:
        store = folder / "store"
        size = tables.filled(store, count) / count / 1e9
        found = in_turns(
            max(3, scale.turns),
            {
                "all": lambda: tables.scan(store, None, count) * size,
                "two": lambda: tables.scan(store, tables.TWO, count),
            },
        )
    every, two = found["all"].median, found["two"].median
    return [
        Row("scan by Arrow, all columns, of processor time", f"{number(every)} GB/s", goal="≥ 3 GB/s", met=every >= 3),
        Row("scan by Arrow, topic and size", f"{number(two)} rows/s", goal="≥ 6,000,000 rows/s", met=two >= 6e6),
    ]


def stopped(scale: Scale) -> list[Row]:
    pending = scale.count(1_000_000)
    with scratch() as folder:
        found = stops.longest_sends_ms(folder, pending)
    what = f"longest send with {pending:,} pending, during"
    return [below(f"{what} {work}", longest_ms, "ms", 20) for work, longest_ms in found.items()]


def many_topics(scale: Scale) -> list[Row]:
    count = scale.count(4_000)
    bounds = {"creating": 4, "opening": 3}
    with scratch() as folder:
        found = topics.seconds_of(folder, count)
    rows = []
    for step, seconds in found.items():
        bound = bounds.get(step.split()[0])
        what = f"{count:,} topics: {step}"
        rows.append(Row(what, f"{seconds:.2f} s") if bound is None else below(what, seconds, "s", bound))
    return rows


def spark(scale: Scale) -> list[Row]:
    from benches.python import ready_batches, tables

    count = scale.count(1_000_000, 32_000) // 100 * 100
    with scratch() as folder:
        store, parquet = folder / "store", str(folder / "parquet")
        tables.filled(store, count)
        ready = {
            name: ready_batches.write_ready(store, folder / name, columns)
            for name, columns in (("all", None), ("two", tables.TWO))
        }
        session = tables.spark_session()
        session.dataSource.register(ready_batches.ReadyBatches)
        tables.load(session, store, None).write.parquet(parquet)
        from_files = session.read.format("ready_batches")
        spent: dict[str, tuple[float, float]] = {}

        def measured(name: str, frame: Callable[[], DataFrame]) -> float:
            before = ready_batches.processor_seconds(tables.java_machine(session))
            rate = tables.sunk(frame(), count)
            after = ready_batches.processor_seconds(tables.java_machine(session))
            spent[name] = after[0] - before[0], after[1] - before[1]
            return rate

        works: dict[str, Callable[[], DataFrame]] = {
            "all": lambda: tables.load(session, store, None),
            "all of parquet": lambda: session.read.parquet(parquet),
            "all of ready": lambda: from_files.load(ready["all"]),
            "two": lambda: tables.load(session, store, tables.TWO),
            "two of parquet": lambda: session.read.parquet(parquet).select(*tables.TWO),
            "two of ready": lambda: from_files.load(ready["two"]),
        }
        turns = max(3, scale.turns)
        found = in_turns(turns, {name: partial(measured, name, frame) for name, frame in works.items()})
        session.stop()
        peak = tables.spark_task_peak_bytes(store)
    rows = []
    for name, what, goal in (("all", "all columns", 0.9), ("two", "topic and size", 0.8)):
        ours, theirs, limit = found[name], found[f"{name} of parquet"], found[f"{name} of ready"]
        rows += [
            against(f"Spark, {what}, noop sink", ours, "the same rows from Parquet", theirs, goal),
            against(f"Spark, {what}, batches ready in Arrow files", limit, "the same rows from Parquet", theirs),
            against(f"Spark, {what}, noop sink", ours, "batches ready in Arrow files", limit),
        ]
        rows += [
            Row(f"Spark, {work}: processor time of Java and of Python", "{:.2f} s and {:.2f} s".format(*spent[work]))
            for work in (name, f"{name} of parquet", f"{name} of ready")
        ]
    what = f"a task's Python process, {count:,} rows of 1 KiB"
    return [*rows, below(f"memory of {what}", peak / _MIB, "MiB", 512)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.ratios", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute; values are rough")
    parser.add_argument(
        "--large",
        action="store_true",
        help="a store of 10 GiB, keys of 10,000,000 messages; needs 25 GiB",
    )
    parser.add_argument("--only", help="only the groups whose name contains this word")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else DEFAULT
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if arguments.large and free < 25 * _GIB:
        sys.exit(f"--large needs 25 GiB below {tempfile.gettempdir()}, {free // _GIB} GiB are free\nhint: set TMPDIR")
    groups: dict[str, Callable[[Scale], list[Row]]] = {
        "appends": appends,
        "transactions": transactions,
        "durable": durable,
        "checks": checks,
        "opening": lambda scale: opening(scale, large=arguments.large),
        "reads": reads,
        "keys": lambda scale: keys(scale, large=arguments.large),
        "scans": scans,
        "stops": stopped,
        "topics": many_topics,
        "spark": spark,
    }
    start, load = time.perf_counter(), os.getloadavg()[0]
    print(f"1 KiB bodies, one process, {scale.name} sizes, medians of {scale.turns} turns; load before: {load:.1f}\n")
    print("| What | Ours | Compared with | Theirs | Ratio | Goal |\n|---|---|---|---|---|---|", flush=True)
    for name, measure in groups.items():
        if arguments.only is None or arguments.only in name:
            for row in measure(scale):
                print(row.line(), flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
