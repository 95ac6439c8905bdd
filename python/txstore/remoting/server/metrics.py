"""Metrics: a server's health and figures over HTTP, for Prometheus and for whoever restarts it.

In: GET /healthz, /readyz, /metrics. Out: 200 or 503, and figures. Always: a listener of its own, so that looking never
stands in a client's way. Not here: the figures.
"""

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from txstore.errors import InvalidOptionError, StoreIOError, TxStoreError
from txstore.remoting.server.figures import exporter

if TYPE_CHECKING:
    from txstore.remoting.server.server import Server

__all__ = ["MetricsServer"]

_log = logging.getLogger("txstore.remoting")


class MetricsServer:
    """Answers over HTTP until it is closed. Raises InvalidOptionError, StoreIOError (the address)."""

    def __init__(self, server: "Server", address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise InvalidOptionError(f"metrics {address!r} is no address\nhint: 127.0.0.1:9100", option="metrics")
        try:
            self._http = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler_of(server))
        except (OSError, OverflowError) as error:
            raise StoreIOError(f"cannot listen at {address}: {error}\nhint: give another address") from error
        self._http.daemon_threads = True
        bound = self._http.server_address
        self.address = f"{host}:{bound[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="txstore-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _handler_of(server: "Server") -> type[BaseHTTPRequestHandler]:
    metrics_text = exporter(server)

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._say(200, b"alive\n")
            elif self.path == "/readyz":
                self._say(200, b"ready\n") if server.ready else self._say(503, b"not ready\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._say(404, b"there are /healthz, /readyz and /metrics\n")
            elif metrics_text is None:
                self._say(501, b"prometheus-client is missing: pip install 'txstore[serve]'\n")
            else:
                self._metrics()

        def _metrics(self) -> None:
            assert metrics_text is not None
            try:
                self._say(200, metrics_text(), "text/plain; version=0.0.4; charset=utf-8")
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

    return Handler
