"""`txstore outbox …`: shows messages that wait in a database, retries and drops those that cannot be sent, and sends
those again that a restored log has lost.

In:     a database's URL or SQLite file, message ids; a store's directory, or a broker's address.
Out:    text or JSON.
Always: only parked rows are changed. The forwarder of a running program does the rest.
Not here: forwarding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from txstore.cli.arguments import AsJson, Limit, noun
from txstore.cli.exit_codes import EXIT_FINDING
from txstore.cli.output import LateCell, age_cell, print_facts, print_json, print_table
from txstore.cli.target import joined, log_of, reading
from txstore.database import Database
from txstore.database.outbox import WaitingRow, messages_in_log
from txstore.errors import MessageNotFoundError

__all__ = ["app"]

app: typer.Typer = noun("Messages that wait in a database: list, show, retry, drop, resend.")

DatabaseUrl: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="DATABASE", help="A postgresql:// or mysql+pymysql:// URL, or the path of a SQLite file."),
]
MessageId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="A message id, as `list` shows.")]


def row_facts(row: WaitingRow) -> dict[str, Any]:
    """Returns a waiting row as JSON."""
    born = row.born_timestamp
    return {
        "message_id": row.message_id,
        "topic": row.topic,
        "producer_group": row.producer_group,
        "message_group": row.message_group,
        "born_timestamp": None if born is None else born.isoformat(timespec="milliseconds"),
        "size": row.size,
        "parked": row.parked,
    }


@app.command("list")
def list_rows(
    database: DatabaseUrl,
    limit: Limit = 100,
    in_log: Annotated[
        str | None,
        typer.Option(
            "--in-log", metavar="STORE|ADDRESS", help="Mark those that the log of this store or broker has already."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List messages that are not known to be durable in a log yet."""
    rows = Database(database).outbox(limit)
    there = None if in_log is None else _in_log(rows, in_log)
    if as_json:
        print_json([row_facts(row) | _marked(row, there) for row in rows])
    elif rows:
        now = datetime.now(UTC)
        columns = ["message_id", "topic", "age", "size", "message_group", "parked", *([] if there is None else ["log"])]
        table = [
            [row.message_id, row.topic, _age(row, now), row.size, row.message_group, _first_line(row.parked)]
            + (["in the log" if is_there else "" for is_there in _marked(row, there).values()])
            for row in rows
        ]
        print_table(columns, table)
    else:
        print("no messages wait")


def _in_log(rows: Sequence[WaitingRow], log: str) -> set[tuple[str, str]]:
    """Returns the (topic, message id) of rows that a log has."""
    messages = [(row.topic, row.message_id) for row in rows if row.topic is not None]
    with reading(log_of(log)) as broker:
        return messages_in_log(broker, messages)


def _marked(row: WaitingRow, there: set[tuple[str, str]] | None) -> dict[str, bool]:
    return {} if there is None else {"in_log": (row.topic, row.message_id) in there}


@app.command()
def show(database: DatabaseUrl, message_id: MessageId, as_json: AsJson = False) -> None:
    """Show one message that waits."""
    rows = [row for row in Database(database).outbox(1 << 40) if row.message_id == message_id]
    if not rows:
        raise MessageNotFoundError(
            f"the outbox has no message {message_id}\nhint: `txstore outbox list` shows what waits"
        )
    facts = row_facts(rows[0])
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


@app.command()
def retry(database: DatabaseUrl, message_id: MessageId, as_json: AsJson = False) -> None:
    """Let a parked message be sent again."""
    _changed(Database(database).retry_parked(message_id), "will be sent", as_json)


@app.command()
def drop(database: DatabaseUrl, message_id: MessageId, as_json: AsJson = False) -> None:
    """Delete a parked message. It is never sent."""
    _changed(Database(database).drop_parked(message_id), "is dropped", as_json)


@app.command()
def resend(
    database: DatabaseUrl,
    to: Annotated[
        str,
        typer.Option("--to", metavar="STORE|ADDRESS", help="A store's directory, or HOST:PORT, unix:FILE, store:PATH."),
    ],
    other_logs: Annotated[
        bool, typer.Option("--other-logs", help="Also those sent to other logs, such as one that is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send messages again that a restored log has lost.

    Their rows must have been kept: Database(…, keep_sent=…). A message that the log has is not sent.
    """
    with joined(to) as broker:
        done = Database(database).resend(broker, other_logs=other_logs)
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        print_facts(dataclasses.asdict(done))
    if done.refused:
        raise typer.Exit(EXIT_FINDING)


def _changed(row: WaitingRow, what: str, as_json: bool) -> None:
    if as_json:
        print_json(row_facts(row))
    else:
        print(f"message {row.message_id} {what}")


def _age(row: WaitingRow, now: datetime) -> LateCell | None:
    return None if row.born_timestamp is None else age_cell(int((now - row.born_timestamp).total_seconds() * 1000))


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.splitlines()[0]
