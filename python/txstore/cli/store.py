"""`txstore store …`: a store made; its figures, its check, its records as JSON, its healing.

In: a path. Out: text or JSON lines, an exit code. Always: only `create` and `heal` write. Not here: how records are
verified (`verify`), single transactions (`tx`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import txstore
from txstore import errors
from txstore._native import OpenReport, Store, StoredMessage
from txstore.cli import verify
from txstore.cli.arguments import AsJson, StorePath, noun
from txstore.cli.opening import reading, writing
from txstore.cli.output import age, paint, print_facts, print_json, print_table, size
from txstore.cli.progress import Progress
from txstore.cli.records import record_facts

__all__ = ["app"]

_SCAN_BATCH = 1000
_FIGURES = (
    "min_physical_offset max_physical_offset durable_physical_offset visible_physical_offset snapshot_physical_offset "
    "commit_log_file_size consume_queue_file_size max_hash_slot_num max_index_num queues index_files "
    "pending_transactions pending_table_bytes decided_halves"
).split()

app = noun("A store as a whole: create, stat, check, dump, heal.")


@app.command()
def create(path: StorePath, as_json: AsJson = False) -> None:
    """Make an empty store."""
    place = Path(path)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise errors.StoreIOError(f"{path} is there already\nhint: `txstore store stat {path}` shows a store")
    txstore.open(path).close()
    if as_json:
        print_json({"path": path})
    else:
        print(f"{path} is an empty store")


def report_facts(report: OpenReport, *, read_only: bool) -> dict[str, Any]:
    """What opening found; read-only it tells what a writer would do."""
    would = "would be " if read_only and not report.clean else ""
    return {
        "clean": report.clean,
        f"{would}truncated_bytes".replace(" ", "_"): report.truncated_bytes,
        f"{would}healed_ops".replace(" ", "_"): report.healed_ops,
        "scanned_from": report.scanned_from,
        "scanned_bytes": report.scanned_bytes,
        "milliseconds": report.milliseconds,
        "warnings": report.warnings,
    }


@app.command("info", hidden=True)
@app.command()
def stat(path: StorePath, as_json: AsJson = False) -> None:
    """Figures: how large, how many queues, what pends, what opening found."""
    with reading(path) as store:
        figures = store.stat()
        facts: dict[str, Any] = {name: getattr(figures, name) for name in _FIGURES}
        queues = [
            {"topic": topic, "queue_id": queue_id, "first": first, "end": end}
            for topic, queue_id, first, end in store.queues()
        ]
        report = report_facts(store.open_report, read_only=True)
    if as_json:
        print_json({**facts, "queue_ranges": queues, "open": report})
        return
    log = facts["max_physical_offset"] - facts["min_physical_offset"]
    print_facts({"path": path, "log": size(log), **facts})
    print()
    print_table(["topic", "queue", "first", "end"], [list(queue.values()) for queue in queues])
    print()
    warnings = report.pop("warnings")
    print_facts({f"opening: {name}": value for name, value in report.items()})
    for warning in warnings:
        print(f"{paint('warning', 'yellow')}: {warning}")


def scan(store: Store, start: int | None = None) -> Iterator[tuple[list[StoredMessage], int]]:
    """Records from a physical offset on, by the batch, each with the physical offset behind it."""
    at = max(store.stat().min_physical_offset, start or 0)
    while True:
        batch, following = store.scan(at, _SCAN_BATCH)
        yield batch, following
        if following <= at:
            return
        at = following


def watched(store: Store) -> Iterator[StoredMessage]:
    """Every record of the log, with a bar."""
    stat = store.stat()
    with Progress("reading the log", stat.max_physical_offset - stat.min_physical_offset) as bar:
        for batch, following in scan(store):
            yield from batch
            bar.to(following - stat.min_physical_offset)


@app.command("verify", hidden=True)
@app.command()
def check(path: StorePath, as_json: AsJson = False) -> int:
    """Read everything; compare records, queues and transactions with each other."""
    with reading(path) as store:
        found = verify.verify(store, watched(store))
    if as_json:
        print_json(found.as_facts())
    else:
        print_facts(found.counts)
        for kind, texts in (("note", found.notes), ("DAMAGED", found.damages), ("DIFFERS", found.differences)):
            for text in texts:
                print(f"{kind}: {text}")
        bad = "damaged" if found.damages else "differences were found" if found.differences else None
        print(paint("all is well", "green") if bad is None else paint(bad, "red"))
    return 4 if found.damages else 1 if found.differences else 0


@app.command()
def dump(
    path: StorePath,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With bodies, in base64.")] = False,
    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="From this physical offset on.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many.")] = None,
    as_json: AsJson = True,
) -> None:
    """Every record as a line of JSON, in the log's order."""
    count = 0
    with reading(path) as store:
        for message in (message for batch, _ in scan(store, start) for message in batch):
            if limit is not None and count >= limit:
                break
            if topic in (None, message.topic):
                print_json(record_facts(message, bodies=bodies))
                count += 1


@app.command()
def heal(path: StorePath, as_json: AsJson = False) -> None:
    """Recover and heal after a crash, close cleanly: ready for a broker."""
    with writing(path) as store:
        report = store.heal()
    facts = report_facts(report, read_only=False)
    if as_json:
        print_json(facts)
        return
    print_facts({**facts, "milliseconds": age(report.milliseconds), "warnings": report.warnings or None})
    print("closed cleanly: a broker may open it")
