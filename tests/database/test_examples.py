"""Guards the database examples and their page: the code runs as shown."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def example(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"examples.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def payments(directory: Path) -> int:
    """How many payments there are by now; 0 before the table exists."""
    try:
        with closing(sqlite3.connect(f"{(directory / 'orders.db').as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM payments").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.kill
def test_orders_are_paid_and_packed_once_after_any_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.database_orders", str(tmp_path), "--orders", "300"]
    for moment in (20, 120):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as killed:
            eventually(lambda moment=moment: payments(tmp_path) >= moment, 60)  # type: ignore[misc]
            killed.kill()
    told = example("database_orders", tmp_path, "--orders", 300)
    match = re.fullmatch(r"(\d+) orders paid, (\d+) refused\n", told)
    assert match is not None
    paid, refused = map(int, match.groups())
    assert (paid + refused, refused > 0) == (300, True)
    assert example("inbox", tmp_path) == f"heard of {paid}, packed {paid}; {paid} parcels\n"
    assert example("inbox", tmp_path, "--again") == f"heard of {paid}, packed 0; {paid} parcels\n"


def test_page_runs_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "database.md").read_text()
    first, migration, _ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", first], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    compile(migration, "migration", "exec")
