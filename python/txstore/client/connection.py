"""One connection to a name server or broker.

In:     requests, and frames of the other side.
Out:    responses, in any order, matched by `opaque`; the other side's requests, passed to a handler.
Always: each call ends with a response, a timeout or the connection's end. A malformed frame closes the connection.
        `client` opens it again.
"""

import asyncio
import functools
import itertools
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import TypeAlias

from txstore._native import FrameReader, RemotingCommand, encode_request
from txstore.client.channel import Channels, lost, not_answered
from txstore.client.dial import Dial, connect, host_and_port
from txstore.errors import BrokerUnreachableError, ProtocolError
from txstore.remoting.signing import Credentials

__all__ = ["Connection", "RequestHandler"]

RequestHandler: TypeAlias = Callable[["Connection", RemotingCommand], None]
"""Handles a request of the other side. Must not block."""

_OPAQUE_MASK = 0x7FFF_FFFF


class Connection(asyncio.Protocol):
    """A connection, created by `Connection.open`. Used on its loop's thread only."""

    def __init__(self, address: str, on_request: RequestHandler, dial: Callable[[], socket.socket]) -> None:
        """`dial` connects to the same broker again, blocking the thread, or raises OSError."""
        self.address = address
        self.lost: asyncio.Event = asyncio.Event()
        """Set when nothing can be sent any more."""
        self.released: asyncio.Event = asyncio.Event()
        """Set when the socket is closed, too. With TLS, this follows the other side's close_notify."""
        self.credentials: Credentials | None = None
        """The account that signs requests; None if they are not signed."""
        self.number: str | None = None
        """What a txstore server calls this connection; None before it has answered a heartbeat, and of RocketMQ."""
        self.channels: Channels = Channels(address, dial, self._signed)
        """Connections to the same broker for threads that send."""
        self._on_request = on_request
        self._reader = FrameReader()
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._why = "this client closed it"
        self._heard = False

    @classmethod
    async def open(
        cls,
        address: str,
        on_request: RequestHandler,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        dial: Dial | None = None,
    ) -> "Connection":
        """Connects to `HOST:PORT`, with TLS if `tls` is given, to `unix:FILE`, or to what `dial` connects to.

        Raises BrokerUnreachableError if that fails or takes longer than `timeout` seconds.
        """
        create = functools.partial(cls, address, on_request, functools.partial(connect, address, timeout, tls))
        loop = asyncio.get_running_loop()
        if dial is not None:
            _, connection = await loop.create_unix_connection(create, sock=await dial())
            return connection
        try:
            async with asyncio.timeout(timeout):
                if address.startswith("unix:"):
                    path = address.removeprefix("unix:")
                    _, connection = await loop.create_unix_connection(create, path)
                else:
                    host, port = host_and_port(address)
                    _, connection = await loop.create_connection(create, host, port, ssl=tls)
        except TimeoutError as error:
            text = f"{address} did not accept a connection within {timeout:g} s\nhint: check that it runs"
            raise BrokerUnreachableError(text, address=address) from error
        except ssl.SSLError as error:
            text = f"the TLS handshake with {address} failed: {error}"
            if isinstance(error, ssl.SSLCertVerificationError):
                hint = "pass the PEM file of its authority as tls=FILE; its certificate must name the address's host"
            else:
                hint = "check whether it uses TLS, and whether it requires a client certificate"
            raise BrokerUnreachableError(f"{text}\nhint: {hint}", address=address) from error
        except OSError as error:
            text = f"{address} cannot be reached: {error}\nhint: start it, or check the address"
            raise BrokerUnreachableError(text, address=address) from error
        return connection

    @property
    def own_host(self) -> str:
        """The local address of the connection's socket; 127.0.0.1 for a Unix socket."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else "127.0.0.1"

    async def call(
        self, code: int, ext_fields: Mapping[str, str], body: bytes | None = None, *, timeout: float
    ) -> RemotingCommand:
        """Sends a request and returns the response, whatever its code.

        Raises BrokerTimeoutError after `timeout` seconds, BrokerUnreachableError if the connection ends before.
        """
        opaque = next(self._opaques) & _OPAQUE_MASK
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
                self._write(encode_request(code, opaque, self._signed(ext_fields, body), body))
                self._waiting[opaque] = answer
                return await answer
        except TimeoutError as error:
            raise not_answered(self.address, code, timeout) from error
        finally:
            self._waiting.pop(opaque, None)

    def tell(self, code: int, ext_fields: Mapping[str, str], body: bytes | None = None) -> None:
        """Sends a one-way request. Raises BrokerUnreachableError if the connection is lost."""
        opaque = next(self._opaques) & _OPAQUE_MASK
        self._write(encode_request(code, opaque, self._signed(ext_fields, body), body, one_way=True))

    def answer(
        self, request: RemotingCommand, code: int, remark: str | None = None, *, body: bytes | None = None
    ) -> None:
        """Answers a request of the other side. Does nothing for a one-way request or a lost connection."""
        if not request.is_one_way and not self.lost.is_set():
            self._write(request.response(code, remark, body=body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._end()

    def abort(self) -> None:
        """Closes the socket at once, without TLS close_notify."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            commands = self._reader.feed(data)
        except ProtocolError as error:
            self._why = f"the other side sent a malformed frame: {error}"
            self.close()
            return
        for command in commands:
            if not command.is_response:
                self._on_request(self, command)
                continue
            answer = self._waiting.get(command.opaque)
            if answer is not None and not answer.done():
                answer.set_result(command)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.is_set():
            self._why = "the other side closed it" if error is None else str(error)
            if not self._heard:
                self._why += " before it sent anything; it may require TLS or a certificate: tls=…"
        self._end()
        self.released.set()

    # Internal

    def _signed(self, ext_fields: Mapping[str, str], body: bytes | None) -> dict[str, str]:
        return dict(ext_fields) if self.credentials is None else self.credentials.signed(ext_fields, body)

    def _write(self, frame: bytes) -> None:
        if self.lost.is_set() or self._transport is None:
            raise self._gone()
        self._transport.write(frame)

    def _end(self) -> None:
        self.lost.set()
        self._writable.set()
        self.channels.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._gone(in_flight=True))

    def _gone(self, *, in_flight: bool = False) -> BrokerUnreachableError:
        return lost(self.address, self._why, in_doubt=in_flight)
