"""How the requests of `sending` reach a broker: awaited on the client's loop, or blocking in the calling thread.

In:     requests.
Out:    responses.
Always: `sending` is written once, as coroutines. With a `ThreadCaller` they never suspend, since each step blocks the
        thread instead (`run_now`). What only the loop can do (finding routes,
        connecting) is done there, while the thread waits.
"""

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from txstore._native import RemotingCommand
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.route import Route

__all__ = ["Caller", "ThreadCaller"]

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine on the client's loop, and waits for its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Caller:
    """What a send or an end needs of a client. Calls on the client's loop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def write_route(self, topic: str) -> Route:
        return await self._client.write_route(topic)

    async def topic_created(self, topic: str) -> None:
        await self._client.topic_created(topic)

    async def connection(self, broker: str) -> Connection:
        return await self._client.connection(broker)

    async def call(
        self,
        connection: Connection,
        code: int,
        ext_fields: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        is_half: bool = False,
    ) -> RemotingCommand:
        """Sends a request. The checks of a half message come over `connection`, whatever it is sent over."""
        return await connection.call(code, ext_fields, body, timeout=timeout)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ThreadCaller(Caller):
    """Calls in the calling thread, over channels of its own."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        super().__init__(client)
        self._loop, self._run = loop, run
        self._process = os.getpid()

    async def write_route(self, topic: str) -> Route:
        route = self._client.routes.get(topic)
        return route if route is not None and route.write else self._run(self._client.write_route(topic))

    async def topic_created(self, topic: str) -> None:
        self._run(self._client.topic_created(topic))

    async def connection(self, broker: str) -> Connection:
        live = self._client.live_connection(broker)
        if live is None or self._process != os.getpid() or asyncio._get_running_loop() is self._loop:
            return self._run(self._client.connection(broker))  # Which also refuses a call from a fork or from the loop.
        return live

    async def call(
        self,
        connection: Connection,
        code: int,
        ext_fields: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        is_half: bool = False,
    ) -> RemotingCommand:
        if is_half:
            number = connection.number
            if number is None:  # RocketMQ, or a server that has not answered a heartbeat yet.
                return self._run(connection.call(code, ext_fields, body, timeout=timeout))
            ext_fields = {**ext_fields, "connection": number}
        channels = connection.channels
        channel = channels.take()
        if channel is None:
            return self._run(connection.call(code, ext_fields, body, timeout=timeout))
        try:
            return channel.call(code, ext_fields, body, timeout=timeout)
        finally:
            channels.give(channel)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
