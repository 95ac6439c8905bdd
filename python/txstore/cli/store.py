"""`txstore store …`: figures of a store, its check, its records as JSON, its healing.

In: parsed options. Out: text or JSON lines, an exit code. Always: only `heal` writes. Not here: how records are
verified (`verify`), single transactions (`tx`).
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from typing import Any

from txstore._native import OpenReport, Store, StoredMessage
from txstore.cli import verify
from txstore.cli.opening import reading, writing
from txstore.cli.output import age, print_facts, print_json, print_table, size
from txstore.cli.progress import Progress

__all__ = ["add_commands"]

_SCAN_BATCH = 1000
_FIGURES = (
    "min_physical_offset max_physical_offset durable_physical_offset visible_physical_offset snapshot_physical_offset "
    "commit_log_file_size consume_queue_file_size max_hash_slot_num max_index_num queues index_files "
    "pending_transactions pending_table_bytes decided_halves"
).split()


def add_commands(nouns: Any) -> None:
    """`store` and its verbs."""
    store = nouns.add_parser("store", help="a store as a whole: stat, check, dump, heal")
    verbs = store.add_subparsers(metavar="VERB", required=True)
    _verb(verbs, "stat", _stat, "figures: how large, how many queues, what pends, what opening found")
    _verb(verbs, "check", _check, "read everything; compare records, queues and transactions with each other")
    dump = _verb(verbs, "dump", _dump, "every record as a line of JSON, in the log's order")
    dump.add_argument("--topic", help="only this topic")
    dump.add_argument("--bodies", action="store_true", help="with bodies, in base64")
    dump.add_argument("--from", dest="start", type=_offset, metavar="OFFSET", help="from this physical offset on")
    dump.add_argument("--limit", type=_offset, metavar="N", help="at most N records")
    _verb(verbs, "heal", _heal, "recover and heal after a crash, close cleanly: ready for a broker")


def _verb(verbs: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.add_argument("path", metavar="PATH", help="the store's directory")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")
    verb.set_defaults(run=run)
    return verb


def _offset(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be below 0")
    return value


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


def _stat(options: argparse.Namespace) -> int:
    with reading(options.path) as store:
        stat = store.stat()
        facts: dict[str, Any] = {name: getattr(stat, name) for name in _FIGURES}
        queues = [
            {"topic": topic, "queue_id": queue_id, "first": first, "end": end}
            for topic, queue_id, first, end in store.queues()
        ]
        report = report_facts(store.open_report, read_only=True)
    if options.json:
        print_json({**facts, "queue_ranges": queues, "open": report})
        return 0
    log = facts["max_physical_offset"] - facts["min_physical_offset"]
    print_facts({"path": options.path, "log": size(log), **facts})
    print()
    print_table(["topic", "queue", "first", "end"], [list(queue.values()) for queue in queues])
    print()
    warnings = report.pop("warnings")
    print_facts({f"opening: {name}": value for name, value in report.items()})
    for warning in warnings:
        print(f"warning: {warning}")
    return 0


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


def _check(options: argparse.Namespace) -> int:
    with reading(options.path) as store:
        found = verify.verify(store, watched(store))
    if options.json:
        print_json(found.as_facts())
    else:
        print_facts(found.counts)
        for kind, texts in (("note", found.notes), ("DAMAGED", found.damages), ("DIFFERS", found.differences)):
            for text in texts:
                print(f"{kind}: {text}")
        print("damaged" if found.damages else "differences were found" if found.differences else "all is well")
    return 4 if found.damages else 1 if found.differences else 0


def _dump(options: argparse.Namespace) -> int:
    count = 0
    with reading(options.path) as store:
        for message in (message for batch, _ in scan(store, options.start) for message in batch):
            if options.limit is not None and count >= options.limit:
                break
            if options.topic in (None, message.topic):
                print_json(record_facts(message, bodies=options.bodies))
                count += 1
    return 0


def record_facts(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    """A record's fields by the names of the DataFrame's columns."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "transaction_id": message.transaction_id,
        "keys": message.keys,
        "tags": message.tags,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "transaction_type": message.transaction_type,
        "born_timestamp": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    if bodies:
        facts["body"] = base64.b64encode(message.body).decode()
    return facts


def _heal(options: argparse.Namespace) -> int:
    with writing(options.path) as store:
        report = store.heal()
    facts = report_facts(report, read_only=False)
    if options.json:
        print_json(facts)
        return 0
    print_facts({**facts, "milliseconds": age(report.milliseconds), "warnings": report.warnings or None})
    print("closed cleanly: a broker may open it")
    return 0
