"""Records: a store's messages as facts with the DataFrame's column names, and the scan that reads them.

In:     messages as stored, or a store whose log is read.
Out:    values for JSON.
Always: a body that is not text becomes base64.
Not here: which messages are shown, and how.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from txstore._native import Store
from txstore.message import StoredMessage

__all__ = ["body_facts", "message_facts", "record_facts", "scan"]

_SCAN_BATCH = 1000


def record_facts(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    """Returns a record's fields, and with `bodies` its body in base64."""
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
    """Returns `body` if it is text, otherwise `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def message_facts(message: StoredMessage) -> dict[str, Any]:
    """Returns all fields of a message, and its body."""
    return record_facts(message, bodies=False) | body_facts(message.body)


def scan(store: Store, start: int | None = None) -> Iterator[tuple[list[StoredMessage], int]]:
    """Yields batches of records from a physical offset on, each with the physical offset after it."""
    at = max(store.stat().min_physical_offset, start or 0)
    while True:
        batch, following = store.scan(at, _SCAN_BATCH)
        yield batch, following
        if following <= at:
            return
        at = following
