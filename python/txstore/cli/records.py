"""Prints messages, each on one line.

In:     messages as stored.
Out:    lines of text or JSON.
Always: a line is one line, whatever the body holds. A body that is not text is shown as its size.
Not here: which messages are shown.
"""

from __future__ import annotations

from txstore.cli.output import paint, print_json, printable, utc
from txstore.inspection.records import message_facts
from txstore.message import StoredMessage

__all__ = ["print_message", "text_of"]


def print_message(message: StoredMessage, *, as_json: bool) -> None:
    """Prints one message on one line: time, queue and offset, tags and keys, body."""
    if as_json:
        print_json(message_facts(message))
        return
    position = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    labels = " ".join(filter(None, [message.tags, *message.keys]))
    parts = [paint(utc(message.store_timestamp), "faint"), paint(printable(position), "cyan")]
    if labels:
        parts.append(paint(printable(labels), "yellow"))
    print("  ".join([*parts, text_of(message.body)]))


def text_of(body: bytes) -> str:
    """Returns a body on one line."""
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return f"({len(body):,} bytes)"
