"""The story: the demonstration is the first thing a stranger runs, so it must hold, in a small form, on every change.

A service is killed while it pays orders; afterwards exactly the paid orders have exactly one message each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kill
@pytest.mark.parametrize("seed", [1, 2])
def test_the_proof_holds(seed: int) -> None:
    command = [sys.executable, "-m", "examples.demo", "--orders", "120", "--kills", "2", "--seed", str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""  # No progress bars where nobody watches, no warnings.
    assert f"seed {seed}" in run.stdout
    counts = dict(re.findall(r"^(\S.*?) {2,}([\d,]+)$", run.stdout, flags=re.MULTILINE))
    assert counts["orders paid in the database"] == counts["messages a consumer got"] != "0"
    for wrong in ("orders still open", "paid, but without a message", "with a message, but not paid"):
        assert counts[wrong] == "0"
    assert counts["with more than one message"] == "0"
    assert run.stdout.count("<- committed twice") == 2
