"""`txstore tx …`: lists, shows, explains and ends transactions.

In:     a transaction's id.
Out:    text or JSON, an exit code.
Always: an id means the newest transaction with that id. A transaction that ended in another way is an error.
Not here: the explanation of a transaction (`txstore.TransactionTrace`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from txstore import TraceEvent, TransactionState, errors
from txstore._native import EndResult, Store, TransactionRow, WaitingHalf
from txstore.cli.arguments import AsJson, StorePath, noun
from txstore.cli.output import age, paint_state, print_facts, print_json, print_table, printable, utc
from txstore.config import milliseconds
from txstore.inspection.opening import reading, reading_broker, writing
from txstore.message import utc as from_ms

__all__ = ["app"]

_BATCH = 1000
_EPOCH = datetime.fromtimestamp(0, UTC)

app: typer.Typer = noun("Transactions: list, show, explain, commit, rollback, discard, resume.")
TransactionId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The transaction's id.")]


@app.command("list")
def list_transactions(
    path: StorePath,
    every: Annotated[bool, typer.Option("--all", help="Include ended ones; reads the whole log.")] = False,
    state: Annotated[
        TransactionState | None, typer.Option("--state", help="Only those in this state; reads the whole log.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only of this producer group.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only for this topic.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N.")] = None,
    as_json: AsJson = False,
) -> None:
    """List pending transactions, or all transactions in the log."""
    pending = not every and state in (None, TransactionState.PENDING)
    with reading(path) as store:
        if pending:
            rows = _waiting(store)
            columns = ["transaction_id", "topic", "producer_group", "age", "checks", "last_check", "next_look"]
        else:
            rows = [row_facts(row) for row in store.transactions() if state is None or row.state == state]
            columns = ["transaction_id", "state", "topic", "producer_group", "prepared", "ended", "copies", "finals"]
    rows = [row for row in rows if group in (None, row["producer_group"]) and topic in (None, row["topic"])][:limit]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(columns, [[_cell(row, column) for column in columns] for row in rows])
    else:
        print("no pending transactions" if pending else "no transactions found")


def _cell(row: dict[str, Any], column: str) -> Any:
    match column:
        case "prepared" | "ended":
            time_ms = row[f"{column}_timestamp_ms"]
            return None if time_ms is None else utc(from_ms(time_ms))
        case "age" | "last_check" | "next_look":
            name = {"age": "stored_age_ms", "last_check": "last_check_age_ms", "next_look": "look_again_in_ms"}[column]
            return age(row[name])
        case "copies":
            return len(row["halves"])
        case "finals":
            return f"{len(row['finals'])} (twice!)" if len(row["finals"]) > 1 else str(len(row["finals"]))
    return row[column]


def _waiting(store: Store) -> list[dict[str, Any]]:
    """Returns pending transactions from the table, without reading the whole log."""
    found: list[dict[str, Any]] = []
    after = -1
    while batch := store.halves_waiting(after, _BATCH):
        found += [waiting_facts(store, half) for half in batch]
        after = batch[-1].half_queue_offset
    return found


def waiting_facts(store: Store, half: WaitingHalf) -> dict[str, Any]:
    """Returns one pending transaction with its owner, its checks and the time of the next look."""
    message = store.half(half.half_queue_offset)
    return {
        "transaction_id": message.transaction_id,
        "state": "pending",
        "topic": message.real_topic,
        "producer_group": half.producer_group,
        "half_queue_offset": half.half_queue_offset,
        "prepared_transaction_offset": half.prepared_transaction_offset,
        "stored_age_ms": half.stored_age_ms,
        "running": half.running,
        "owner": half.owner,
        "checks": half.checks,
        "last_check_age_ms": half.last_check_age_ms,
        "look_again_in_ms": half.look_again_in_ms,
    }


def row_facts(row: TransactionRow) -> dict[str, Any]:
    """Returns one transaction as the log tells it."""
    return {
        "transaction_id": row.transaction_id,
        "state": row.state,
        "topic": row.topic,
        "producer_group": row.producer_group,
        "prepared_timestamp_ms": _since_epoch_ms(row.prepared_timestamp),
        "ended_timestamp_ms": None if row.ended_timestamp is None else _since_epoch_ms(row.ended_timestamp),
        "checks": row.checks,
        "halves": [list(half) for half in row.halves],
        "finals": row.finals,
        "discards": row.discards,
        "ops": row.ops,
    }


def _since_epoch_ms(time: datetime) -> int:
    return milliseconds(time - _EPOCH)


@app.command()
def show(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Show the facts of one transaction."""
    with reading(path) as store:
        row = store.transaction(transaction_id)
        half = store.read_at(row.halves[-1][1]) if row.halves else None
        facts = row_facts(row)
        if half is not None:
            facts |= {"keys": list(half.keys), "tags": half.tags, "body_bytes": len(half.body)}
    if as_json:
        print_json(facts)
        return
    ended = None if row.ended_timestamp is None else utc(row.ended_timestamp)
    times = {"prepared": utc(row.prepared_timestamp), "ended": ended}
    offsets = {"halves": [f"{q}@{c}" for q, c in row.halves], "finals": row.finals, "discards": row.discards}
    kept = {name: value for name, value in facts.items() if not name.endswith("_timestamp_ms")}
    print_facts({**kept, **times, **offsets, "ops": sorted(set(row.ops))})


@app.command()
def explain(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Explain one transaction: its state and history."""
    with reading_broker(path) as broker:
        trace = broker.transaction(transaction_id)
        row = broker.store.transaction(transaction_id)
        waiting = None if trace.pending is None else _waiting_of(broker.store, row)
    if as_json:
        events = [event_facts(event) for event in trace.events]
        print_json({**row_facts(row), "history": events, "why": trace.why, "waiting": waiting, "next": trace.next_step})
        return
    first, *rest = trace.explain().split("\n")
    print(printable(first.removesuffix(trace.state)) + paint_state(trace.state))
    for line in rest:
        print(printable(line))


def _waiting_of(store: Store, row: TransactionRow) -> dict[str, Any] | None:
    """Returns the facts of a pending transaction; None if it ended meanwhile."""
    newest = row.halves[-1][0] if row.halves else 0
    found = (half for half in store.halves_waiting(newest - 1, 1) if half.half_queue_offset == newest)
    return next((waiting_facts(store, half) for half in found), None)


def event_facts(event: TraceEvent) -> dict[str, Any]:
    """Returns one event of a transaction's history."""
    return {
        "physical_offset": event.physical_offset,
        "time": None if event.time is None else utc(event.time),
        "kind": event.kind,
        "what": event.text,
        "topic": event.topic,
        "queue_id": event.queue_id,
        "queue_offset": event.queue_offset,
    }


@app.command()
def commit(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Commit a pending transaction by hand."""
    with writing(path) as store:
        end = store.end_transaction(
            *_half(store, transaction_id), commit=True, transaction_id=transaction_id, by_hand=True
        )
    _print_end(transaction_id, end, as_json=as_json)


@app.command()
def rollback(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Roll a pending transaction back by hand."""
    with writing(path) as store:
        end = store.end_transaction(
            *_half(store, transaction_id), commit=False, transaction_id=transaction_id, by_hand=True
        )
    _print_end(transaction_id, end, as_json=as_json)


@app.command()
def discard(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Discard a pending transaction.

    No consumer sees it. `resume` makes it pending again.
    """
    with writing(path) as store:
        end = store.discard(*_half(store, transaction_id))
    _print_end(transaction_id, end, as_json=as_json)


def _half(store: Store, transaction_id: str) -> tuple[int, int]:
    """Returns (half queue offset, physical offset) of the newest copy."""
    row = store.transaction(transaction_id)
    if not row.halves:
        raise errors.AlreadyEndedError(
            f"transaction {transaction_id} has already ended: {row.state}", outcome=row.state
        )
    return row.halves[-1]


def _print_end(transaction_id: str, end: EndResult, *, as_json: bool) -> None:
    facts = {
        "transaction_id": transaction_id,
        "outcome": end.outcome,
        "already": end.already,
        "physical_offset": end.physical_offset,
        "queue_offset": end.queue_offset,
    }
    if as_json:
        print_json(facts)
    else:
        print(f"{transaction_id}: {paint_state(end.outcome)}{' already, nothing was written' if end.already else ''}")


@app.command()
def resume(path: StorePath, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Make a discarded transaction pending again.

    It becomes a new transaction with the same id.
    """
    with writing(path) as store:
        sent = store.resume(transaction_id)
    facts = {
        "transaction_id": transaction_id,
        "half_queue_offset": sent.queue_offset,
        "prepared_transaction_offset": sent.physical_offset,
    }
    if as_json:
        print_json(facts)
    else:
        print(f"{transaction_id}: pending again, with its half at {sent.physical_offset}")
