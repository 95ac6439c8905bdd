"""Runs scenarios of one client on one server, several at the same time, and says how each ended.

In:     a client, a server without and one with accounts, names of scenarios.
Out:    for each scenario an outcome, which is also one line of JSON.
Always: scenarios share a process of the client; if it dies, the others get a new one.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.grpc_clients.clients import Client
from tests.grpc_clients.scenarios import SCENARIOS, Scenario
from tests.grpc_clients.scenes import NotOfferedError, Scene
from tests.grpc_clients.servers import GrpcServer
from tests.programs import Program, ProgramError, ProgramGoneError

__all__ = [
    "FAILED",
    "HANGS",
    "INVALID_ARGUMENT",
    "NOT_OFFERED",
    "REFUSED",
    "UNAUTHENTICATED",
    "WORKS",
    "Outcome",
    "Runner",
]

WORKS, REFUSED, NOT_OFFERED, FAILED, HANGS = "works", "refused", "not offered", "fails", "hangs"
INVALID_ARGUMENT, UNAUTHENTICATED = 3, 16
"""gRPC's own codes, with which a server ends a stream."""
SIDE_BY_SIDE = 8
_runs = itertools.count(1)


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended. `code`: of a refusal; None if the client itself refused."""

    scenario: str
    result: str
    code: int | str | None = None
    saw: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


class Runner:
    """One client and the two faces of one server."""

    def __init__(self, client: Client, server: GrpcServer, guarded: GrpcServer, home: Path, trusted: Path) -> None:
        """`guarded`: the server with accounts. `trusted`: a PEM file of authorities."""
        self._client, self._server, self._guarded = client, server, guarded
        self._home, self._trusted = home, trusted
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._shared: Program | None = None

    def _start(self) -> Program:
        home = self._home / f"{self._client.name}-{next(_runs)}"
        home.mkdir(parents=True)
        return self._client.start(home, self._trusted)

    def _program(self) -> Program:
        with self._lock:
            if self._shared is None or not self._shared.is_running:
                self._shared = self._stack.enter_context(self._start())
            return self._shared

    def run(self, scenarios: Iterable[str] = SCENARIOS) -> dict[str, Outcome]:
        """Raises NoClientError."""
        with self._stack, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            self._program()
            chosen = [SCENARIOS[name] for name in scenarios]
            return {outcome.scenario: outcome for outcome in pool.map(self._outcome, chosen)}

    def _outcome(self, scenario: Scenario) -> Outcome:
        server = self._guarded if scenario.accounts else self._server
        prefix = f"{self._client.name}-{scenario.name.replace('_', '-')}-{next(_runs)}"
        scene = Scene(self._client, self._program(), server, self._start, prefix)
        try:
            return Outcome(scenario.name, WORKS, saw=scenario.run(scene))
        except NotOfferedError:
            return Outcome(scenario.name, NOT_OFFERED)
        except ProgramGoneError as problem:
            return Outcome(scenario.name, FAILED, problem=str(problem))
        except ProgramError as problem:
            return Outcome(scenario.name, REFUSED, problem.code, problem=str(problem))
        except TimeoutError:
            return Outcome(scenario.name, HANGS)
        except (AssertionError, KeyError, ValueError) as problem:
            return Outcome(scenario.name, FAILED, problem=f"{type(problem).__name__}: {problem}")
        finally:
            scene.close()
