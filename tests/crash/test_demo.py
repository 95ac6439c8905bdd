"""Guards the demonstration in a small form: its output is correct on every change.

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
def test_demo_shows_one_message_for_each_paid_order(seed: int) -> None:
    command = [sys.executable, "-m", "examples.demo", "--orders", "120", "--kills", "2", "--seed", str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""  # No progress bars without a terminal, no warnings.
    assert f"seed {seed}" in run.stdout
    counts = dict(re.findall(r"^(\S.*?) {2,}([\d,]+)$", run.stdout, flags=re.MULTILINE))
    assert counts["orders paid in the database"] == counts["messages a consumer got"] != "0"
    for wrong in ("orders still open", "paid, but without a message", "with a message, but not paid"):
        assert counts[wrong] == "0"
    assert counts["with more than one message"] == "0"
    assert run.stdout.count("<- committed twice") == 2
