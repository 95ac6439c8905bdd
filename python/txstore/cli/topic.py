"""`txstore topic …`: lists, describes, creates and deletes topics.

In:     a topic's name.
Out:    text or JSON.
Always: a creation or deletion is on disk when the command ends.
Not here: its messages.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txstore import TopicDescription
from txstore._native import is_system_topic
from txstore.cli.agreement import Yes, agreed
from txstore.cli.arguments import AsJson, StoreTarget, TopicName, noun
from txstore.cli.exit_codes import EXIT_FINDING, EXIT_OK
from txstore.cli.output import print_facts, print_json, print_table
from txstore.cli.target import reading, writing

__all__ = ["app"]

app: typer.Typer = noun("Topics: list, describe, create, delete.")


@app.command("list")
def list_topics(
    path: StoreTarget,
    every: Annotated[bool, typer.Option("--all", help="Include system topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics and their numbers of messages."""
    with reading(path) as broker:
        queues = {name: len(broker.describe_topic(name).read_queues) for name in broker.topics()}
        messages = dict.fromkeys(queues, 0)
        for queue in broker.queues():
            if every or not is_system_topic(queue.topic):
                queues[queue.topic] = max(queues.get(queue.topic, 0), queue.queue_id + 1)
                messages[queue.topic] = messages.get(queue.topic, 0) + queue.end - queue.first
    rows = [{"topic": name, "queues": queues[name], "messages": messages[name]} for name in sorted(queues)]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["topic", "queues", "messages"], [list(row.values()) for row in rows])
    else:
        print("there are no topics")


def topic_facts(found: TopicDescription) -> dict[str, Any]:
    """Returns a topic as JSON."""
    return {
        "topic": found.topic,
        "messages": found.messages,
        "message_type": found.message_type,
        "read_queues": list(found.read_queues),
        "write_queues": list(found.write_queues),
        "groups": list(found.groups),
        "queues": [
            {
                "queue_id": queue.queue_id,
                "first": queue.first,
                "end": queue.end,
                "newest": None if queue.newest is None else queue.newest.isoformat(timespec="milliseconds"),
            }
            for queue in found.queues
        ],
    }


@app.command()
def describe(path: StoreTarget, topic: TopicName, as_json: AsJson = False) -> None:
    """Show one topic: its queues, messages and groups."""
    with reading(path) as broker:
        facts = topic_facts(broker.describe_topic(topic))
    if as_json:
        print_json(facts)
        return
    queues = facts.pop("queues")
    print_facts(facts)
    print()
    print_table(["queue", "first", "end", "newest"], [list(queue.values()) for queue in queues])


@app.command()
def create(
    path: StoreTarget,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")],
    queues: Annotated[int | None, typer.Option("--queues", metavar="N", help="Number of queues (default: 4).")] = None,
    message_type: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE", help="NORMAL, FIFO, DELAY, TRANSACTION, MIXED: what gRPC clients may send."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic, add queues to it, or declare its message type."""
    with writing(path) as broker:
        broker.create_topic(topic, queues, message_type=None if message_type is None else message_type.upper())
        count = len(broker.write_queues(topic))
    if as_json:
        print_json({"topic": topic, "queues": count})
    else:
        print(f"topic {topic} has {count} queues")


@app.command()
def delete(path: StoreTarget, topic: TopicName, yes: Yes = False, as_json: AsJson = False) -> int:
    """Delete a topic and its messages.

    Their records stay in the log until retention deletes them.
    """
    with reading(path) as broker:
        messages = broker.describe_topic(topic).messages
    if not agreed(f"delete topic {topic} with {messages:,} messages?", yes):
        return EXIT_FINDING
    with writing(path) as broker:
        messages = broker.delete_topic(topic)
    if as_json:
        print_json({"topic": topic, "messages": messages})
    else:
        print(f"topic {topic} is deleted, with {messages:,} messages")
    return EXIT_OK
