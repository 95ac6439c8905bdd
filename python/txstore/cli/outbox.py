"""`txstore outbox …`: shows messages that wait in a database, retries and drops those that cannot be sent.

In:     a database's URL or SQLite file, message ids.
Out:    text or JSON.
Always: only parked rows are changed. The forwarder of a running program does the rest.
Not here: forwarding.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from txstore.cli.arguments import AsJson, Limit, noun
from txstore.cli.output import age, print_facts, print_json, print_table
from txstore.database import Database
from txstore.database.outbox import WaitingRow
from txstore.errors import MessageNotFoundError

__all__ = ["app"]

app: typer.Typer = noun("Messages that wait in a database: list, show, retry, drop.")

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
def list_rows(database: DatabaseUrl, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List messages that are not known to be durable in a log yet."""
    rows = Database(database).outbox(limit)
    if as_json:
        print_json([row_facts(row) for row in rows])
    elif rows:
        now = datetime.now(UTC)
        columns = ["message_id", "topic", "age", "size", "message_group", "parked"]
        print_table(
            columns,
            [
                [row.message_id, row.topic, _age(row, now), row.size, row.message_group, _first_line(row.parked)]
                for row in rows
            ],
        )
    else:
        print("no messages wait")


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


def _changed(row: WaitingRow, what: str, as_json: bool) -> None:
    if as_json:
        print_json(row_facts(row))
    else:
        print(f"message {row.message_id} {what}")


def _age(row: WaitingRow, now: datetime) -> str | None:
    return None if row.born_timestamp is None else age(int((now - row.born_timestamp).total_seconds() * 1000))


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.splitlines()[0]
