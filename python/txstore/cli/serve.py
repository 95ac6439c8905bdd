"""`txstore serve`: serves a store to RocketMQ clients until it is told to stop.

In:     a path, options.
Out:    the listening addresses; log lines on stderr.
Always: on SIGTERM and SIGINT it answers the requests in flight and closes the store cleanly. On SIGHUP it reads its
        files again. A service manager that asks (NOTIFY_SOCKET) is told when it is ready and that it still works.
Not here: the server.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import threading
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import txstore
from txstore import ServerConfig, errors
from txstore.cli.arguments import StorePath, noun
from txstore.cli.logs import errors_logged, log_to_stderr, usage_errors_logged
from txstore.cli.serve_config import CONFIG_VARIABLE, VARIABLES, Configuration, read_configuration
from txstore.cli.telemetry import export_spans
from txstore.signals import STOP, handled

__all__ = ["app"]

_log = logging.getLogger("txstore.serve")
_DEFAULT = ServerConfig()
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # Of <malloc.h>.
_HEAPS = 2
_TRIMMED_BYTES = 32 << 20
_LARGE_BYTES = 128 << 10  # What the C library begins with.
# By itself the C library raises this with the size of the blocks. At its first value, 128 KiB, each answer to a pull
# costs page faults: a fifth of the rate of push consumers.
_KEPT_BYTES = 1 << 20

app: typer.Typer = noun()


class _Serve(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage_errors_logged(list(args)):
            return super().parse_args(ctx, args)


@app.command(cls=_Serve)
def serve(
    path: StorePath,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="The broker's address; 'none' for --unix alone.",
            show_default=_DEFAULT.listen or "none",
        ),
    ] = None,
    name_server: Annotated[
        str | None,
        typer.Option(
            "--name-server", metavar="HOST:PORT", help="The name server's address, or 'none'.",
            show_default=_DEFAULT.name_server or "none",
        ),
    ] = None,
    unix: Annotated[
        str | None, typer.Option("--unix", metavar="FILE", help="A Unix socket for clients on this machine.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Address for clients, if not --listen's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of BrokerConfig; repeat for more. Times: seconds."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Metrics, health and readiness over HTTP.")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Address for RocketMQ 5's clients, by gRPC.")
    ] = None,
    console: Annotated[str | None, typer.Option("--console", metavar="HOST:PORT", help="The web console.")] = None,
    console_actions: Annotated[
        bool | None,
        typer.Option("--console-actions", help="Let the console change the store.", show_default="no"),
    ] = None,
    otel: Annotated[
        bool | None,
        typer.Option("--otel", help="Export spans by OTLP, as OTEL_… variables say.", show_default="no"),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate (PEM). TCP then speaks TLS.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="CA of client certificates, which are then required.")
    ] = None,
    tls: Annotated[
        str | None,
        typer.Option(
            "--tls", metavar="MODE", help="'enforcing', or 'permissive' to accept plain TCP, too.",
            show_default=_DEFAULT.tls,
        ),
    ] = None,
    accounts: Annotated[
        str | None, typer.Option("--accounts", metavar="FILE", help="Accounts (TOML). Requests must then be signed.")
    ] = None,
    replica_of: Annotated[
        str | None, typer.Option("--replica-of", metavar="HOST:PORT", help="Copy a txstore serve or a RocketMQ master.")
    ] = None,
    escape_to: Annotated[
        str | None,
        typer.Option(
            "--escape-to", metavar="HOST:PORT",
            help="A name server: pending transactions escape to a broker there while the source is away.",
        ),
    ] = None,
    escape_after: Annotated[
        float | None,
        typer.Option(
            "--escape-after", metavar="SECONDS", help="How long the source must be away before.",
            show_default=str(_DEFAULT.escape_after),
        ),
    ] = None,
    replicas_required: Annotated[
        int | None,
        typer.Option(
            "--replicas-required", metavar="N", help="Copies, own included, before an answer.",
            show_default=str(_DEFAULT.replicas_required),
        ),
    ] = None,
    replica_timeout: Annotated[
        float | None,
        typer.Option(
            "--replica-timeout", metavar="SECONDS", help="How long a client waits for the copies.",
            show_default=str(_DEFAULT.replica_timeout),
        ),
    ] = None,
    replica_ack: Annotated[
        str | None,
        typer.Option(
            "--replica-ack", metavar="WHEN", help="A copy counts when synced ('disk') or in 'memory'.",
            show_default=_DEFAULT.replica_ack,
        ),
    ] = None,
    ha_listen: Annotated[
        str | None, typer.Option("--ha-listen", metavar="HOST:PORT", help="Let slaves of RocketMQ copy the log.")
    ] = None,
    ha_allow: Annotated[
        list[str] | None,
        typer.Option("--ha-allow", metavar="CIDR", help="A network of such slaves; repeat for more."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FORM", help="'text', or 'json': an object per line.", show_default="text"),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", envvar=CONFIG_VARIABLE, show_envvar=True,
            help="Options (TOML), by the names of ServerConfig; settings of BrokerConfig in the table [store].",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Serve a store to RocketMQ clients (those of RocketMQ 5 by gRPC) and to txstore.connect.

    A variable TXSTORE_SERVE_NAME replaces an option, TXSTORE_SERVE_SET the settings. A flag wins over a variable, a
    variable over the file.
    """
    flags = {
        "listen": listen, "unix": unix, "name_server": name_server, "advertise": advertise, "metrics": metrics,
        "grpc": grpc, "tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca, "tls": tls, "accounts": accounts,
        "replica_of": replica_of, "escape_to": escape_to, "escape_after": escape_after,
        "replicas_required": replicas_required, "replica_timeout": replica_timeout,
        "replica_ack": replica_ack, "console": console, "console_actions": console_actions, "otel": otel,
        "ha_listen": ha_listen, "ha_allow": ",".join(ha_allow) if ha_allow else None, "log": log,
    }  # fmt: skip
    given = {name: value for name, value in flags.items() if value is not None}
    form = log or os.environ.get(f"{VARIABLES}LOG", "text")
    log_to_stderr(form)
    freed_memory = FreedMemory()
    with errors_logged(form, app):
        chosen = read_configuration(config, os.environ, given, settings or [])
    log_to_stderr(chosen.log)  # A file may say it.
    with errors_logged(chosen.log, app):
        _serve(path, chosen, freed_memory)


class FreedMemory:
    """Has the C library give freed memory back to the system.

    By itself it keeps blocks up to 32 MiB in its heaps once such a block was freed, has a heap for each thread, and
    keeps small blocks below one that is in use. After floods the process then kept hundreds of megabytes that nothing
    used, which would count against `memory_max`.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)  # Not every C library has these.
        self._least = 0
        set_option = getattr(library, "mallopt", None)
        if set_option is not None:
            set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            set_option(_M_ARENA_MAX, _HEAPS)

    def give_back(self, server: txstore.Server) -> None:
        """Gives small blocks back, if much more memory is in use than after the last time."""
        used = server.counters()["memory_uncounted"]
        if used < self._least:
            self._least = used
        elif self._trim is not None and used > self._least + _TRIMMED_BYTES:
            self._trim(0)
            self._least = used


def _serve(path: str, chosen: Configuration, freed_memory: FreedMemory) -> None:
    stopped = threading.Event()
    reload_asked = threading.Event()
    handlers = dict.fromkeys(STOP, stopped.set) | {signal.SIGHUP: reload_asked.set}
    if chosen.server.otel:
        export_spans("txstore")
    with (
        handled(handlers),
        txstore.serve(path, config=chosen.server, **chosen.store) as server,  # type: ignore[arg-type]
    ):
        addresses = {
            "broker": server.address,
            "name server": server.name_server,
            "grpc": server.grpc,
            "slaves": server.ha,
            "socket": server.unix,
            "metrics": server.metrics,
            "console": server.console,
        }
        _print_addresses({what: where for what, where in addresses.items() if where is not None}, chosen.log)
        _notify("READY=1")
        failure: errors.TxStoreError | None = None
        watchdog = Watchdog(server)
        while not stopped.wait(1.0):
            if reload_asked.is_set():
                reload_asked.clear()
                _reload(server)
            failure = _watch(server, failure)
            freed_memory.give_back(server)
            watchdog.beat()
        _notify("STOPPING=1")


class Watchdog:
    """Tells a service manager that asks (WATCHDOG_USEC) that every part of the server still works."""

    def __init__(self, server: txstore.Server) -> None:
        self._server = server
        self._told = server.beats()
        self._asked = "WATCHDOG_USEC" in os.environ

    def beat(self) -> None:
        """Notifies it, unless a part has made no progress since the last notification."""
        if self._asked:
            now = self._server.beats()
            if all(count > before for count, before in zip(now, self._told, strict=True)):
                self._told = now
                _notify("WATCHDOG=1")


def _watch(server: txstore.Server, before: errors.TxStoreError | None) -> errors.TxStoreError | None:
    """Logs when the store stops taking messages, and when it takes them again. Raises if only a restart helps."""
    failure = server.failure()
    if isinstance(failure, errors.StorePoisonedError | errors.StoreClosedError):
        raise failure
    if failure is not None and type(failure) is not type(before):
        _log.error("the store takes no messages: %s", failure, extra={"error": type(failure).__name__})
    elif failure is None and before is not None:
        _log.info("the store takes messages again")
    return failure


def _reload(server: txstore.Server) -> None:
    """Reads the files again. If one is invalid, nothing changes."""
    try:
        server.reload()
    except errors.TxStoreError as error:
        _log.error("the files could not be read again: %s", error)


def _print_addresses(addresses: dict[str, str], form: str) -> None:
    lines = [json.dumps(addresses)] if form == "json" else [f"{what:<12} {where}" for what, where in addresses.items()]
    print("\n".join(lines), flush=True)


def _notify(state: str) -> None:
    """Notifies systemd, if it asks (Type=notify)."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(state.encode(), f"\0{path[1:]}" if path.startswith("@") else path)
