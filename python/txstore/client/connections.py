"""Keeps one connection per address and opens it on first use. `client` keeps broker connections alive.

Always: if several tasks need a connection at the same time, it is opened once and all get the same result.
"""

import asyncio
import ssl
from collections.abc import Iterable

from txstore.client.connection import Connection, RequestHandler
from txstore.client.dial import Dial
from txstore.errors import StoreClosedError
from txstore.remoting.signing import Credentials

__all__ = ["Connections"]

_FAREWELL_SECONDS = 1.0  # A broker may not answer the TLS close_notify.


class Connections:
    """The open connections of a client. Used on one loop's thread only."""

    def __init__(
        self,
        on_request: RequestHandler,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        dial: Dial | None = None,
    ) -> None:
        """`dial` connects instead of the addresses, if it is given."""
        self._on_request = on_request
        self._tls = tls
        self._credentials = credentials
        self._timeout = timeout
        self._dial = dial
        self._live: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    def live(self, address: str) -> Connection | None:
        """Returns the connection to an address, or None if it is not open."""
        connection = self._live.get(address)
        return None if connection is None or connection.lost.is_set() else connection

    async def get(self, address: str) -> Connection:
        """Returns the connection to an address; opens it if needed.

        Raises BrokerUnreachableError if it cannot be opened, StoreClosedError after `close`.
        """
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
        # Shielded: a caller that is cancelled or out of time must not cancel the opening for the others.
        return await asyncio.shield(opening)

    def drop(self, address: str) -> None:
        """Closes the connection to an address that is no longer used."""
        connection = self._live.pop(address, None)
        if connection is not None:
            connection.close()

    async def _open(self, address: str) -> Connection:
        try:
            connection = await Connection.open(address, self._on_request, self._timeout, self._tls, self._dial)
            connection.credentials = self._credentials
            self._live[address] = connection
            return connection
        finally:
            del self._opening[address]

    async def close(self) -> None:
        """Closes all connections and waits until their sockets are closed. Later calls of `get` fail."""
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
    """Retrieves the exception, so that asyncio does not log it if no task waits for the result any more."""
    if not opening.cancelled():
        opening.exception()
