"""Writes docs/rocketmq/grpc_clients.md from what the clients did.

In:     the outcomes of each client on `txstore serve`, and the tables of differences.
Out:    the page's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.grpc_clients.clients import CLIENTS, Client
from tests.grpc_clients.expected import ALL, DIFFERENCES, OF_CLIENTS, ON_OURS, SEEN_OTHERWISE, Expected
from tests.grpc_clients.outcomes import HANGS, INVALID_ARGUMENT, REFUSED, UNAUTHENTICATED, WORKS, Outcome
from tests.grpc_clients.scenarios import SCENARIOS

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rocketmq" / "grpc_clients.md"
OF_GRPC: dict[int | str, str] = {INVALID_ARGUMENT: "INVALID_ARGUMENT", UNAUTHENTICATED: "UNAUTHENTICATED"}
TITLE = "# RocketMQ 5's clients and `txstore serve --grpc`"
ABOUT = (
    "This page is generated from tests: each client below did each of these things with `txstore serve --grpc`, and "
    "with Apache RocketMQ 5.4.0 and its proxy in local mode to compare. `make peer` runs them again and compares the "
    "page; `python -m tests.grpc_clients page` writes it. How to serve these clients is in [grpc](grpc.md). "
    "The client for C++, which no package registry has, and those for C# and PHP were not tested."
)
LEGEND = (
    "A number is the code of the v2 protocol that the client reports. *Refused by the client*: its error has no code. "
    "*Not offered*: the client has no such call."
)


def _cell(outcome: Outcome | Expected) -> str:
    if outcome.result == REFUSED:
        return (
            "refused by the client" if outcome.code is None else f"refused, {OF_GRPC.get(outcome.code, outcome.code)}"
        )
    return "waits for ever" if outcome.result == HANGS else outcome.result


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _table(*heads: str) -> list[str]:
    return [_row(*heads), f"|{'---|' * len(heads)}"]


def _versions(clients: list[Client]) -> Iterator[str]:
    yield from _table("language", "package", "version")
    for client in clients:
        yield _row(client.language, f"`{client.package}`", client.version)


def _features(clients: list[Client], outcomes: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    yield from _table("", *(client.language for client in clients))
    for scenario in (SCENARIOS[name] for name in ON_OURS):
        yield _row(scenario.feature, *(_cell(outcomes[client.name][scenario.name]) for client in clients))


def _of(clients: Iterable[str]) -> str:
    return ", ".join("all" if client == ALL else CLIENTS[client].language for client in clients)


def _grouped(rows: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    """Rows, one for all clients of which the same is true."""
    clients: dict[tuple[str, ...], list[str]] = {}
    for client, cells in rows:
        clients.setdefault(cells, []).append(client)
    for cells, names in clients.items():
        yield _row(_of(names), *cells)


def _differences() -> Iterator[str]:
    yield from _table("client", "", "`txstore serve`", "RocketMQ 5.4.0", "why")
    yield from _grouped(
        (client, (SCENARIOS[name].feature, _cell(found.ours), _cell(found.theirs), found.reason))
        for (client, name), found in DIFFERENCES.items()
        if name in ON_OURS
    )
    yield from _grouped(
        (client, (SCENARIOS[name].feature, WORKS, WORKS, reason)) for (client, name), reason in SEEN_OTHERWISE.items()
    )


def _clients_own() -> Iterator[str]:
    yield from _table("client", "", "on both servers", "why")
    yield from _grouped(
        (client, (SCENARIOS[name].feature, _cell(found), reason))
        for (client, name), (found, reason) in OF_CLIENTS.items()
        if reason and name in ON_OURS  # What a client does not offer is in the table of features.
    )


def page(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The page; `outcomes`: of each client on `txstore serve`."""
    clients = [client for name, client in CLIENTS.items() if name in outcomes]
    parts = [
        [TITLE],
        [ABOUT],
        list(_versions(clients)),
        [LEGEND],
        list(_features(clients, outcomes)),
        ["## What differs from RocketMQ"],
        list(_differences()),
        ["## What clients do in their own way"],
        list(_clients_own()),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"
