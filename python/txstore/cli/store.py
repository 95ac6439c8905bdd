"""`txstore store …`: creates a store, shows its statistics, checks, repairs, backs up, dumps, heals and hands it over.

In:     a path; for `stat`, also the address of a server.
Out:    text or JSON lines, an exit code.
Always: only `create`, `repair`, `heal` and `hand-over` write to a store.
Not here: how records are verified and files repaired (`txstore.inspection`), how a store is copied (`txstore.backup`),
        single transactions (`tx`).
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import txstore
from txstore import errors
from txstore._native import OpenReport
from txstore.backup import Backup, is_unopened, take_backup
from txstore.cli.agreement import Yes, agreed
from txstore.cli.arguments import AsJson, StorePath, StoreTarget, noun
from txstore.cli.exit_codes import EXIT_DAMAGED, EXIT_FINDING, EXIT_OK
from txstore.cli.output import age, paint, print_facts, print_json, print_table, size
from txstore.cli.progress import Progress
from txstore.cli.target import reading as reading_target
from txstore.config import milliseconds
from txstore.inspection import verify
from txstore.inspection.deep import Depth, look
from txstore.inspection.hand_over import hand_over
from txstore.inspection.opening import reading, writing
from txstore.inspection.records import record_facts, scan
from txstore.inspection.repair import repair

__all__ = ["app"]

_STATISTICS = (
    "min_physical_offset max_physical_offset durable_physical_offset visible_physical_offset snapshot_physical_offset "
    "commit_log_file_size consume_queue_file_size max_hash_slot_num max_index_num queues index_files "
    "pending_transactions pending_table_bytes decided_halves"
).split()

app: typer.Typer = noun("A whole store: create, stat, check, repair, backup, dump, heal, hand-over.")


@app.command()
def create(path: StorePath, as_json: AsJson = False) -> None:
    """Create an empty store."""
    directory = Path(path)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise errors.StoreIOError(f"{path} already exists\nhint: `txstore store stat {path}` shows a store")
    txstore.open(path).close()
    if as_json:
        print_json({"path": path})
    else:
        print(f"created an empty store at {path}")


def report_facts(report: OpenReport, *, read_only: bool) -> dict[str, Any]:
    """Returns what opening found; for a read-only store, what a writer would do."""
    would = "would be " if read_only and not report.clean else ""
    return {
        "clean": report.clean,
        f"{would}truncated_bytes".replace(" ", "_"): report.truncated_bytes,
        f"{would}healed_ops".replace(" ", "_"): report.healed_ops,
        "scanned_from": report.scanned_from,
        "scanned_bytes": report.scanned_bytes,
        "milliseconds": milliseconds(report.duration),
        "warnings": report.warnings,
    }


@app.command("info", hidden=True)
@app.command()
def stat(path: StoreTarget, as_json: AsJson = False) -> None:
    """Show sizes, queues, pending transactions and what opening found."""
    with reading_target(path) as broker:
        stat = broker.stat()
        facts: dict[str, Any] = {name: getattr(stat, name) for name in _STATISTICS}
        if isinstance(broker, txstore.EmbeddedBroker):  # A broker that took the store over would not deliver them.
            facts["timed_messages"] = broker.store.timed_messages()
        queues = [
            {"topic": topic, "queue_id": queue_id, "first": first, "end": end}
            for topic, queue_id, first, end in broker.queues()
        ]
        # A server's log has what it found.
        report = None if path.server is not None else report_facts(broker.open_report, read_only=True)
    if as_json:
        print_json({**facts, "queue_ranges": queues, "open": report})
        return
    log = facts["max_physical_offset"] - facts["min_physical_offset"]
    print_facts({"path": path.path or path.server, "log": size(log), **facts})
    print()
    print_table(["topic", "queue", "first", "end"], [list(queue.values()) for queue in queues])
    if report is None:
        return
    print()
    warnings = report.pop("warnings")
    print_facts({f"opening: {name}": value for name, value in report.items()})
    for warning in warnings:
        print(f"{paint('warning', 'yellow')}: {warning}")


@app.command("verify", hidden=True)
@app.command()
def check(
    path: StorePath,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check each file and the index, even if the store does not open.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Read everything and compare records, queues and transactions."""
    plan: list[str] = []
    if deep:
        depth = look(path, Progress)
        found, plan = depth.findings, depth.plan
        if is_unopened(Path(path)):
            found.damages += Backup.read(Path(path)).damages(Progress)
        facts = depth.as_facts()
    else:
        with reading(path) as store:
            found = verify.verify(store, Progress)
        facts = found.as_facts()
    if as_json:
        print_json(facts)
    else:
        _print_findings(found)
        for line in plan:
            print(f"`txstore store repair {path}` would do: {line}")
        bad = "damaged" if found.damages else "differences were found" if found.differences else None
        print(paint("no problems found", "green") if bad is None else paint(bad, "red"))
    return _code(found)


def _print_findings(found: verify.Findings) -> None:
    print_facts(found.counts)
    for kind, texts in (("note", found.notes), ("DAMAGED", found.damages), ("DIFFERS", found.differences)):
        for text in texts:
            print(f"{kind}: {text}")


def _code(found: verify.Findings) -> int:
    return EXIT_DAMAGED if found.damages else EXIT_FINDING if found.differences else EXIT_OK


@app.command("repair")
def repair_store(
    path: StorePath,
    yes: Yes = False,
    copy_to: Annotated[
        str | None, typer.Option("--copy-to", metavar="DIR", help="Directory for copies (default: below txstore/).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: AsJson = False,
) -> int:
    """Repair a damaged store; keep copies of what is changed."""
    depth = look(path, Progress)
    found = depth.findings
    if not depth.plan:
        print_json({"repaired": False}) if as_json else print(f"there is nothing to repair in {path}")
        return EXIT_OK
    if dry_run:
        print_json({"repaired": False, **depth.as_facts()}) if as_json else _print_plan(depth)
        return _code(found)
    if not as_json:
        _print_plan(depth)
    if not agreed(f"repair {path}?", yes):
        return EXIT_FINDING
    done = repair(path, depth, copy_to)
    if as_json:
        print_json({"repaired": True, **done})
        return EXIT_OK
    print_facts({name: value for name, value in done.items() if name not in ("copied", "lost", "pending", "warnings")})
    if done["lost_halves"]:
        print(f"{done['lost_halves']} half messages are lost: the report has what is known of them")
    if done["lost_ops"]:
        print(f"{done['lost_ops']} op messages are lost: the transactions that they ended are pending again")
    print(paint("repaired", "green") + f"; copies of what was changed, and the report, are in {done['copies']}")
    return EXIT_OK


def _print_plan(depth: Depth) -> None:
    _print_findings(depth.findings)
    for line in depth.plan:
        print(f"to do: {line}")


@app.command("backup")
def back_up(
    path: StorePath,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="Folder of the backups; better on another disk. Created if missing.")
    ],
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Keep the newest N backups (default: all).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a backup to a folder; safe while a program writes the store."""
    began = time.monotonic()
    backup = take_backup(path, destination, keep=keep, progress=Progress, warn=_warn)
    facts: dict[str, Any] = {
        "backup": str(backup.path),
        "first": backup.first,
        "end": backup.end,
        "copied_bytes": backup.copied_bytes,
        "linked_bytes": backup.linked_bytes,
        "verified_records": backup.verified_records,
        "milliseconds": milliseconds(time.monotonic() - began),
    }
    if as_json:
        print_json(facts)
        return
    print_facts(
        facts
        | {
            "copied_bytes": size(backup.copied_bytes),
            "linked_bytes": size(backup.linked_bytes),
            "milliseconds": age(facts["milliseconds"]),
        }
    )
    print(f"to restore: copy it (`cp -r {backup.path} PATH`), then open the copy, never the backup itself")


def _warn(text: str) -> None:
    print(f"txstore: {paint('warning', 'yellow', sys.stderr)}: {text}", file=sys.stderr)


@app.command()
def dump(
    path: StorePath,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Include bodies, in base64.")] = False,
    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="Begin at this physical offset.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Show at most N.")] = None,
    as_json: AsJson = True,
) -> None:
    """Print every record as a line of JSON, in the log's order."""
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
    """Recover a store after a crash and close it, ready for a broker."""
    with writing(path) as store:
        report = store.heal()
    facts = report_facts(report, read_only=False)
    if as_json:
        print_json(facts)
        return
    print_facts({**facts, "milliseconds": age(facts["milliseconds"]), "warnings": report.warnings or None})
    print("closed cleanly: a broker may open it")


@app.command("hand-over")
def hand_over_store(path: StorePath, as_json: AsJson = False) -> int:
    """Leave the messages that wait for a given time to the RocketMQ 5 broker that opens the store next."""
    done = hand_over(path)
    if as_json:
        print_json(asdict(done))
        return EXIT_FINDING if done.left else EXIT_OK
    print(f"{done.handed_over:,} timed messages handed over; {done.delivered:,} that were due are delivered")
    for why in done.left:
        print(f"{paint('left', 'red')}: {why}")
    if done.pending:
        _warn(
            f"a broker delivers the messages of {done.pending:,} pending transactions at the commit, not at their time"
        )
    print(
        "a RocketMQ 5 broker with timerWheelEnable = true may open the store; opening it with txstore takes them back"
    )
    return EXIT_FINDING if done.left else EXIT_OK
