"""`txstore dlq …`: lists dead letters and delivers them again.

In:     a group's name.
Out:    text or JSON.
Always: a dead letter that is delivered again stays in the list, because the log keeps it.
Not here: why the consumer failed. Its own log tells.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txstore import DeadLetter, errors
from txstore.cli.arguments import AsJson, GroupName, Limit, StoreTarget, noun
from txstore.cli.output import print_json, print_table
from txstore.cli.progress import Progress
from txstore.cli.records import text_of
from txstore.cli.target import reading, writing
from txstore.inspection.records import body_facts

__all__ = ["app"]

app: typer.Typer = noun("Dead letters: list, resend.")


def letter_facts(letter: DeadLetter) -> dict[str, Any]:
    """Returns a dead letter as JSON."""
    return {
        "message_id": letter.message_id,
        "group": letter.group,
        "topic": letter.topic,
        "tags": letter.tags,
        "keys": letter.keys,
        "died": letter.died.isoformat(timespec="milliseconds"),
        "reconsume_times": letter.reconsume_times,
        "queue_offset": letter.queue_offset,
        "physical_offset": letter.physical_offset,
        **body_facts(letter.body),
    }


@app.command("list")
def list_letters(path: StoreTarget, group: GroupName, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List a group's dead letters, oldest first."""
    with reading(path) as broker:
        letters = broker.dead_letters(group, limit=limit)
    if as_json:
        print_json([letter_facts(letter) for letter in letters])
    elif letters:
        columns = ["message_id", "topic", "died", "times", "keys", "body"]
        print_table(
            columns,
            [
                [
                    letter.message_id,
                    letter.topic,
                    letter.died.isoformat(timespec="milliseconds"),
                    letter.reconsume_times,
                    list(letter.keys),
                    text_of(letter.body),
                ]
                for letter in letters
            ],
        )
    else:
        print("there are no dead letters")


@app.command()
def resend(
    path: StoreTarget,
    group: GroupName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids, as `list` shows.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of the group's dead letters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters to their group again."""
    if bool(ids) == every:
        raise errors.InvalidOptionError("no dead letters chosen\nhint: pass message ids, or --all")
    with writing(path) as broker:
        letters = broker.dead_letters(group)
        missing = set(ids or []) - {letter.message_id for letter in letters}
        if missing:
            raise errors.MessageNotFoundError(
                f"group {group} has no dead letter {', '.join(sorted(missing))}\n"
                f"hint: `txstore dlq list {path} {group}` lists them"
            )
        # If one message died more than once, its last dead letter is used.
        chosen = {letter.message_id: letter for letter in letters if every or letter.message_id in (ids or [])}
        with Progress("resending", len(chosen)) as bar:
            for number, letter in enumerate(chosen.values()):
                broker.resend(letter)
                bar.to(number)
        broker.flush()
    if as_json:
        print_json({"group": group, "resent": sorted(chosen)})
    else:
        print(f"{len(chosen):,} resent to {group}")
