"""Brings consumers back that have read what a promotion lost.

In:     the offsets that groups have when this node becomes the source without all messages of the one before it.
Out:    each consumer that comes over soon is told to continue at its group's offset, as after an operator's reset.
Always: a consumer continues at or before the end that its queue had at the promotion. Otherwise it would pass over the
        messages that the queue has there now. Some messages are delivered again.
Not here: a group that had no offset yet; retries.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

from txstore._native import RETRY_PREFIX, RequestCode
from txstore.broker import EmbeddedBroker
from txstore.server.offset_table import reset_table

__all__ = ["Rewinds"]

_log = logging.getLogger("txstore.replica")
_SECONDS = 120.0  # Clients look for the new source every `poll_name_server_interval`, 30 s by default.


class Rewinds:
    """What the consumers of one server must be told after a promotion."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        send: Callable[[int, int, dict[str, str], bytes], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._broker_name = broker.config.broker_name
        self._send = send
        self._monotonic = monotonic
        self._until = monotonic() + _SECONDS
        self._offsets: defaultdict[str, defaultdict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
        """By group, topic and queue id."""
        for topic, group, queue_id, offset in broker.store.consumer_offsets():
            if not topic.startswith(RETRY_PREFIX):
                self._offsets[group][topic][queue_id] = offset

    def joined(self, group: str, connection: int) -> None:
        """Tells a consumer that has joined a group on a connection."""
        if group not in self._offsets or self._monotonic() > self._until:
            return
        for topic, offsets in sorted(self._offsets[group].items()):
            fields = {"group": group, "isForce": "true", "timestamp": "-1", "topic": topic}
            body = reset_table(topic, self._broker_name, offsets)
            self._send(connection, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
            _log.info("a consumer of group %s continues in %s at %s", group, topic, offsets, extra={"group": group})
