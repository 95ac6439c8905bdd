"""How each scenario must end, and where txstore and RocketMQ differ.

In:     a client, a server, a scenario.
Out:    works, refused with a code, or not offered by the client.
Always: what is not in these tables works, or is refused with the code of its scenario, on both servers alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.faces import OURS
from tests.grpc_clients.outcomes import FAILED, HANGS, INVALID_ARGUMENT, NOT_OFFERED, REFUSED, UNAUTHENTICATED, WORKS
from tests.grpc_clients.scenarios import SCENARIOS
from tests.grpc_clients.scenes import NOTHING_FOUND

__all__ = [
    "ALL",
    "DIFFERENCES",
    "OF_CLIENTS",
    "ON_OURS",
    "SEEN_OTHERWISE",
    "Difference",
    "Expected",
    "expected",
    "is_listed",
    "unknown_names",
]

ALL = "*"
"""In a table of clients: all of them."""


@dataclass(frozen=True)
class Expected:
    """`code`: of a refusal: RocketMQ's, or gRPC's below 20; None if the client itself refuses, without a code."""

    result: str
    code: int | str | None = None


@dataclass(frozen=True)
class Difference:
    """A scenario that ends in another way on txstore than on RocketMQ, and why."""

    ours: Expected
    theirs: Expected
    reason: str


ON_OURS = list(SCENARIOS)
OK = Expected(WORKS)
BY_CLIENT = Expected(REFUSED)
LACKS = Expected(NOT_OFFERED)
ENDED = Expected(REFUSED, INVALID_ARGUMENT)
WAITS = Expected(HANGS)

_COMPARES = "it compares with what the server's settings say before it sends"
_HIDES = "it writes the server's answer about the topic to its log and raises another error"
_ENDED = "the server ends the stream of its settings with gRPC's INVALID_ARGUMENT"
# What a client does in its own way on both servers, and why.
OF_CLIENTS: dict[tuple[str, str], tuple[Expected, str]] = {
    **{
        (client, scenario): (BY_CLIENT, _COMPARES)
        for scenario in ("wrong_type", "too_large")
        for client in ("python", "java", "go", "node")
    },
    **{
        ("python", scenario): (BY_CLIENT, _HIDES)
        for scenario in ("unknown_topic", "illegal_topic", "wrong_secret", "no_account")
    },
    ("go", "empty_poll"): (Expected(REFUSED, NOTHING_FOUND), "finding nothing is an error to it"),
    ("go", "expired_handle"): (OK, "it does not look at the answer's status"),
    ("go", "recall"): (LACKS, ""),
    ("java", "illegal_group"): (BY_CLIENT, f"{_ENDED}, and its error has no code"),
    ("go", "illegal_group"): (WAITS, f"{_ENDED}, and it waits for them for ever"),
    ("node", "illegal_group"): (WAITS, f"{_ENDED}, and it waits for them for ever"),
    **{
        ("rust", scenario): (LACKS, "")
        for scenario, wanted in SCENARIOS.items()
        if wanted.feature.startswith("PushConsumer") or scenario in ("recall", "change_invisible_duration", "tls")
    },
}
DIFFERENCES: dict[tuple[str, str], Difference] = {
    (ALL, "wrong_sql"): Difference(
        Expected(REFUSED, 40010), Expected(REFUSED, 50001), "RocketMQ reports an error of its own; the text says why"
    ),
    ("rust", "illegal_topic"): Difference(
        Expected(REFUSED, 40002), ENDED, "RocketMQ refuses the topic already in the settings of the client"
    ),
    **{
        ("rust", scenario): Difference(
            Expected(REFUSED, UNAUTHENTICATED),
            Expected(REFUSED, 40100),
            "this client opens its stream first, which `txstore serve` refuses with gRPC's code",
        )
        for scenario in ("wrong_secret", "no_account")
    },
    ("rust", "illegal_group"): Difference(
        Expected(REFUSED, 40003), ENDED, "RocketMQ answers its settings before its first receive"
    ),
    ("python", "illegal_group"): Difference(
        Expected(REFUSED, 40003),
        Expected(REFUSED, 50001),
        "RocketMQ fails where it looks for the settings that it refused before",
    ),
    ("node", "push_fifo"): Difference(
        OK,
        Expected(FAILED),
        "its client reads exponential delays only; with RocketMQ's list of delays a message that failed once becomes a "
        "dead letter, `txstore serve` sends it the other kind",
    ),
}
# Scenarios that work on both servers, and show different facts: why.
SEEN_OTHERWISE: dict[tuple[str, str], str] = {
    ("node", "dead_letter_fifo"): (
        "its client reads exponential delays only: on RocketMQ the message is a dead letter after its first attempt"
    ),
}


def is_listed(client: str, scenario: str) -> bool:
    """Whether a difference between the servers is known."""
    return any((who, scenario) in table for who in (client, ALL) for table in (DIFFERENCES, SEEN_OTHERWISE))


def expected(client: str, server: str, scenario: str) -> Expected:
    difference = DIFFERENCES.get((client, scenario)) or DIFFERENCES.get((ALL, scenario))
    if difference is not None:
        return difference.ours if server == OURS else difference.theirs
    if (client, scenario) in OF_CLIENTS:
        return OF_CLIENTS[client, scenario][0]
    refused = SCENARIOS[scenario].refused
    return OK if refused is None else Expected(REFUSED, refused)


def unknown_names() -> list[tuple[str, str]]:
    """Entries whose client or scenario does not exist."""
    entries = [*OF_CLIENTS, *DIFFERENCES, *SEEN_OTHERWISE]
    return [entry for entry in entries if entry[0] not in {*CLIENTS, ALL} or entry[1] not in SCENARIOS]
