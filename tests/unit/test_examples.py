"""Guards the examples: each runs as it is, and a strict type checker finds nothing in it.

Those that need a database's own tests run in `tests/database/test_examples.py`, the demonstration in `tests/crash`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
# Their frameworks come without types, or only with requirements-matrix.lock. `make lint` checks the rest of them.
WITHOUT_TYPES = {"celery_parcels.py", "litestar_orders.py"}


def test_check_after_a_restart_settles_what_a_crash_left_pending(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.check_after_restart", str(tmp_path / "new")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "the service ended with 9",
        "open after the restart: 1",
        "checked: order 17 is paid? COMMIT",
        "shipping heard: order 17 is paid",
    ]


@contextmanager
def service(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The web service as a process, and its address."""
    command = [sys.executable, "-m", "examples.fastapi_service", str(directory), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def call(method: str, url: str) -> Any:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.mark.kill
def test_web_service_pays_and_packs_once_also_when_killed(tmp_path: Path) -> None:
    with service(tmp_path) as (process, url):
        for order in range(1, 6):
            assert len(call("POST", f"{url}/orders/{order}/payment")["transaction_id"]) == 32
        with pytest.raises(urllib.error.HTTPError) as refused:
            call("POST", f"{url}/orders/3/payment")
        assert refused.value.code == 409
        refused.value.close()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with service(tmp_path) as (process, url):
        call("POST", f"{url}/orders/6/payment")
        expected = {"paid": [1, 2, 3, 4, 5, 6], "packed": [1, 2, 3, 4, 5, 6]}
        eventually(lambda: bool(call("GET", f"{url}/orders") == expected))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    with txstore.open(tmp_path / "orders.store", read_only=True) as broker:
        assert broker.open_report.clean, "the store was closed, not just abandoned"
        states = [row.state for row in broker.transactions(None)]
    assert sorted(states) == ["committed"] * 6 + ["rolled_back"]


def test_user_code_passes_a_strict_type_checker(tmp_path: Path) -> None:
    """Without this project's settings: only with the types of the installed package."""
    (tmp_path / "wrong.py").write_text('import txstore\n\nreveal = txstore.Message("orders", "text")\n')
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT / '.mypy_cache' / 'user'}",
    ]
    found = {path.name for path in (ROOT / "examples").glob("*.py")} - WITHOUT_TYPES
    examples = sorted(f"examples/{name}" for name in found)
    assert len(examples) >= 6
    clean = subprocess.run([*command, *examples], cwd=ROOT, capture_output=True, text=True, check=False)
    assert clean.returncode == 0, clean.stdout
    wrong = subprocess.run([*command, "wrong.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "[arg-type]" in wrong.stdout, "the checker sees txstore's types at all"
