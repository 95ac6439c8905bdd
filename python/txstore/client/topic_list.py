"""Topic list: the names of all topics, for consumers of a pattern.

In:     the answers of a name server and of brokers.
Out:    the names of users' topics, asked for again after a while.
Always: one request at a time, however many consumers ask. RocketMQ's own topics are not listed.
"""

import asyncio

from txstore.client.client import Client
from txstore.client.rocketmq_admin import RocketMQAdmin

__all__ = ["TopicList"]

_SOCKET_SECONDS = 1.0  # At a socket of this machine, where asking costs little.


class TopicList:
    """The topics that one client may read. Used on its loop only."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admin = RocketMQAdmin(client)
        self._names: list[str] = []
        self._valid_until = float("-inf")
        self._asking = asyncio.Lock()

    async def names(self) -> list[str]:
        """Returns the names, at most `poll_name_server_interval` old. Raises the errors of a request."""
        async with self._asking:
            if self._client.loop.time() >= self._valid_until:
                self._names = await self._admin.topics()
                every = self._client.options.seconds("poll_name_server_interval")
                seconds = min(every, _SOCKET_SECONDS) if self._client.is_local else every
                self._valid_until = self._client.loop.time() + seconds
            return self._names
