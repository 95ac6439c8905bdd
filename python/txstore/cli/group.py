"""`txstore group …`: lists, describes, creates, resets and deletes consumer groups.

In:     a group's name.
Out:    text or JSON.
Always: a reset prints the new offset of each queue.
Not here: dead letters (`dlq`), producer groups, which a store knows only by their transactions (`tx list`).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

import typer

from txstore import ConsumeFromWhere, GroupDescription, QueueLag, errors
from txstore.cli.agreement import Yes, agreed, is_asked
from txstore.cli.arguments import AsJson, GroupName, StoreTarget, TopicName, moment, noun
from txstore.cli.exit_codes import EXIT_FINDING, EXIT_OK
from txstore.cli.output import lag_cell, print_facts, print_json, print_table
from txstore.cli.target import reading, writing

__all__ = ["app"]

app: typer.Typer = noun("Consumer groups: list, describe, create, reset, delete.")


@app.command("list")
def list_groups(path: StoreTarget, as_json: AsJson = False) -> None:
    """List the consumer groups with their topics, lag, and connected consumers."""
    with reading(path) as broker:
        found = [broker.describe_group(name) for name in broker.groups()]
    rows = [
        {"group": one.group, "topics": list(one.topics), "lag": one.lag, "dead_letters": one.dead_letters}
        | {"consumers": one.members, "protocol": one.protocol}
        for one in found
    ]
    if as_json:
        print_json(rows)
    elif rows:
        names = ["group", "topics", "lag", "dead_letters", "consumers"]
        print_table(names, [[*_cells(row)[:4], _consumers(one)] for row, one in zip(rows, found, strict=True)])
    else:
        print("there are no consumer groups")


def _consumers(group: GroupDescription) -> int | str:
    """Returns the number of a group's consumers, and their protocol if it is gRPC."""
    return f"{group.members} by grpc" if group.protocol == "grpc" else group.members


def _cells(row: dict[str, Any]) -> list[Any]:
    return [lag_cell(value) if name == "lag" else value for name, value in row.items()]


def lag_facts(row: QueueLag) -> dict[str, Any]:
    """Returns a queue's lag as JSON."""
    return {
        "group": row.group,
        "topic": row.topic,
        "queue_id": row.queue_id,
        "consumer_offset": row.consumer_offset,
        "end": row.end,
        "lag": row.lag,
        "in_flight": row.in_flight,
        "to_redeliver": row.to_redeliver,
    }


@app.command()
def describe(path: StoreTarget, group: GroupName, as_json: AsJson = False) -> None:
    """Show one group: its consumers, and its offset and lag in each queue.

    Clients of the gRPC protocol acknowledge messages one by one: the lag includes those that they have now (in_flight),
    and those that they had and get again (to_redeliver).
    """
    with reading(path) as broker:
        found = broker.describe_group(group)
    queues = [lag_facts(row) for row in found.queues]
    facts: dict[str, Any] = {
        "group": found.group,
        "topics": list(found.topics),
        "lag": found.lag,
        "in_flight": found.in_flight,
        "to_redeliver": found.to_redeliver,
        "dead_letters": found.dead_letters,
        "consumers": found.members,
        "protocol": found.protocol,
    }
    if as_json:
        print_json({**facts, "queues": queues})
        return
    print_facts(facts)
    print()
    names = ["group", "topic", "queue", "offset", "end", "lag", "in_flight", "to_redeliver"]
    print_table(names, [_cells(queue) for queue in queues])


@app.command()
def create(
    path: StoreTarget,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")],
    orderly: Annotated[
        bool | None, typer.Option(help="Whether gRPC clients get the messages of a queue one after another.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", help="How often gRPC clients get a message again. Default: 16.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group, or change its settings."""
    with writing(path) as broker:
        broker.create_group(group, consume_message_orderly=orderly, retry_max_times=retries)
    print_json({"group": group}) if as_json else print(f"group {group} exists")


def _target(text: str) -> ConsumeFromWhere | datetime | int:
    if text in ("first", "last"):
        return ConsumeFromWhere(text)
    return int(text) if re.fullmatch(r"\d+", text) else moment(text, "--to")


@app.command()
def reset(
    path: StoreTarget,
    group: GroupName,
    topic: TopicName,
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="first, last, a time, or an offset with --queue.")],
    queue_id: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Only this queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Move a group to another offset of a topic."""
    target = _target(to)
    if isinstance(target, int) and queue_id is None:
        raise errors.InvalidOptionError(f"offset {target} applies to one queue only\nhint: name it: --queue 0")
    with writing(path) as broker:
        offsets = broker.reset_offsets(group, topic, target, queue_id=queue_id)
    if as_json:
        print_json({"group": group, "topic": topic, "offsets": {str(queue): at for queue, at in offsets.items()}})
    else:
        print_table(["queue", "next offset"], sorted(offsets.items()))


@app.command()
def delete(path: StoreTarget, group: GroupName, yes: Yes = False, as_json: AsJson = False) -> int:
    """Delete a group with its offsets and retries.

    With --yes, also delete its dead letters without asking.
    """
    with reading(path) as broker:
        found = broker.describe_group(group)
    if not agreed(f"delete group {group} with its offsets and {found.dead_letters:,} dead letters?", yes):
        return EXIT_FINDING
    with writing(path) as broker:
        # A person who was asked has seen the number of dead letters; a program must pass --yes.
        letters = broker.delete_group(group, force=yes or is_asked())
    if as_json:
        print_json({"group": group, "dead_letters": letters})
    else:
        print(f"group {group} is deleted, with {letters:,} dead letters")
    return EXIT_OK
