"""`txstore forward`: sends messages that wait in a database to their log, as a process of its own.

In:     a database's URL or SQLite file; a store's directory, or a broker's address.
Out:    how many messages it sent, a line for each second in which there were some; metrics and readiness over HTTP.
Always: a row is taken over as any other process would do it (`txstore.database.outbox`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.arguments import noun
from txstore.cli.logs import errors_logged, log_to_stderr
from txstore.cli.outbox import DatabaseUrl
from txstore.cli.target import joined
from txstore.database import Database
from txstore.database.outbox import Forwarder
from txstore.server.http import HttpServer
from txstore.server.outbox_metrics import outbox_exporter
from txstore.signals import STOP, handled

if TYPE_CHECKING:
    from collections.abc import Callable

    from txstore import RemoteBroker
    from txstore._native import OutboxRow
    from txstore.producer.outbox import OutboxLog

__all__ = ["app"]

app: typer.Typer = noun()
_LOOK_SECONDS = 1.0
_LOOK_SECONDS_ONCE = 0.05
_LOOKING_SHARE = 0.05  # Of the time: to count many rows takes long.


@app.command()
def forward(
    database: DatabaseUrl,
    to: Annotated[
        str,
        typer.Option("--to", metavar="STORE|ADDRESS", help="A store's directory, or HOST:PORT, unix:FILE, store:PATH."),
    ],
    once: Annotated[bool, typer.Option("--once", help="End when no message waits any more.")] = False,
    keep_sent: Annotated[
        float | None,
        typer.Option(
            "--keep-sent", metavar="SECONDS", help="Keep sent rows, as the programs do: see docs/publish/outbox.md."
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Metrics, health and readiness over HTTP.")
    ] = None,
    log: Annotated[str, typer.Option("--log", metavar="FORM", help="'text', or 'json': an object per line.")] = "text",
) -> None:
    """Send messages that wait in a database to a store or a broker, until SIGTERM or SIGINT.

    Takes over those that the program that wrote them does not send: because it has ended, or is stopped.
    """
    log_to_stderr(log)
    stopped = threading.Event()
    with errors_logged(log, app), handled(dict.fromkeys(STOP, stopped.set)), ExitStack() as opened:
        source = Database(database, keep_sent=keep_sent)
        broker = opened.enter_context(joined(to))
        forwarder = _forwarder(broker, source, at_once=once)
        print(f"forwards messages from {source!r} to {to}", flush=True)
        if metrics is not None:
            http = HttpServer(metrics, failure=lambda: forwarder.failure, metrics_text=outbox_exporter(broker.outboxes))
            opened.enter_context(closing(http))
            print(f"metrics: {http.address}", flush=True)
        told, pause = 0, _LOOK_SECONDS_ONCE if once else _LOOK_SECONDS
        while not stopped.wait(pause):
            told = _tell(forwarder, told)
            if not once:
                continue
            began = time.monotonic()
            if forwarder.status().rows == 0:
                break
            pause = max(_LOOK_SECONDS_ONCE, (time.monotonic() - began) / _LOOKING_SHARE)
        _tell(forwarder, told)


def _forwarder(broker: RemoteBroker, database: Database, *, at_once: bool) -> Forwarder:
    """Starts to forward all rows for a broker; with `at_once`, also those of processes that may be alive."""

    def make(log: OutboxLog, choose: Callable[[OutboxRow], int]) -> Forwarder:
        # A RocketMQ broker would store the message of a living process twice.
        now = at_once and log.appends_once
        return Forwarder(database, log, choose, take_over_seconds=0.0 if now else None)

    database.identity()  # Raises TableError.
    forwarder = broker.outboxes.forwarder(database, make)
    forwarder.start()
    return forwarder


def _tell(forwarder: Forwarder, told: int) -> int:
    """Prints how many messages were sent since `told`; returns how many there are."""
    done = forwarder.taken_over
    if done > told:
        print(f"forwarded {done - told} messages", flush=True)
    return done
