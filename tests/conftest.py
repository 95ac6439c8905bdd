"""Decides which tests run and which of them share a worker; reports at the end what was skipped and why.

In:     the markers by which tests name their tier (`peer`, `matrix`, `torture`; none: `test`), and `--tier`.
Out:    the tests of those tiers, in groups that a worker of pytest-xdist runs as a whole.
Always: a test is in exactly one tier. docs/internals/testing.md says what each tier is for.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TIERS = ("test", "peer", "matrix", "torture")
# Fixtures that start a Java machine live as long as their worker: their tests run on one of the workers.
ON_ONE_WORKER = ("spark", "remoting")
# Their tests share no fixture, and each takes seconds: any worker may run one of them.
ON_ANY_WORKER = ("tests/histories/test_histories.py", "tests/histories/test_outbox_history.py")
# Groups that take longest begin first. A long one that began last would leave the other workers without work.
FIRST = (
    "tests/spark/",
    "tests/remoting/",
    "tests/histories/",
    "tests/grpc_clients/",
    "tests/model/",
    "tests/crash/",
)
OTHERS = pytest.StashKey[Counter[str]]()
"""How many tests of each other tier there were."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        default="test",
        help=f"which tests to run: some of {', '.join(TIERS)}, separated by commas, or all (default: test)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script that starts the tests in the background makes them ignore Ctrl-C, and all programs that they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same random examples in each run, so that a failure is the change's. Longer forms look for new ones.
    is_same = asked_tiers(config) == ("test",) and "TXSTORE_EXAMPLES" not in os.environ
    # How long an example takes depends on what else the machine does.
    settings.register_profile(
        "txstore", derandomize=is_same, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("txstore")


def asked_tiers(config: pytest.Config) -> tuple[str, ...]:
    said = str(config.getoption("--tier"))
    asked = TIERS if said == "all" else tuple(said.split(","))
    unknown = [name for name in asked if name not in TIERS]
    if unknown:
        raise pytest.UsageError(f"unknown tier {unknown[0]!r}, expected some of {', '.join(TIERS)}, or all")
    return asked


def tier_of(item: pytest.Item) -> str:
    """The tier that the test, its module or its parameters name."""
    named = {mark.name for mark in item.iter_markers()} & set(TIERS)
    if len(named) > 1:
        raise pytest.UsageError(f"{item.nodeid} names the tiers {' and '.join(sorted(named))}, expected one")
    return named.pop() if named else "test"


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker: a file, a folder whose session fixtures are expensive, or a long test."""
    path = Path(nodeid.partition("::")[0])
    if path.as_posix() in ON_ANY_WORKER:
        return nodeid
    return path.parent.as_posix() if path.parent.name in ON_ONE_WORKER else path.as_posix()


def turn_of(nodeid: str) -> int:
    """Sorts tests: those of FIRST in its order, then all others."""
    return next((turn for turn, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives workers whole groups, in the order of the run."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {', '.join(asked_tiers(config))}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = asked_tiers(config)
    chosen = [item for item in items if tier_of(item) in asked]
    others = [item for item in items if tier_of(item) not in asked]
    counts: Counter[str] = Counter(tier_of(item) for item in others)
    config.stash[OTHERS] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["others"] = dict(counts)
    if others:
        config.hook.pytest_deselected(items=others)
    items[:] = sorted(chosen, key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: each has collected the same."""
    node.config.stash[OTHERS] = Counter(getattr(node, "workeroutput", {}).get("others", {}))


def reasons(skipped: Sequence[pytest.TestReport]) -> Counter[str]:
    """Why tests were skipped, and how many for each reason."""
    found: Counter[str] = Counter()
    for report in skipped:
        told = report.longrepr
        found[(told[2] if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")] += 1
    return found


def counted(count: int) -> str:
    return f"{count:,} {'test' if count == 1 else 'tests'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for tier, count in sorted(config.stash.get(OTHERS, Counter()).items()):
        terminalreporter.write_line(f"not run: {counted(count)} of the tier {tier} (--tier {tier})")
    for reason, count in reasons(terminalreporter.stats.get("skipped", ())).most_common():
        terminalreporter.write_line(f"skipped: {counted(count)}: {reason}")
