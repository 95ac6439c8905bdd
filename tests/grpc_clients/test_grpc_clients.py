"""Guards RocketMQ's official gRPC clients against `txstore serve --grpc`, and that a real RocketMQ shows the same.

Each client is a process of its own in its own language; all do the same scenarios (scenarios.py). What differs, with
its reason, is in expected.py.
"""

from __future__ import annotations

import pytest

from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.conftest import Outcomes
from tests.grpc_clients.expected import ON_OURS, Expected, expected, is_listed, unknown_names
from tests.grpc_clients.faces import OURS, THEIRS
from tests.grpc_clients.page import PAGE, page
from tests.grpc_clients.scenarios import SCENARIOS

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("scenario", ON_OURS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_on_txstore(outcomes: Outcomes, client: str, scenario: str) -> None:
    outcome = outcomes(client, OURS)[scenario]
    assert Expected(outcome.result, outcome.code) == expected(client, OURS, scenario), outcome.line()


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_on_rocketmq(outcomes: Outcomes, client: str, scenario: str) -> None:
    outcome = outcomes(client, THEIRS)[scenario]
    assert Expected(outcome.result, outcome.code) == expected(client, THEIRS, scenario), outcome.line()


@pytest.mark.parametrize("scenario", ON_OURS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_sees_the_same_on_both(outcomes: Outcomes, client: str, scenario: str) -> None:
    ours, theirs = (outcomes(client, server)[scenario] for server in (OURS, THEIRS))
    assert (ours.saw == theirs.saw) or is_listed(client, scenario), f"{ours.line()}\n{theirs.line()}"


def test_page_says_what_the_clients_did(outcomes: Outcomes) -> None:
    assert page({name: outcomes(name, OURS) for name in CLIENTS}) == PAGE.read_text()


def test_tables_name_only_clients_and_scenarios_that_exist() -> None:
    assert unknown_names() == []
