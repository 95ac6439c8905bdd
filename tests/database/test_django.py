"""Guards `txstore.django` on SQLite, PostgreSQL and MariaDB: runs the tests of a project of Django on each.

The project (`django_shop`) has real settings; its tests are Django's own `TestCase` and `TransactionTestCase`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests.database.conftest import SMALL

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("django") is None, reason="requirements-dev.lock is not installed"
)


def database_of(server: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Django's settings of a database."""
    if server == "sqlite":
        # In memory, each connection of the tests would lock the others out.
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(folder / "shop.db"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            "TEST": {"NAME": str(folder / "test.db")},
        }
    running = request.getfixturevalue(server)
    if server == "postgres":
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": running.new(),
            "USER": "txstore",
            "HOST": str(running.folder),
        }
    socket = make_url(running.url("mysql")).query["unix_socket"]
    return {"ENGINE": "django.db.backends.mysql", "NAME": running.new(), "USER": "txstore", "HOST": socket}


@pytest.mark.parametrize("server", ["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.matrix)])
def test_project_of_django_passes_its_tests(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shop = {"database": database_of(server, tmp_path, request), "store": str(tmp_path / "store"), "options": SMALL}
    environment = {
        **os.environ,
        "SHOP": json.dumps(shop),
        "DJANGO_SETTINGS_MODULE": "tests.database.django_shop.settings",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "tests.database.django_shop.tests", "--noinput"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr[-4000:]
