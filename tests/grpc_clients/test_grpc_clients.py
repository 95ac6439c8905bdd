"""Guards what RocketMQ 5's official clients do with a real RocketMQ and its proxy.

Each client is a process of its own in its own language; all do the same scenarios (scenarios.py). What differs, with
its reason, is in expected.py.
"""

from __future__ import annotations

import pytest

from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.conftest import Outcomes
from tests.grpc_clients.expected import Expected, expected, unknown_names
from tests.grpc_clients.faces import THEIRS
from tests.grpc_clients.scenarios import SCENARIOS

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_on_rocketmq(outcomes: Outcomes, client: str, scenario: str) -> None:
    outcome = outcomes(client, THEIRS)[scenario]
    assert Expected(outcome.result, outcome.code) == expected(client, THEIRS, scenario), outcome.line()


def test_tables_name_only_clients_and_scenarios_that_exist() -> None:
    assert unknown_names() == []
