"""Applies an operator's offset reset to the consumers of this client.

In:     RESET_CONSUMER_CLIENT_OFFSET, which the broker sends to the group's clients; resets that a client missed.
Out:    consumers that continue at the new queue offsets.
Always: messages of a reset queue that are in flight are not acknowledged.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping

from txstore._native import RemotingCommand, RequestCode
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.offsets import Offsets
from txstore.client.route import Queue
from txstore.errors import ProtocolError

__all__ = ["ResetOffset", "parse_offset_table"]

_log = logging.getLogger("txstore.remoting")
# RocketMQ writes objects as keys, which is not valid JSON: {{"brokerName":"b","queueId":0,"topic":"t"}:5, …}
_ENTRY = re.compile(rb"(\{[^{}]*\})\s*:\s*(-?\d+)")


class ResetOffset:
    """Applies the offset resets of one client. Used on its loop only."""

    def __init__(self, client: Client, offsets: Offsets) -> None:
        self._client = client
        self._offsets = offsets
        client.listeners[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._handle

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        group = request.ext_fields.get("group", "")
        topic = request.ext_fields.get("topic", "")
        offsets = {
            self._client.numbers.number(queue): queue_offset
            for of_topic, queue, queue_offset in parse_offset_table(request.body)
            if of_topic == topic
        }
        self.apply(group, topic, offsets)

    def apply(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Lets the group's consumers here continue at new offsets: queue number → queue offset."""
        members = [one for one in self._client.members.all() if one.group == group and one.topic == topic]
        if not members:
            return
        _log.warning(
            "an operator reset the offsets of group %s in %s to %s", group, topic, offsets, extra={"group": group}
        )
        for number, queue_offset in offsets.items():
            self._offsets.set(topic, group, number, queue_offset)
        for member in members:
            # In a thread: the consumer waits for its current messages and calls this loop meanwhile.
            self._client.loop.run_in_executor(None, member.offsets_reset, topic, list(offsets))


def parse_offset_table(body: bytes) -> Iterator[tuple[str, Queue, int]]:
    """Yields topic, queue and queue offset of each entry. Raises ProtocolError for a malformed entry."""
    for key, queue_offset in _ENTRY.findall(body):
        try:
            facts = json.loads(key)
            yield str(facts["topic"]), Queue(str(facts["brokerName"]), int(facts["queueId"])), int(queue_offset)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"malformed entry in the table of an offset reset: {error!r}") from error
