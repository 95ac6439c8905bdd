"""The story: every test is run by some command. docs/testing.md says which tiers a folder has, and the tests agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TIERS, group_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FOLDERS = sorted({path.parent for path in TESTS.rglob("test_*.py")})


def named_tiers(tree: ast.AST) -> set[str]:
    """The tiers in `pytest.mark.<tier>` anywhere below."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & {*TIERS} - {"test"}


def tiers_of(module: ast.Module) -> set[str]:
    """The tiers of a module's tests."""
    for statement in module.body:
        is_mark = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        if is_mark and (named := named_tiers(statement)):
            return named
    tests = [
        statement
        for statement in module.body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test_")
    ]
    decorated = [{tier for decorator in test.decorator_list for tier in named_tiers(decorator)} for test in tests]
    unmarked = {"test"} if set() in decorated or not tests else set()
    return unmarked | named_tiers(module)


def documented() -> dict[str, set[str]]:
    """Folder → tiers, of the table in docs/testing.md."""
    rows = re.findall(r"^\| `(tests/[^`]*?)/?` \| ([a-z, ]+) \|", (ROOT / "docs" / "testing.md").read_text(), re.M)
    return {folder: set(tiers.split(", ")) for folder, tiers in rows}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_folder_has_the_tiers_that_its_page_says(folder: Path) -> None:
    # Fixtures of a conftest.py may have parameters of another tier.
    modules = [ast.parse(path.read_text()) for path in sorted(folder.glob("test_*.py"))]
    found = set[str]().union(*map(tiers_of, modules))
    if (fixtures := folder / "conftest.py").exists():
        found |= named_tiers(ast.parse(fixtures.read_text()))
    assert documented().get(folder.relative_to(ROOT).as_posix()) == found


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("def test_a(): ...", {"test"}),
        ("pytestmark = pytest.mark.peer\ndef test_a(): ...", {"peer"}),
        ("@pytest.mark.matrix\ndef test_a(): ...", {"matrix"}),
        ("@pytest.mark.torture\ndef test_a(): ...\ndef test_b(): ...", {"test", "torture"}),
        ("A = pytest.param(1, marks=pytest.mark.peer)\ndef test_a(x): ...", {"test", "peer"}),
    ],
)
def test_the_tiers_of_a_module(text: str, tiers: set[str]) -> None:
    assert tiers_of(ast.parse(text)) == tiers


SAMPLE = """
import pytest
def test_plain(): ...
@pytest.mark.peer
def test_of_peers(): ...
@pytest.mark.skip(reason="no Java here")
def test_skipped(): ...
@pytest.mark.skip(reason="no Java here")
def test_also_skipped(): ...
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """A run of pytest over a sample with this project's conftest.py."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"    {name}\n" for name in TIERS))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_run_says_what_it_skipped_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    code, told = run(tmp_path)
    assert code == 0, told
    assert "tier: test\n" in told
    assert "skipped: 2 tests: no Java here" in told
    assert "not run: 1 test of the tier peer (--tier peer)" in told
    assert "1 passed, 2 skipped, 1 deselected" in told
    assert "1 passed, 3 deselected" in run(tmp_path, "--tier", "peer")[1]
    assert "2 passed, 2 skipped" in run(tmp_path, "--tier", "all")[1]


def test_an_unknown_tier_and_a_test_of_two_are_refused(tmp_path: Path) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(SAMPLE)
    code, told = run(tmp_path, "--tier", "pear")
    assert code != 0
    assert "unknown tier 'pear', expected some of test, peer, matrix, torture, or all" in told
    sample.write_text(SAMPLE.replace("@pytest.mark.peer", "@pytest.mark.peer\n@pytest.mark.torture"))
    code, told = run(tmp_path)
    assert code != 0
    assert "names the tiers peer and torture, expected one" in told


def test_tests_that_share_an_expensive_server_are_one_group() -> None:
    assert group_of(TESTS / "spark" / "test_batch.py") == group_of(TESTS / "spark" / "test_jobs.py") == "spark"
    assert group_of(TESTS / "unit" / "test_tidy.py") == "unit/test_tidy.py"
