"""`txstore replica …`: shows the copies of a served store, and how far each one is.

In:     the address of a server, or the directory of the store that it has open.
Out:    text or JSON.
Always: only a running server knows its replicas, so a directory is that of a store which a server has open.
Not here: following a source (`serve --replica-of`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from txstore.cli.arguments import AsJson, noun
from txstore.cli.exit_codes import EXIT_FINDING, EXIT_OK
from txstore.cli.output import print_facts, print_json, print_table
from txstore.cli.target import log_of
from txstore.client.dial import STORE
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerUnreachableError
from txstore.remoting.replication import ReplicationStatus
from txstore.server.replication import Source

__all__ = ["app"]

app: typer.Typer = noun("Copies of a served store: status.")


@app.callback()
def _group() -> None:
    """Copies of a served store: status."""


@app.command()
def status(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS|PATH", help="A server: HOST:PORT, unix:FILE, or the store that it serves.")
    ],
    as_json: AsJson = False,
) -> int:
    """Show a server's part in replication: its source or its replicas, how far the copies are, what writes need.

    Exits with 1 if writes are not accepted, or if a replica does not follow its source.
    """
    found = _status(address)
    if as_json:
        print_json(_facts(found))
    else:
        _print(found)
    works = found.following if found.role == "replica" else found.accepts_writes
    return EXIT_OK if works else EXIT_FINDING


def _status(address: str) -> ReplicationStatus:
    target = log_of(address)
    try:
        server = Source(target.server or f"{STORE}{target.path}", ConnectConfig.from_environment())
    except BrokerUnreachableError as error:
        if target.server is not None:
            raise
        hint = "start `txstore serve` for it, or pass the server's address"
        text = f"no server has the store at {target.path} open: {str(error).partition(chr(10))[0]}\nhint: {hint}"
        raise BrokerUnreachableError(text, address=error.address) from error
    with server:
        return server.status()


def _facts(found: ReplicationStatus) -> dict[str, Any]:
    return {
        "role": found.role,
        "name": found.name or None,
        "address": found.address,
        "end": found.end,
        "visible_end": found.visible_end,
        "source": found.source,
        "following": found.following,
        "failure": found.failure,
        "lag_bytes": found.lag_bytes,
        "lag_seconds": None if found.lag is None else _seconds(found.lag),
        "copies_required": found.required,
        "copies_count_in": found.ack,
        "accepts_writes": found.accepts_writes,
        "replicas": [
            {
                "name": one.name,
                "address": one.address,
                "connected": one.connected,
                "silent_seconds": _seconds(one.silent),
                "lag_bytes": one.lag_bytes,
                "lag_seconds": _seconds(one.lag),
            }
            for one in found.replicas
        ],
    }


def _print(found: ReplicationStatus) -> None:
    is_replica = found.role == "replica"
    facts: dict[str, Any] = {"role": found.role, "address": found.address or "none", "end of the log": found.end}
    if is_replica:
        lag = "not known yet" if found.lag_bytes is None else f"{found.lag_bytes:,} bytes"
        facts |= {
            "name": found.name,
            "source": found.source,
            "follows it": _yes(found.following),
            "lag": lag,
            "complete": _ago(found.lag),
        }
    else:
        facts |= {
            "visible up to": found.visible_end,
            "copies required": f"{found.required} ({found.ack})",
            "accepts writes": _yes(found.accepts_writes),
        }
    if found.failure is not None:
        facts["failure"] = found.failure.partition("\n")[0]
    print_facts(facts)
    if found.replicas:
        print()
        rows = [
            [
                one.name,
                one.address or "none",
                "connected" if one.connected else f"silent for {_seconds(one.silent):g} s",
                f"{one.lag_bytes:,}",
                f"{_seconds(one.lag):g}",
            ]
            for one in found.replicas
        ]
        print_table(["replica", "address", "state", "lag in bytes", "lag in seconds"], rows)
    elif not is_replica:
        print("\nno replica has asked since the server started")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _ago(lag: timedelta | None) -> str:
    return "now" if not lag else f"{_seconds(lag):g} s ago"


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 3)
