"""Listener: serves the console over HTTP or HTTPS until it is closed.

In:     an address, the console's calls and viewers, certificates.
Out:    responses.
Always: has a thread of its own and few more for pages, so that it delays no client of the store's server.
By hand: the socket is bound here, so that an address in use is an error before anything is served.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette

from txstore.console.address import check_address, host_and_port
from txstore.console.operator import Call, Operator
from txstore.console.rates import EVERY_SECONDS, Rates
from txstore.console.viewers import AccountFacts, Viewers
from txstore.console.web import application
from txstore.errors import InvalidOptionError, StoreIOError, TxStoreError

__all__ = ["Certificates", "Console"]

_THREADS = 4
_CONNECTIONS_MAX = 128
_STOP_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the certificate with those of its issuers, its key, and the authority of clients' certificates."""

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    authority: str | os.PathLike[str] | None = None


class Console:
    """A console that listens. Close it.

    Raises InvalidOptionError for an invalid address or certificate, and for `actions` without accounts at an address
    that other machines reach; StoreIOError if it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        call: Call,
        *,
        accounts: Callable[[], Sequence[AccountFacts] | None],
        actions: bool,
        certificates: Certificates | None = None,
    ) -> None:
        check_address(address, actions=actions, has_accounts=accounts() is not None)
        host, port = host_and_port(address)
        self._socket = _bound(host, port, address)
        try:
            number = self._socket.getsockname()[1]
            viewers = Viewers(accounts, actions=actions, monotonic=time.monotonic)
            is_secure = certificates is not None
            self._operator, self._rates = Operator(call), Rates(time.monotonic)
            app = application(
                self._operator, self._rates, viewers, is_secure=is_secure, cookie=f"txstore_console_{number}"
            )
            app.router.lifespan_context = self._lifespan
            self._config = _config(app, certificates)
        except BaseException:
            self._socket.close()
            raise
        self.address: str = f"{'https' if is_secure else 'http'}://{_quoted(host)}:{number}"
        """Where a browser finds it."""
        self._certificates = certificates
        self._server = uvicorn.Server(self._config)
        self._thread = threading.Thread(target=self._run, name="txstore-console", daemon=True)
        self._thread.start()

    def reload(self) -> None:
        """Reads the certificates again, for new connections. Raises InvalidOptionError; then nothing changes."""
        if self._certificates is not None and self._config.ssl is not None:
            _load(self._config.ssl, self._certificates)

    def close(self) -> None:
        """Answers the requests in flight, then closes all connections. Idempotent."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        sampling = asyncio.create_task(self._sample())
        yield
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)

    async def _sample(self) -> None:
        """Keeps the store's numbers every few seconds."""
        while True:
            with contextlib.suppress(TxStoreError):  # The pages tell it.
                self._rates.add(await anyio.to_thread.run_sync(self._operator.overview))
            await asyncio.sleep(EVERY_SECONDS)


def _config(app: Starlette, certificates: Certificates | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    config.load()
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(context, certificates)
        config.ssl = context
    return config


def _load(context: ssl.SSLContext, files: Certificates) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.authority is not None:
            context.load_verify_locations(files.authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        text = f"the console cannot use the certificate {os.fspath(files.certificate)!r}: {error}"
        raise InvalidOptionError(text, option="tls_cert") from error


def _bound(host: str, port: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StoreIOError(f"cannot listen at {address}: {error}\nhint: use another address") from error


def _quoted(host: str) -> str:
    return f"[{host}]" if ":" in host else host
