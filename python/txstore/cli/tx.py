"""`txstore tx …`: lists, shows, explains, ends and reports transactions.

In:     a transaction's id.
Out:    text or JSON, an exit code.
Always: an id means the newest transaction with that id; a unique prefix of at least 4 characters is enough. A
        transaction that ended in another way is an error.
Not here: the comparison with a database (`txstore.database`), the explanation of a transaction
        (`txstore.TransactionTrace`), the report (`txstore.report`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from txstore import (
    EndResult,
    LocalTransactionState,
    PendingTransaction,
    TraceEvent,
    TransactionRow,
    TransactionState,
    TransactionTrace,
    errors,
)
from txstore.cli.arguments import AsJson, StorePath, StoreTarget, moment, noun
from txstore.cli.exit_codes import EXIT_FINDING
from txstore.cli.output import age, age_cell, paint_state, print_facts, print_json, print_table, printable, utc
from txstore.cli.progress import Progress
from txstore.cli.target import Operated, Target, reading, writing
from txstore.config import milliseconds
from txstore.database import Database, MissingTransaction
from txstore.message import utc as from_ms
from txstore.transactions.escaped import EscapedTransaction

if TYPE_CHECKING:
    from txstore.client.sending import RemoteEnd

__all__ = ["app"]

_PREFIX_MIN = 4
_SHOWN = 4
_EPOCH = datetime.fromtimestamp(0, UTC)

app: typer.Typer = noun("Transactions: list, show, explain, commit, rollback, discard, resume, reconcile, report.")
TransactionId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The transaction's id, or how it begins.")]


@app.command("list")
def list_transactions(
    path: StoreTarget,
    every: Annotated[bool, typer.Option("--all", help="Include ended ones; reads the whole log.")] = False,
    state: Annotated[
        TransactionState | None, typer.Option("--state", help="Only those in this state; reads the whole log.")
    ] = None,
    escaped: Annotated[
        bool, typer.Option("--escaped", help="Those that a replica let escape to another broker.")
    ] = False,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only of this producer group.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only for this topic.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N.")] = None,
    as_json: AsJson = False,
) -> None:
    """List pending transactions, or all transactions in the log."""
    if escaped:
        _list_escaped(path, group, topic, limit, as_json=as_json)
        return
    pending = not every and state in (None, TransactionState.PENDING)
    with reading(path) as broker:
        if pending:
            waiting = broker.transactions(group=group, topic=topic, limit=limit)
            rows = [waiting_facts(one) for one in waiting]
            columns = ["transaction_id", "topic", "producer_group", "age", "checks", "last_check", "next_look"]
        else:
            wanted: Any = state  # The overloads admit no union.
            rows = [row_facts(row) for row in broker.transactions(wanted, group=group, topic=topic, limit=limit)]
            columns = ["transaction_id", "state", "topic", "producer_group", "prepared", "ended", "copies", "finals"]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(columns, [[_cell(row, column) for column in columns] for row in rows])
    else:
        print("no pending transactions" if pending else "no transactions found")


def _list_escaped(path: Target, group: str | None, topic: str | None, limit: int | None, *, as_json: bool) -> None:
    with reading(path) as broker:
        found = [
            one
            for one in broker.escaped_transactions()
            if group in (None, one.producer_group) and topic in (None, one.topic)
        ]
    rows = [escape_facts(one) for one in found[:limit]]
    columns = ["transaction_id", "escape", "broker_name", "topic", "producer_group", "time"]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(columns, [[row[column] for column in columns] for row in rows])
    else:
        print("no transactions have escaped")


def escape_facts(one: EscapedTransaction) -> dict[str, Any]:
    """Returns how a transaction has escaped to another broker."""
    return {
        "transaction_id": one.transaction_id,
        "escape": one.state,
        "broker_name": one.broker_name,
        "is_txstore": one.is_txstore,
        "topic": one.topic,
        "producer_group": one.producer_group,
        "half_queue_offset": one.half_queue_offset,
        "prepared_transaction_offset": one.physical_offset,
        "time": utc(one.time),
    }


def _cell(row: dict[str, Any], column: str) -> Any:
    match column:
        case "prepared" | "ended":
            time_ms = row[f"{column}_timestamp_ms"]
            return None if time_ms is None else utc(from_ms(time_ms))
        case "age" | "last_check" | "next_look":
            name = {"age": "stored_age_ms", "last_check": "last_check_age_ms", "next_look": "look_again_in_ms"}[column]
            return age_cell(row[name]) if column == "age" else age(row[name])
        case "copies":
            return len(row["halves"])
        case "finals":
            return f"{len(row['finals'])} (twice!)" if len(row["finals"]) > 1 else str(len(row["finals"]))
    return row[column]


def waiting_facts(one: PendingTransaction) -> dict[str, Any]:
    """Returns one pending transaction with its owner, its checks and the time of the next look."""
    return {
        "transaction_id": one.transaction_id,
        "state": "pending",
        "topic": one.topic,
        "producer_group": one.producer_group,
        "half_queue_offset": one.half_queue_offset,
        "prepared_transaction_offset": one.prepared_transaction_offset,
        "stored_age_ms": milliseconds(one.stored_age),
        "running": one.running,
        "owner": one.owner,
        "checks": one.checks,
        "last_check_age_ms": None if one.last_check is None else milliseconds(one.last_check),
        "look_again_in_ms": None if one.next_check is None else milliseconds(one.next_check),
        "why": one.why,
    }


def row_facts(row: TransactionRow | TransactionTrace) -> dict[str, Any]:
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
        "finals": list(row.finals),
        "discards": list(row.discards),
        "ops": list(row.ops),
    }


def _since_epoch_ms(time: datetime) -> int:
    return milliseconds(time - _EPOCH)


@app.command()
def show(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Show the facts of one transaction."""
    with reading(path) as broker:
        trace = _found(broker, transaction_id)
    facts = row_facts(trace)
    if trace.body_bytes is not None:
        facts |= {"keys": list(trace.keys), "tags": trace.tags, "body_bytes": trace.body_bytes}
    if trace.escaped is not None:
        facts["escaped"] = str(trace.escaped)
    if as_json:
        print_json(facts)
        return
    ended = None if trace.ended_timestamp is None else utc(trace.ended_timestamp)
    times = {"prepared": utc(trace.prepared_timestamp), "ended": ended}
    offsets = {"halves": [f"{q}@{c}" for q, c in trace.halves], "finals": trace.finals, "discards": trace.discards}
    kept = {name: value for name, value in facts.items() if not name.endswith("_timestamp_ms")}
    print_facts({**kept, **times, **offsets, "ops": sorted(set(trace.ops))})


@app.command()
def explain(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Explain one transaction: its state and history."""
    with reading(path) as broker:
        trace = _found(broker, transaction_id)
    if as_json:
        events = [event_facts(event) for event in trace.events]
        waiting = None if trace.pending is None else waiting_facts(trace.pending)
        said = {"history": events, "why": trace.why, "waiting": waiting, "next": trace.next_step}
        print_json({**row_facts(trace), **said})
        return
    first, *rest = trace.explain().split("\n")
    print(printable(first.removesuffix(trace.state)) + paint_state(trace.state))
    for line in rest:
        print(printable(line))


def _found(broker: Operated, given: str) -> TransactionTrace:
    """Returns a transaction by its id or a unique prefix of it. Looks among pending ones first, which is quick.

    Raises TransactionNotFoundError, and InvalidOptionError if several ids begin so.
    """
    try:
        return broker.transaction(given)
    except errors.TransactionNotFoundError:
        if len(given) < _PREFIX_MIN:
            raise
        for state in ("pending", None):
            wanted: Any = state
            found = {one.transaction_id for one in broker.transactions(wanted, id_prefix=given)}
            if len(found) > 1:
                shown = ", ".join(sorted(map(str, found))[:_SHOWN])
                raise errors.InvalidOptionError(
                    f"{len(found)} transactions begin with {given}\nhint: pass more of the id: {shown}"
                ) from None
            for name in found:
                return broker.transaction(str(name))
        raise


def _id(broker: Operated, given: str) -> str:
    return str(_found(broker, given).transaction_id or given)


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
def commit(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Commit a pending transaction by hand."""
    _end(path, transaction_id, LocalTransactionState.COMMIT, as_json=as_json)


@app.command()
def rollback(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Roll a pending transaction back by hand."""
    _end(path, transaction_id, LocalTransactionState.ROLLBACK, as_json=as_json)


def _end(path: Target, given: str, state: LocalTransactionState, *, as_json: bool) -> None:
    with writing(path) as broker:
        name = _id(broker, given)
        end = broker.end_transaction(name, state)
    _print_end(name, end, as_json=as_json)


@app.command()
def discard(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Discard a pending transaction.

    No consumer sees it. `resume` makes it pending again.
    """
    with writing(path) as broker:
        name = _id(broker, transaction_id)
        end = broker.discard(name)
    _print_end(name, end, as_json=as_json)


def _print_end(transaction_id: str, end: EndResult | RemoteEnd, *, as_json: bool) -> None:
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
def resume(path: StoreTarget, transaction_id: TransactionId, as_json: AsJson = False) -> None:
    """Make a discarded transaction pending again.

    It becomes a new transaction with the same id.
    """
    with writing(path) as broker:
        name = _id(broker, transaction_id)
        sent = broker.resume(name)
    facts = {
        "transaction_id": name,
        "half_queue_offset": None if sent is None else sent.queue_offset,
        "prepared_transaction_offset": None if sent is None else sent.physical_offset,
    }
    if as_json:
        print_json(facts)
    else:
        where = "" if sent is None else f", with its half at {sent.physical_offset}"
        print(f"{name}: pending again{where}")


@app.command()
def reconcile(
    path: StoreTarget,
    database: Annotated[
        str,
        typer.Option(
            "--database", metavar="DATABASE", help="A postgresql:// or mysql+pymysql:// URL, or a SQLite file's path."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Name transactions that a database has committed and whose message is missing.

    It is neither in the log nor pending: a machine was lost, or a backup of the store was restored. Compares the rows
    of blocks that are not older than the log's first message.
    """
    with reading(path) as broker:
        missing = Database(database).reconcile(broker)
    if as_json:
        print_json([missing_facts(one) for one in missing])
    elif missing:
        columns = ["transaction_id", "committed", "in the log"]
        print_table(columns, [[one.transaction_id, utc(one.committed_timestamp), one.state or "no"] for one in missing])
    else:
        print("no message is missing")
    if missing:
        raise typer.Exit(EXIT_FINDING)


def missing_facts(one: MissingTransaction) -> dict[str, Any]:
    """Returns a transaction without a message as JSON."""
    committed_ms = _since_epoch_ms(one.committed_timestamp)
    return {"transaction_id": one.transaction_id, "committed_timestamp_ms": committed_ms, "state": one.state}


@app.command()
def report(
    path: StorePath,
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the report alone.")],
    pending_after_minutes: Annotated[
        float,
        typer.Option(
            "--pending-after-minutes", metavar="N", min=0, help="Age from which a pending transaction is suspicious."
        ),
    ] = 10,
    now: Annotated[
        str | None, typer.Option("--now", metavar="TIME", help="The time that ages refer to, UTC; by default now.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a Parquet row for each transaction of the log, and an HTML page.

    A later run with the same folder replaces them, and its page says what has changed.
    """
    try:
        from txstore.report.writing import PAGE, ROWS, write_report
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("txstore"):
            raise
        raise errors.InvalidOptionError(
            f"the report needs {error.name}, which is not installed\nhint: pip install 'txstore[report]'",
            option="report",
        ) from None
    at, pending_after = now and moment(now, "--now"), timedelta(minutes=pending_after_minutes)
    with Progress("transactions") as bar:
        summary = write_report(path, output, now=at or None, pending_after=pending_after, progress=bar.to)
    folder = output.resolve()
    facts = {
        "transactions": summary.all.transactions,
        **{state: count for state, count in summary.all.counts.items() if count},
        "rows": str(folder / ROWS),
        "page": str(folder / PAGE),
    }
    found = {one.name.lower(): one.count for one in summary.suspicions if one.count}
    if as_json:
        print_json({**facts, "to_look_at": found})
    else:
        print_facts({**facts, **found})
