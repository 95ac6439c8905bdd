"""Looks up messages by key, unique id or physical offset.

Out:    whole records as stored.
Always: no messages of system topics, except discarded transactions by their offset.
"""

from txstore._native import ResponseCode, StoredMessage
from txstore.broker import EmbeddedBroker
from txstore.server.request import Refused, Reply, Request, client_message, number, text

__all__ = ["Queries"]

_MESSAGES_MAX = 256
_BYTES_MAX = 4 << 20


class Queries:
    """Answers queries for messages."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def by_key(self, request: Request) -> Reply:
        fields = request.ext_fields
        topic, key = text(fields, "topic"), text(fields, "key")
        most = max(1, min(_MESSAGES_MAX, number(fields, "maxNum", 32)))
        begin, end = number(fields, "beginTimestamp", 0), number(fields, "endTimestamp", 2**63 - 1)
        by_id = fields.get("_UNIQUE_KEY_QUERY") == "true"
        found = [
            message
            for message in self._broker.query(topic, key, most)
            if begin <= message.store_timestamp_ms <= end and (not by_id or message.message_id == key)
        ]
        if not found:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"no message of {topic} has the key {key}")
        newest = found[0]
        last = {
            "indexLastUpdatePhyoffset": str(newest.physical_offset),
            "indexLastUpdateTimestamp": str(newest.store_timestamp_ms),
        }
        return Reply(fields=last, body=_records(found))

    def by_offset(self, request: Request) -> Reply:
        # Discarded transactions are shown: RocketMQ's tools read them before they resume them.
        found = client_message(self._broker.store, number(request.ext_fields, "offset"), discarded=True)
        return Reply(body=found.record)


def _records(messages: list[StoredMessage]) -> bytes:
    """Concatenates records up to 4 MiB, but at least one."""
    records: list[bytes] = []
    size = 0
    for message in messages:
        if records and size + message.size > _BYTES_MAX:
            break
        records.append(message.record)
        size += message.size
    return b"".join(records)
