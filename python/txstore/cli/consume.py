"""`txstore consume`: reads a topic for a group and acknowledges its messages.

In:     a group and a topic.
Out:    a line for each message.
Always: a message is acknowledged after it was printed, so an interrupted command loses none. Ctrl-C waits for that, so
        the next command repeats none. Delayed messages that are due are delivered while it runs.
Not here: reading without a group (`tail`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, cast

import typer

from txstore import ConsumeFromWhere, Consumer, EmbeddedBroker, StoredMessage
from txstore.cli.arguments import AsJson, Filter, StoreTarget, Tags, TopicName, moment, noun, selector_of
from txstore.cli.records import print_message
from txstore.cli.send import must_be_topic
from txstore.cli.target import Operated, writing
from txstore.signals import handled

__all__ = ["app"]

_BATCH = 32
_OFFSETS_EVERY_SECONDS = 5.0
_WAIT_SECONDS = 0.5
_SERVER_SECONDS = 2.0

app: typer.Typer = noun()


@app.command()
def consume(
    path: StoreTarget,
    topic: TopicName,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group to read for.")],
    tags: Tags = None,
    sql: Filter = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="Where a new group begins: first, last, or a time.")
    ] = "first",
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Stop after N.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a topic for a group: print each message, then acknowledge it."""
    where = ConsumeFromWhere(start) if start in ("first", "last") else moment(start, "--from")
    with writing(path) as broker:
        must_be_topic(broker, path, topic)
        with broker.consumer(group, topic, selector_of(tags, sql), start=where) as consumer:
            _print_all(broker, consumer, limit, follow=follow, as_json=as_json)


def _print_all(broker: Operated, consumer: Consumer, limit: int | None, *, follow: bool, as_json: bool) -> None:
    left, written_at = limit, time.monotonic()
    # A server assigns queues and sends messages after the consumer has connected.
    patience = 0.0 if isinstance(broker, EmbeddedBroker) else _SERVER_SECONDS
    while left is None or left > 0:
        if isinstance(broker, EmbeddedBroker):
            broker.store.deliver_delayed()
        wanted = _BATCH if left is None else min(_BATCH, left)
        messages = consumer.poll(wanted, timeout=_WAIT_SECONDS if follow else patience)
        if not messages and not follow:
            break
        with _interrupted_at_end():
            for message in messages:
                print_message(cast("StoredMessage", message), as_json=as_json)
            sys.stdout.flush()
            consumer.acknowledge()
        left = None if left is None else left - len(messages)
        if time.monotonic() - written_at > _OFFSETS_EVERY_SECONDS:
            broker.write_offsets()
            written_at = time.monotonic()


@contextmanager
def _interrupted_at_end() -> Iterator[None]:
    """Inside, Ctrl-C takes effect at the end of the block. A second one does at once: the output may be blocked."""
    interrupt = signal.getsignal(signal.SIGINT)
    arrived = threading.Event()

    def remember() -> None:
        arrived.set()
        signal.signal(signal.SIGINT, interrupt)

    # Where Ctrl-C is ignored, as in a script's background, it stays ignored.
    with handled({signal.SIGINT: remember} if callable(interrupt) else {}):
        yield
    if arrived.is_set():
        raise KeyboardInterrupt
