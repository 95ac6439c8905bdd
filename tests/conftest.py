"""Decides which tests run, and beside which others; says at the end what was skipped and why.

In:     the markers by which tests name their tier (`peer`, `matrix`, `torture`; none: `test`), and `--tier`.
Out:    the tests of those tiers, in groups that a worker of pytest-xdist runs as a whole.
Always: a test is in exactly one tier. docs/testing.md says what each tier is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

TIERS = ("test", "peer", "matrix", "torture")
# Fixtures that start a Java machine live as long as their worker: their tests run on one of the workers.
ON_ONE_WORKER = ("spark", "remoting")
HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        default="test",
        help=f"which tests to run: some of {', '.join(TIERS)}, separated by commas, or all (default: test)",
    )


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


def group_of(path: Path) -> str:
    """Tests of one group run on one worker: a file, or a folder whose session fixtures are expensive."""
    folder, *_ = path.relative_to(HERE).parts
    return folder if folder in ON_ONE_WORKER else path.relative_to(HERE).as_posix()


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {', '.join(asked_tiers(config))}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = asked_tiers(config)
    chosen = [item for item in items if tier_of(item) in asked]
    others = [item for item in items if tier_of(item) not in asked]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))


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
    deselected = Counter(tier_of(item) for item in terminalreporter.stats.get("deselected", ()))
    for tier, count in sorted(deselected.items()):
        if tier not in asked_tiers(config):
            terminalreporter.write_line(f"not run: {counted(count)} of the tier {tier} (--tier {tier})")
    for reason, count in reasons(terminalreporter.stats.get("skipped", ())).most_common():
        terminalreporter.write_line(f"skipped: {counted(count)}: {reason}")
