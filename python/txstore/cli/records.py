"""Messages as commands show them: facts by the names of the DataFrame's columns, or one line each.

In: messages as stored. Out: values, lines. Always: a body that is no text is shown in base64 (JSON) or as a count of
bytes; a line is one line, whatever the body has in it. Not here: which messages are shown.
"""

from __future__ import annotations

import base64
from typing import Any

from txstore.cli.output import paint, print_json, printable, utc
from txstore.message import StoredMessage

__all__ = ["body_facts", "message_facts", "print_message", "record_facts"]


def record_facts(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    """A record's fields, and with `bodies` its body in base64."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "transaction_id": message.transaction_id,
        "keys": message.keys,
        "tags": message.tags,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "transaction_type": message.transaction_type,
        "born_timestamp": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    if bodies:
        facts["body"] = base64.b64encode(message.body).decode()
    return facts


def body_facts(body: bytes) -> dict[str, str]:
    """`body`, if it is text, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def message_facts(message: StoredMessage) -> dict[str, Any]:
    """All of a message."""
    return record_facts(message, bodies=False) | body_facts(message.body)


def print_message(message: StoredMessage, *, as_json: bool) -> None:
    """One message on one line: when, where, tags and keys, body."""
    if as_json:
        print_json(message_facts(message))
        return
    place = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    labels = " ".join(filter(None, [message.tags, *message.keys]))
    parts = [paint(utc(message.store_timestamp_ms) or "-", "faint"), paint(printable(place), "cyan")]
    if labels:
        parts.append(paint(printable(labels), "yellow"))
    print("  ".join([*parts, text_of(message.body)]))


def text_of(body: bytes) -> str:
    """A body on one line."""
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return f"({len(body):,} bytes)"
