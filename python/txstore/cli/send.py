"""`txstore send`: sends messages to a topic by hand or from a pipe.

In:     a body, a file, or lines of stdin.
Out:    where each message was stored, and the recall handle of one that waits for its time.
Always: every message that is reported as sent is durable when the command ends, except at a server for an
        account without administration. An unknown topic is an error.
Not here: transactions, which need a local transaction and code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from txstore import EmbeddedBroker, Message, SentMessage, errors
from txstore._native import validate_topic
from txstore.cli.arguments import AsJson, StoreTarget, TopicName, coming, noun
from txstore.cli.output import print_json, utc
from txstore.cli.target import GROUP, Operated, Target, writing
from txstore.message import known_names

__all__ = ["app", "must_be_topic"]

_BATCH = 500

app: typer.Typer = noun()


@app.command()
def send(
    path: StoreTarget,
    topic: TopicName,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The body; default: read stdin.")] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="Read the body from a file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send each line of stdin as a message.")] = False,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="The message's tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="A key; repeat for more.")] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; repeat for more.")
    ] = None,
    delay_level: Annotated[int, typer.Option("--delay-level", metavar="N", help="1 (1 s) to 18 (2 h).")] = 0,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help="2026-01-31T12:00+02:00, or 15m from now.")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", metavar="NAME", help="Messages of one group stay in order.")
    ] = None,
    queue_id: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Send to this queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message, or many from a pipe."""
    properties = dict(_pair(text) for text in prop or [])
    due = None if deliver_at is None else coming(deliver_at, "--deliver-at")
    if due is not None and delay_level:
        raise errors.InvalidOptionError(
            f"both --delay-level {delay_level} and --deliver-at {deliver_at} are given\nhint: pass one of them",
            option="--deliver-at",
        )

    def made(content: bytes) -> Message:
        return Message(
            topic,
            content,
            tags=tags,
            keys=key or None,
            properties=properties or None,
            delay_level=delay_level,
            deliver_at=due,
            message_group=message_group,
        )

    with writing(path) as broker:
        must_be_topic(broker, path, topic)
        producer = broker.producer(GROUP)
        count = 0
        for batch in _batches(body, file, lines=lines):
            for sent in (producer.send(made(content), queue_id=queue_id) for content in batch):
                count += 1
                if as_json or not lines:
                    _print_sent(sent, due, as_json=as_json)
        _flush(broker)
    if lines and not as_json:
        print(f"{count:,} sent")


def must_be_topic(broker: Operated, path: Target, topic: str) -> None:
    """Raises InvalidNameError for an unknown topic."""
    validate_topic(topic)
    if broker.read_queues(topic):
        return
    try:
        known = f"{known_names('topics', broker.topics())}; "
    except errors.BrokerRefusedError:  # Only administrators may list the topics.
        known = ""
    raise errors.InvalidNameError(
        f"there is no topic {topic}\nhint: {known}`txstore topic create {path} {topic}` creates it"
    )


def _flush(broker: Operated) -> None:
    """Makes what was sent durable. A server does it for administrators; otherwise its own settings say when."""
    try:
        broker.flush()
    except errors.BrokerRefusedError:
        if isinstance(broker, EmbeddedBroker):
            raise


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise errors.InvalidOptionError(f"--property {text!r} has no value\nhint: --property NAME=VALUE")
    return name, value


def _batches(body: str | None, file: str | None, *, lines: bool) -> Iterator[list[bytes]]:
    """Yields the bodies in batches of bounded size."""
    if sum([body is not None, file is not None, lines]) > 1:
        raise errors.InvalidOptionError("several bodies given\nhint: an argument, --file, or --lines, but only one")
    if body is not None:
        yield [body.encode()]
    elif file is not None:
        yield [Path(file).read_bytes()]
    elif not lines:
        yield [sys.stdin.buffer.read()]
    else:
        batch: list[bytes] = []
        for line in sys.stdin.buffer:
            content = line.rstrip(b"\r\n")
            if content:
                batch.append(content)
            if len(batch) == _BATCH:
                yield batch
                batch = []
        yield batch


def _print_sent(sent: SentMessage, due: datetime | None, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "message_id": sent.message_id,
                "offset_message_id": sent.offset_message_id,
                "topic": sent.topic,
                "queue_id": sent.queue_id,
                "queue_offset": sent.queue_offset,
                "physical_offset": sent.physical_offset,
                "recall_handle": sent.recall_handle,
            }
        )
    elif due is not None and sent.recall_handle is not None:
        print(f"{sent.message_id}  {sent.topic} at {utc(due)}  {sent.recall_handle}")
    else:
        print(f"{sent.message_id}  {sent.topic}/{sent.queue_id}@{sent.queue_offset}")
