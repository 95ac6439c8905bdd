"""`txstore message …`: finds messages by id, key or time, and recalls one that waits for its time.

In:     an id, a key, times, a recall handle.
Out:    text or JSON; exit code 1 if there is none.
Always: only `recall` writes.
Not here: half messages and the state of their transactions (`tx`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from txstore import StoredMessage
from txstore.cli.arguments import AsJson, Limit, StoreTarget, TopicName, moment, noun
from txstore.cli.output import print_facts, print_json, print_table, utc
from txstore.cli.records import print_message, text_of
from txstore.cli.target import GROUP, reading, writing
from txstore.inspection.records import message_facts

__all__ = ["app"]

app: typer.Typer = noun("Messages: get, by-key, by-time, recall.")


@app.command()
def get(
    path: StoreTarget,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Its unique id, or its offset id.")],
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Search only this topic.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show one message in full."""
    with reading(path) as broker:
        message = broker.message(message_id, topic=topic)
    if as_json:
        print_json(message_facts(message))
        return
    facts = message_facts(message)
    for name in ("body", "body_base64", "properties", "born_timestamp", "store_timestamp"):
        facts.pop(name, None)
    facts |= {"born": utc(message.born_timestamp), "stored": utc(message.store_timestamp)}
    print_facts({name: str(value) if isinstance(value, int) else value for name, value in facts.items()})
    print()
    print_table(["property", "value"], sorted(message.properties.items()))
    print()
    print(text_of(message.body))


@app.command()
def by_key(
    path: StoreTarget,
    topic: TopicName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of the message's keys.")],
    limit: Limit = 64,
    as_json: AsJson = False,
) -> int:
    """Show messages with a key, newest first."""
    with reading(path) as broker:
        return _print_found(broker.query(topic, key, limit), as_json=as_json)


@app.command()
def by_time(
    path: StoreTarget,
    topic: TopicName,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-01-31T12:00 (UTC), or 15m ago.")],
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only before this time.")] = None,
    limit: Limit = 64,
    as_json: AsJson = False,
) -> int:
    """Show messages stored in a time range, oldest first."""
    begin = moment(since, "--from")
    end = None if until is None else moment(until, "--until")
    with reading(path) as broker:
        return _print_found(broker.query_by_time(topic, begin, end, max_messages=limit), as_json=as_json)


@app.command()
def recall(
    path: StoreTarget,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="Its recall handle, which sending printed.")],
    as_json: AsJson = False,
) -> None:
    """Recall a message that waits for its time, so that it is never delivered."""
    with writing(path) as broker:
        message_id = broker.producer(GROUP).recall(handle)
    if as_json:
        print_json({"recalled": message_id})
    else:
        print(f"{message_id} recalled")


def _print_found(messages: Sequence[StoredMessage], *, as_json: bool) -> int:
    for message in messages:
        print_message(message, as_json=as_json)
    if not messages and not as_json:
        print("no messages found")
    return 0 if messages else 1
