"""The story: the README's example is what a stranger copies first, so it must run as it stands there.

It runs in an empty directory, twice: the second time it finds its database and its store.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "b'order 17 is paid'\n", "")


def test_the_page_on_consumers_runs_as_it_stands(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/consumers.md").read_text(), flags=re.DOTALL)
    assert len(examples) == 4
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(examples)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "%RETRY%shipping 0 0\norders 0 0\n" in run.stdout


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/README.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_makefile_tells_what_it_can() -> None:
    run = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    told = set(re.findall(r"^  make (\w+)", run.stdout, flags=re.MULTILINE))
    assert told >= {"demo", "test", "bench", "lint", "build", "clean"}
