"""Connections by address: each opened when it is needed, and once, however many wait for it.

In: addresses. Out: live connections. Always: of many who need one at the same time, one opens it and all hear of what
came of it. Not here: who keeps them open (`client`).
"""

import asyncio
import ssl
from collections.abc import Iterable

from txstore.errors import StoreClosedError
from txstore.remoting.connection import Connection, RequestHandler
from txstore.remoting.signing import Credentials

__all__ = ["Connections"]

_FAREWELL_SECONDS = 1.0  # A broker by TLS may leave our farewell without an answer.


class Connections:
    """For one loop's thread alone."""

    def __init__(
        self,
        on_request: RequestHandler,
        time_out: float,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._on_request = on_request
        self._tls = tls
        self._credentials = credentials
        self._time_out = time_out
        self._live: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    def live(self, address: str) -> Connection | None:
        """The connection, if it is open."""
        connection = self._live.get(address)
        return None if connection is None or connection.lost.is_set() else connection

    async def get(self, address: str) -> Connection:
        """The connection, opened if it is not. Raises BrokerUnreachableError, StoreClosedError."""
        if self._closed:
            raise StoreClosedError("the connection was closed\nhint: connect again")
        connection = self.live(address)
        if connection is not None:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(_heard)
        # Shielded: who is cancelled, or out of time, leaves the opening to the others.
        return await asyncio.shield(opening)

    def drop(self, address: str) -> None:
        """Closes one, which nobody will ask for again."""
        connection = self._live.pop(address, None)
        if connection is not None:
            connection.close()

    async def _open(self, address: str) -> Connection:
        try:
            connection = await Connection.open(address, self._on_request, self._time_out, self._tls)
            connection.credentials = self._credentials
            self._live[address] = connection
            return connection
        finally:
            del self._opening[address]

    async def close(self) -> None:
        """Closes all, and waits until their sockets are; none is opened any more."""
        self._closed = True
        for opening in self._opening.values():
            opening.cancel()
        live = list(self._live.values())
        self._live.clear()
        for connection in live:
            connection.close()
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await _released(live)
        except TimeoutError:
            for connection in live:
                connection.abort()
            await _released(live)


async def _released(connections: Iterable[Connection]) -> None:
    for connection in connections:
        await connection.released.wait()


def _heard(opening: asyncio.Task[Connection]) -> None:
    """What came of it is known, also where nobody waits for it any more."""
    if not opening.cancelled():
        opening.exception()
