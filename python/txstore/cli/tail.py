"""`txstore tail`: shows the newest messages of a topic and follows it.

In:     a topic.
Out:    a line for each message, in the order of the log.
Always: touches no group, takes no lock, writes nothing, and works while a program writes.
Not here: reading from the beginning (`consume`, `store dump`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from txstore import MessageQueue, StoredMessage
from txstore.cli.arguments import AsJson, Filter, StoreTarget, Tags, TopicName, noun, selector_of
from txstore.cli.records import print_message
from txstore.cli.target import Operated, reading
from txstore.selector import Selector, parse_selector

__all__ = ["app"]

_BATCH = 200
_WAIT_MS = 200

app: typer.Typer = noun()


@app.command()
def tail(
    path: StoreTarget,
    topic: TopicName,
    tags: Tags = None,
    sql: Filter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="Begin with the last N.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic's newest messages, without acknowledging any."""
    wanted = parse_selector(selector_of(tags, sql))
    with reading(path) as broker:
        broker.describe_topic(topic)
        ranges = {queue_id: (first, end) for _, queue_id, first, end in broker.queues(topic)}
        ends = {queue_id: end for queue_id, (_, end) in ranges.items()}
        newest = [
            message
            for queue_id, (first, end) in ranges.items()
            for message in _newest(broker, MessageQueue(topic, queue_id), first, end, wanted, limit)
        ]
        newest.sort(key=lambda message: message.physical_offset)
        for message in newest[len(newest) - min(limit, len(newest)) :]:
            print_message(message, as_json=as_json)
        visible_end = broker.stat().visible_physical_offset
        while follow:
            for message in _since(broker, topic, ends, wanted):
                print_message(message, as_json=as_json)
            sys.stdout.flush()
            visible_end = broker.wait(visible_end, _WAIT_MS)


def _newest(
    broker: Operated, queue: MessageQueue, first: int, end: int, tags: Selector, limit: int
) -> list[StoredMessage]:
    """Returns the last `limit` messages of a queue. Reads batches backwards until enough have one of the tags."""
    at = end
    found: list[StoredMessage] = []
    while at > first and len(found) < limit:
        begin = max(first, at - max(limit, _BATCH))
        batch: list[StoredMessage] = []
        offset = begin
        while offset < at:
            messages, offset = broker.read(*queue, offset, at - offset, tags)
            batch += [message for message in messages if message.queue_offset < at]
        found = batch + found
        at = begin
    return found[len(found) - min(limit, len(found)) :]


def _since(broker: Operated, topic: str, ends: dict[int, int], tags: Selector) -> Iterator[StoredMessage]:
    """Yields the messages after `ends`, and advances `ends`."""
    came: list[StoredMessage] = []
    for _, queue_id, first, _ in broker.queues(topic):
        at = max(first, ends.get(queue_id, first))
        while True:
            messages, ends[queue_id] = broker.read(topic, queue_id, at, _BATCH, tags)
            came += messages
            if ends[queue_id] == at:
                break
            at = ends[queue_id]
    yield from sorted(came, key=lambda message: message.physical_offset)
