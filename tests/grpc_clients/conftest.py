"""Fixtures of the tests with RocketMQ's gRPC clients: both servers, and what each client did on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.certificates import Authority
from tests.grpc_clients.clients import CLIENTS, NoClientError
from tests.grpc_clients.expected import ON_OURS
from tests.grpc_clients.faces import OURS, both_faces
from tests.grpc_clients.outcomes import Outcome, Runner
from tests.grpc_clients.scenarios import SCENARIOS
from tests.grpc_clients.servers import GrpcServer
from tests.peer import rocketmq as peer

Outcomes = Callable[[str, str], dict[str, Outcome]]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Of a client on a server: how each scenario ended. Each pair runs once, when it is first asked for; skips what is
    not available here."""
    folder = tmp_path_factory.mktemp("grpc")
    authority = Authority(folder / "authority")
    with ExitStack() as stack:

        @cache
        def faces(server: str) -> tuple[GrpcServer, GrpcServer] | str:
            try:
                return stack.enter_context(both_faces(server, folder, authority))
            except peer.NoPeerError as problem:
                return str(problem)

        @cache
        def run(client: str, server: str) -> dict[str, Outcome] | str:
            both = faces(server)
            if isinstance(both, str):
                return both
            asked = ON_OURS if server == OURS else SCENARIOS
            try:
                return Runner(CLIENTS[client], *both, folder / server / "clients", authority.file).run(asked)
            except NoClientError as problem:
                return str(problem)

        def outcomes_of(client: str, server: str) -> dict[str, Outcome]:
            found = run(client, server)
            if isinstance(found, str):
                pytest.skip(found)
            return found

        yield outcomes_of
