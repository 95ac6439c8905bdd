"""`txstore replica …`: shows the copies of a served store, makes one the source, and forgets one.

In:     the address of a server, or the directory of the store that it has open.
Out:    text or JSON.
Always: only a running server knows its replicas, so a directory is that of a store which a server has open.
        Messages are lost only with `--lose-messages`.
Not here: following a source (`serve --replica-of`), the steps of a promotion (`txstore.server.promotion`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

import typer

from txstore.cli.arguments import AsJson, noun
from txstore.cli.exit_codes import EXIT_FINDING, EXIT_OK
from txstore.cli.output import LateCell, age_colour, print_facts, print_json, print_table
from txstore.cli.target import log_of
from txstore.client.dial import STORE
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerBusyError, BrokerTimeoutError, BrokerUnreachableError
from txstore.remoting.replication import ReplicationStatus
from txstore.server.replication import Source

__all__ = ["app"]

_PROMOTION_SECONDS = 600.0  # The replica may copy the rest of a log first.
_OPENING_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_Node: TypeAlias = Annotated[
    str, typer.Argument(metavar="ADDRESS|PATH", help="A server: HOST:PORT, unix:FILE, or the store that it serves.")
]

app: typer.Typer = noun("Copies of a served store: status, promote, forget.")


@app.callback()
def _group() -> None:
    """Copies of a served store: status, promote, forget."""


@app.command()
def status(
    address: _Node,
    as_json: AsJson = False,
) -> int:
    """Show a server's part in replication: its source or its replicas, how far the copies are, what writes need.

    Exits with 1 if writes are not accepted, or if a replica does not follow its source.
    """
    with _connected(address) as server:
        found = server.status()
    if as_json:
        print_json(_facts(found))
    else:
        _print(found)
    works = found.following if found.role == "replica" else found.accepts_writes
    return EXIT_OK if works else EXIT_FINDING


@app.command()
def promote(
    address: _Node,
    lose_messages: Annotated[
        bool, typer.Option("--lose-messages", help="Promote it although other nodes may have messages that it lacks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a replica the source: the node that is written. A source that can be reached stops writing first.

    Every other node must accept it. If one cannot be reached and may have messages that would be lost, the command says
    which and does nothing; --lose-messages continues.
    """
    with _connected(address) as server:
        done = server.call("promote", timeout=_PROMOTION_SECONDS, lose_messages=lose_messages)
    assert isinstance(done, dict)
    _wait_until_it_writes(address)
    if as_json:
        print_json(done)
    else:
        _print_promotion(address, done)


def _print_promotion(address: str, done: dict[str, Any]) -> None:
    print(f"{address} is the source in epoch {done['epoch']}, from physical offset {done['start']} on")
    for loss in done["losses"]:
        print(f"possibly lost: {loss}")
    for node in done["not_asked"]:
        print(f"not asked: {node}; it is told as soon as it can be reached")


@app.command()
def forget(
    address: _Node,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The replica's name.")],
) -> int:
    """Remove a replica that does not come back, so that another can be added and promotions do not ask it.

    ADDRESS is that of the source. Exits with 1 if it knows no such replica.
    """
    with _connected(address) as server:
        known = server.call("forget_replica", name=name)
    print(f"{name} is {'forgotten' if known else 'not known'}")
    return EXIT_OK if known else EXIT_FINDING


def _wait_until_it_writes(address: str) -> None:
    """Waits until the server has opened its store again."""
    until = time.monotonic() + _OPENING_SECONDS
    while time.monotonic() < until:
        with suppress(BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError), _connected(address) as server:
            if server.state()["writes"]:
                return
        time.sleep(_LOOK_SECONDS)
    text = f"{address} is promoted, but has not opened its store after {_OPENING_SECONDS:g} s\nhint: see its log"
    raise BrokerTimeoutError(text, address=address)


def _connected(address: str) -> Source:
    target = log_of(address)
    try:
        return Source(target.server or f"{STORE}{target.path}", ConnectConfig.from_environment())
    except BrokerUnreachableError as error:
        if target.server is not None:
            raise
        hint = "start `txstore serve` for it, or pass the server's address"
        text = f"no server has the store at {target.path} open: {str(error).partition(chr(10))[0]}\nhint: {hint}"
        raise BrokerUnreachableError(text, address=error.address) from error


def _facts(found: ReplicationStatus) -> dict[str, Any]:
    return {
        "role": found.role,
        "epoch": found.epoch,
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
                "copied_end": one.copied_end,
                "lag_bytes": one.lag_bytes,
                "lag_seconds": _seconds(one.lag),
            }
            for one in found.replicas
        ],
    }


def _print(found: ReplicationStatus) -> None:
    is_replica = found.role == "replica"
    facts: dict[str, Any] = {
        "role": found.role,
        "epoch": found.epoch,
        "address": found.address or "none",
        "end of the log": found.end,
    }
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
                f"{one.copied_end}",
                f"{one.lag_bytes:,}",
                LateCell(f"{_seconds(one.lag):g}", age_colour(round(one.lag.total_seconds() * 1000))),
            ]
            for one in found.replicas
        ]
        print_table(["replica", "address", "state", "copied up to", "lag in bytes", "lag in seconds"], rows)
    elif not is_replica:
        print("\nno replica has asked since the server started")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _ago(lag: timedelta | None) -> str:
    return "now" if not lag else f"{_seconds(lag):g} s ago"


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 3)
