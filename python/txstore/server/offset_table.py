"""Writes tables of queues as Java's fastjson does: with objects as keys, which is not valid JSON."""

from collections.abc import Mapping

from txstore.server.request import json_of

__all__ = ["queue_table", "reset_table"]


def queue_table(name: str, broker_name: str, rows: Mapping[tuple[str, int], object]) -> bytes:
    """Returns `"NAME":{…}` by (topic, queue id)."""
    entries = [
        json_of({"brokerName": broker_name, "queueId": queue_id, "topic": topic}) + b":" + json_of(row)
        for (topic, queue_id), row in rows.items()
    ]
    return json_of(name) + b":{" + b",".join(entries) + b"}"


def reset_table(topic: str, broker_name: str, offsets: Mapping[int, int]) -> bytes:
    """Returns the body of an offset reset: offsets by queue id."""
    rows = {(topic, queue_id): queue_offset for queue_id, queue_offset in offsets.items()}
    return b"{" + queue_table("offsetTable", broker_name, rows) + b"}"
