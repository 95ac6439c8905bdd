"""Guards messages within the user's own transactions for a log in another process, while everything fails.

Processes send from one database, on SQLite and on a real PostgreSQL. They, the broker and the forwarder are killed;
processes are stopped until their rows are taken over, and continue. Each committed order has one message in the log,
no other is there, and each message group has the order of its commits.

TXSTORE_OUTBOX_SECONDS for each run, with TXSTORE_OUTBOX_PROCESSES; TXSTORE_OUTBOX_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.database.conftest import new_kind
from tests.database.server import Postgres, postgres_or_skip
from tests.histories.outbox import Log, run_outbox_history, wrong

SECONDS = float(os.environ.get("TXSTORE_OUTBOX_SECONDS", "3"))
PROCESSES = int(os.environ.get("TXSTORE_OUTBOX_PROCESSES", "5"))
SEED = int(os.environ.get("TXSTORE_OUTBOX_SEED", random.randrange(1 << 30)))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_or_skip() as server:
        yield server


@pytest.mark.kill
@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("sqlite3", "server"),
        ("psycopg", "shared"),
        pytest.param("sqlite3", "shared", marks=pytest.mark.torture),
        pytest.param("psycopg", "server", marks=pytest.mark.torture),
    ],
)
def test_each_committed_row_is_in_the_log_once(
    name: str, log: Log, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with new_kind(name, tmp_path, request) as kind:
        report = run_outbox_history(tmp_path, kind, log, SEED, SECONDS, PROCESSES)
        print(f"{name}, {log}: {report}")
        assert report.anomalies == []
        # A row that a killed process had taken over is taken over again: there can be more of these than rows.
        assert report.statistics["committed"] > 0 < report.statistics["taken over"], "otherwise nothing was tried"
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("sent", "kinds"),
    [
        ([7, 1, 14, 1_000_007, 28], []),
        ([7, 14, 1_000_007, 28], ["lost"]),
        ([7, 1, 14, 1_000_007, 28, 1], ["duplicate"]),
        ([7, 1, 14, 1_000_007, 28, 2], ["phantom"]),
        ([28, 1, 14, 1_000_007, 7], ["order"]),
    ],
)
def test_false_log_is_detected(sent: list[int], kinds: list[str]) -> None:
    """Orders 7 and 28 have one message group."""
    for in_commit_order in (True, False):
        found = wrong([7, 1, 14, 1_000_007, 28], sent, in_commit_order=in_commit_order)
        assert [anomaly.kind for anomaly in found] == kinds
