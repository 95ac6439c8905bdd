"""Serves health and metrics over HTTP, for Prometheus and for supervisors.

In:     GET /healthz, /readyz, /metrics.
Out:    200 or 503, and metrics.
Always: has its own listener and a bounded number of threads, so that these requests delay no client.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from txstore.errors import InvalidOptionError, StoreIOError, TxStoreError

__all__ = ["HttpServer"]

_log = logging.getLogger("txstore.remoting")

_CONNECTIONS_MAX = 32


class HttpServer:
    """Answers over HTTP until it is closed.

    Raises InvalidOptionError for an invalid address, StoreIOError if it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        *,
        failure: Callable[[], TxStoreError | None],
        metrics_text: Callable[[], bytes] | None,
    ) -> None:
        """`failure` tells why the process is not ready; `metrics_text` is None without prometheus-client."""
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise InvalidOptionError(
                f"metrics: expected HOST:PORT, got {address!r}\nhint: 127.0.0.1:9100", option="metrics"
            )
        try:
            self._http = _Listener(host.strip("[]"), int(port), failure, metrics_text)
        except (OSError, OverflowError) as error:
            raise StoreIOError(f"cannot listen at {address}: {error}\nhint: use another address") from error
        self.address: str = f"{host}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="txstore-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    """Runs a thread per connection. If too many are open, closes the oldest one, so that a new one is answered."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        failure: Callable[[], TxStoreError | None],
        metrics_text: Callable[[], bytes] | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.failure = failure
        self.metrics_text = metrics_text
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= _CONNECTIONS_MAX else None
            if oldest is not None:
                del self._open[oldest]
                _hang_up(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs at DEBUG: usually the client has closed the connection."""
        _log.debug("a request for metrics was not answered", exc_info=True)


def _hang_up(connection: socket.socket) -> None:
    """Shuts a connection down, so that the thread that reads from it ends."""
    with contextlib.suppress(OSError):  # The client may have closed it already.
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = 60
    server: _Listener

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._say(200, b"alive\n")
        elif path == "/readyz":
            self._ready()
        elif path == "/metrics":
            self._metrics()
        else:
            self._say(404, b"not found, see /healthz, /readyz and /metrics\n")

    def _ready(self) -> None:
        failure = self.server.failure()
        if failure is None:
            self._say(200, b"ready\n")
        else:
            # Anyone may ask here, so the error's text, which contains file names, goes to the log only.
            self._say(503, f"not ready: {type(failure).__name__}\n".encode())

    def _metrics(self) -> None:
        if self.server.metrics_text is None:
            self._say(501, b"prometheus-client is missing: pip install 'txstore[serve]'\n")
            return
        try:
            self._say(200, self.server.metrics_text(), "text/plain; version=0.0.4; charset=utf-8")
        except TxStoreError as error:
            self._say(503, f"{error}\n".encode())

    def _say(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # The name of the class above.
        _log.debug(format, *args)
