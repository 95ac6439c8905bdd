"""Guards the test tiers: some command runs every test, and each folder has those that docs/internals/testing.md
names."""

from __future__ import annotations

import ast
import os
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
    """The tiers in `pytest.mark.<tier>` anywhere in the given syntax tree."""
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
    """Folder → tiers, of the table in docs/internals/testing.md."""
    rows = re.findall(
        r"^\| `(tests/[^`]*?)/?` \| ([a-z, ]+) \|", (ROOT / "docs" / "internals" / "testing.md").read_text(), re.M
    )
    return {folder: set(tiers.split(", ")) for folder, tiers in rows}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_folder_has_the_tiers_that_the_page_names(folder: Path) -> None:
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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        *arguments,
        str(folder),
    ]
    # Other installed plugins are not needed here and take long to load.
    settings = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_run_reports_what_it_skipped_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    for workers in ((), ("-p", "xdist.plugin", "-n", "1")):
        code, told = run(tmp_path, *workers)
        assert code == 0, told
        assert "tier: test\n" in told
        assert "skipped: 2 tests: no Java here" in told
        assert "not run: 1 test of the tier peer (--tier peer)" in told
        assert "1 passed, 2 skipped" in told
    assert "1 passed, 3 deselected" in run(tmp_path, "--tier", "peer")[1]
    assert "2 passed, 2 skipped" in run(tmp_path, "--tier", "all")[1]


def test_unknown_tier_and_test_of_two_tiers_are_refused(tmp_path: Path) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(SAMPLE)
    code, told = run(tmp_path, "--tier", "pear")
    assert code != 0
    assert "unknown tier 'pear', expected some of test, peer, matrix, torture, or all" in told
    sample.write_text(SAMPLE.replace("@pytest.mark.peer", "@pytest.mark.peer\n@pytest.mark.torture"))
    code, told = run(tmp_path)
    assert code != 0
    assert "names the tiers peer and torture, expected one" in told


NAMES_ITS_WORKER = """
import os, pathlib, pytest
@pytest.mark.parametrize("number", range(8))
def test_a(number):
    with pathlib.Path(__file__).with_suffix(".workers").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_tests_that_share_an_expensive_server_run_on_one_worker(tmp_path: Path) -> None:
    assert group_of("tests/unit/test_tidy.py::test_a") == "tests/unit/test_tidy.py"
    (tmp_path / "spark").mkdir()
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / "spark" / name).write_text(NAMES_ITS_WORKER)
    code, told = run(tmp_path, "-p", "xdist.plugin", "-n", "2", "--no-loadscope-reorder")
    assert code == 0, told
    workers = [line for path in (tmp_path / "spark").glob("*.workers") for line in path.read_text().split()]
    assert len(workers) == 16
    assert len(set(workers)) == 1
