"""`txstore serve`: a store for clients of any language, until it is told to stop.

In: a path, addresses, settings. Out: where it listens; log lines on stderr. Always: SIGTERM and SIGINT answer what is
in hand and close the store well, SIGHUP reads its files again; a service manager that asks (NOTIFY_SOCKET) is told when
it is ready, and that it goes on. Not here: the server.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import txstore
from txstore import BrokerConfig, ServerConfig, errors
from txstore.cli.arguments import StorePath, noun
from txstore.cli.logs import errors_logged, log_to_stderr, usage_errors_logged

__all__ = ["app"]

_log = logging.getLogger("txstore.serve")

app = noun()


class _Serve(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage_errors_logged(list(args)):
            return super().parse_args(ctx, args)


@app.command(cls=_Serve)
def serve(
    path: StorePath,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the broker listens; 'none': by --unix alone.")
    ] = "127.0.0.1:10911",
    name_server: Annotated[
        str, typer.Option("--name-server", metavar="HOST:PORT", help="Where the name server listens; 'none': nowhere.")
    ] = "127.0.0.1:9876",
    unix: Annotated[
        str | None, typer.Option("--unix", metavar="FILE", help="A socket's file, for clients of this machine.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Where clients reach it, if not at --listen.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of BrokerConfig; again for more. Times: seconds."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Figures, health and readiness over HTTP.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate, PEM: TCP then speaks TLS.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key, PEM.")
    ] = None,
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="Who vouches for clients: they need a certificate.")
    ] = None,
    tls: Annotated[
        str, typer.Option("--tls", metavar="MODE", help="'enforcing', or 'permissive': plain connections, too.")
    ] = "enforcing",
    accounts: Annotated[
        str | None, typer.Option("--accounts", metavar="FILE", help="Who may do what, TOML: requests must be signed.")
    ] = None,
    log: Annotated[str, typer.Option("--log", metavar="FORM", help="'text', or 'json': an object a line.")] = "text",
) -> None:
    """Serve a store to RocketMQ clients of any language, and to txstore.connect."""
    log_to_stderr(log)
    with errors_logged(log):
        options = _settings(settings or [])
        BrokerConfig.from_options(options)  # A bad setting is said before anything is made.
        config = ServerConfig(
            _or_none(listen), unix, _or_none(name_server), advertise, metrics,
            tls_cert=tls_cert, tls_key=tls_key, tls_ca=tls_ca, tls=tls, accounts=accounts,
        )  # fmt: skip
        _serve(path, config, options, log)


def _serve(path: str, config: ServerConfig, options: dict[str, object], log: str) -> None:
    stopped = threading.Event()
    again = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    signal.signal(signal.SIGHUP, lambda *_: again.set())
    with txstore.serve(path, config=config, **options) as server:  # type: ignore[arg-type]
        places = {
            "broker": server.address,
            "name server": server.name_server,
            "socket": server.unix,
            "metrics": server.metrics,
        }
        _say({what: where for what, where in places.items() if where is not None}, log)
        _notify("READY=1")
        failure: errors.TxStoreError | None = None
        watchdog = Watchdog(server)
        while not stopped.wait(1.0):
            if again.is_set():
                again.clear()
                _reload(server)
            failure = _watch(server, failure)
            watchdog.beat()
        _notify("STOPPING=1")


class Watchdog:
    """Tells a service manager that asks (WATCHDOG_USEC) that every part of the server goes on."""

    def __init__(self, server: txstore.Server) -> None:
        self._server = server
        self._told = server.beats()
        self._asked = "WATCHDOG_USEC" in os.environ

    def beat(self) -> None:
        """Tells it, unless a part has stood still since it was told last."""
        if self._asked:
            now = self._server.beats()
            if all(count > before for count, before in zip(now, self._told, strict=True)):
                self._told = now
                _notify("WATCHDOG=1")


def _watch(server: txstore.Server, before: errors.TxStoreError | None) -> errors.TxStoreError | None:
    """Logs when the store stops taking messages, and when it takes them again. Raises where only a restart helps."""
    failure = server.failure()
    if isinstance(failure, errors.StorePoisonedError | errors.StoreClosedError):
        raise failure
    if failure is not None and type(failure) is not type(before):
        _log.error("the store takes no messages: %s", failure, extra={"error": type(failure).__name__})
    elif failure is None and before is not None:
        _log.info("the store takes messages again")
    return failure


def _reload(server: txstore.Server) -> None:
    """SIGHUP: files that are no good leave everything as it was."""
    try:
        server.reload()
    except errors.TxStoreError as error:
        _log.error("the files were not read again: %s", error)


def _say(places: dict[str, str], form: str) -> None:
    lines = [json.dumps(places)] if form == "json" else [f"{what:<12} {where}" for what, where in places.items()]
    print("\n".join(lines), flush=True)


def _or_none(address: str) -> str | None:
    return None if address == "none" else address


def _settings(given: Iterable[str]) -> dict[str, object]:
    """`NAME=VALUE` with values as JSON writes them; what is no JSON is text."""
    found: dict[str, object] = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals:
            raise errors.InvalidOptionError(f"--set {setting!r} has no value\nhint: --set NAME=VALUE", option="set")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _notify(state: str) -> None:
    """Tells systemd, where it asks (Type=notify)."""
    place = os.environ.get("NOTIFY_SOCKET")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(state.encode(), f"\0{place[1:]}" if place.startswith("@") else place)
