"""Guards RocketMQ's official Python client for gRPC against `txstore serve --grpc`: what every change must keep.

All clients and scenarios are in tier `peer`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.expected import Expected, expected
from tests.grpc_clients.faces import OURS, both_faces
from tests.grpc_clients.outcomes import Runner

SCENARIOS = ["send", "commit", "check", "simple", "push", "too_short"]


def test_python_client_sends_commits_answers_checks_and_consumes(tmp_path: Path) -> None:
    if importlib.util.find_spec("rocketmq") is None:
        pytest.skip("RocketMQ's Python client is not installed: make installs requirements-dev.lock")
    authority = Authority(tmp_path / "authority")
    with both_faces(OURS, tmp_path, authority) as (server, guarded):
        runner = Runner(CLIENTS["python"], server, guarded, tmp_path / "clients", authority.file)
        outcomes = runner.run(SCENARIOS)
    for scenario in SCENARIOS:
        outcome = outcomes[scenario]
        assert Expected(outcome.result, outcome.code) == expected("python", OURS, scenario), outcome.line()
