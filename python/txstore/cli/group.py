"""`txstore group …`: consumer groups listed, described, made, set to another place, deleted.

In: a group's name. Out: text or JSON. Always: a reset tells where each queue goes on. Not here: dead letters (`dlq`),
groups of producers, which a store knows only by their transactions (`tx list`).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

import typer

from txstore import ConsumeFromWhere, QueueLag, errors
from txstore.cli.agreement import Yes, agreed, is_asked
from txstore.cli.arguments import AsJson, GroupName, StorePath, TopicName, moment, noun
from txstore.cli.main import EXIT_FINDING, EXIT_OK
from txstore.cli.opening import reading_broker, writing_broker
from txstore.cli.output import print_facts, print_json, print_table

__all__ = ["app"]

app = noun("Consumer groups: list, describe, create, reset, delete.")


@app.command("list")
def list_groups(path: StorePath, as_json: AsJson = False) -> None:
    """List the consumer groups, what they read and how far they are behind."""
    with reading_broker(path) as broker:
        found = [broker.describe_group(name) for name in broker.groups()]
    rows = [
        {"group": one.group, "topics": list(one.topics), "lag": one.lag, "dead_letters": one.dead_letters}
        for one in found
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["group", "topics", "lag", "dead_letters"], [list(row.values()) for row in rows])
    else:
        print("there is no consumer group")


def lag_facts(row: QueueLag) -> dict[str, Any]:
    """A queue's lag as JSON."""
    return {
        "group": row.group,
        "topic": row.topic,
        "queue_id": row.queue_id,
        "consumer_offset": row.consumer_offset,
        "end": row.end,
        "lag": row.lag,
    }


@app.command()
def describe(path: StorePath, group: GroupName, as_json: AsJson = False) -> None:
    """Show one group: where it stands in each queue."""
    with reading_broker(path) as broker:
        found = broker.describe_group(group)
    queues = [lag_facts(row) for row in found.queues]
    facts: dict[str, Any] = {
        "group": found.group,
        "topics": list(found.topics),
        "lag": found.lag,
        "dead_letters": found.dead_letters,
    }
    if as_json:
        print_json({**facts, "queues": queues})
        return
    print_facts(facts)
    print()
    print_table(["group", "topic", "queue", "offset", "end", "lag"], [list(queue.values()) for queue in queues])


@app.command()
def create(
    path: StorePath, group: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")], as_json: AsJson = False
) -> None:
    """Make a consumer group known."""
    with writing_broker(path) as broker:
        broker.create_group(group)
    print_json({"group": group}) if as_json else print(f"there is a group {group}")


def _place(text: str) -> ConsumeFromWhere | datetime | int:
    if text in ("first", "last"):
        return ConsumeFromWhere(text)
    return int(text) if re.fullmatch(r"\d+", text) else moment(text, "--to")


@app.command()
def reset(
    path: StorePath,
    group: GroupName,
    topic: TopicName,
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="first, last, a time, or an offset with --queue.")],
    queue_id: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Only this queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Have a group go on elsewhere in a topic."""
    place = _place(to)
    if isinstance(place, int) and queue_id is None:
        raise errors.InvalidOptionError(f"offset {place} is meant for one queue\nhint: say which: --queue 0")
    with writing_broker(path) as broker:
        places = broker.reset_offsets(group, topic, place, queue_id=queue_id)
    if as_json:
        print_json({"group": group, "topic": topic, "offsets": {str(queue): at for queue, at in places.items()}})
    else:
        print_table(["queue", "goes on at"], sorted(places.items()))


@app.command()
def delete(path: StorePath, group: GroupName, yes: Yes = False, as_json: AsJson = False) -> int:
    """Delete a group: its offsets, its retries; with --yes also its dead letters."""
    with reading_broker(path) as broker:
        found = broker.describe_group(group)
    if not agreed(f"delete group {group} with its offsets and {found.dead_letters:,} dead letters?", yes):
        return EXIT_FINDING
    with writing_broker(path) as broker:
        # Whoever was asked has seen how many there are; a program must say so.
        letters = broker.delete_group(group, force=yes or is_asked())
    if as_json:
        print_json({"group": group, "dead_letters": letters})
    else:
        print(f"group {group} is deleted, with {letters:,} dead letters")
    return EXIT_OK
