"""Guards the wheel: it installs into an empty environment, and the tutorial runs there.

`make test` builds the wheel and names it in TXSTORE_WHEEL. The installed package must contain all that it needs: the
other tests run on the checkout, where no file can be missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.pages import follow

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    "TXSTORE_WHEEL" not in os.environ, reason="TXSTORE_WHEEL names no wheel of this tree (make build)"
)


@pytest.fixture
def empty_python(tmp_path: Path) -> Path:
    """The interpreter of an environment that holds nothing."""
    return new_environment(tmp_path / "venv")


def new_environment(folder: Path) -> Path:
    """Makes an environment without packages. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=300)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Installs packages by the pip of the tests, which need not be compiled for one run."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", *what]
    subprocess.run(command, check=True, timeout=600)


def test_core_needs_no_other_package(empty_python: Path, tmp_path: Path) -> None:
    wheel = Path(os.environ["TXSTORE_WHEEL"]).resolve()
    install(empty_python, "--no-index", str(wheel))
    (tmp_path / "readme").mkdir()
    for _ in range(2):
        assert follow(ROOT / "README.md", tmp_path / "readme", empty_python) == "b'order 17 is paid'\n"


def test_tutorial_runs_on_the_installed_wheel(empty_python: Path, tmp_path: Path) -> None:
    wheel = Path(os.environ["TXSTORE_WHEEL"]).resolve()
    (extras,) = re.findall(r"pip install 'txstore(\[\w+\])'", (ROOT / "docs" / "publish" / "tutorial.md").read_text())
    install(empty_python, f"{wheel}{extras}")
    (tmp_path / "tutorial").mkdir()
    assert follow(ROOT / "docs" / "publish" / "tutorial.md", tmp_path / "tutorial", empty_python) == ""


def test_wheel_has_every_file_of_the_package() -> None:
    """Also the pages of the console: its templates, its style, its icon."""
    package = ROOT / "python" / "txstore"
    files = {str(file.relative_to(package.parent)) for file in package.rglob("*") if file.is_file()}
    files = {name for name in files if "__pycache__" not in name and not name.endswith(".so")}
    with zipfile.ZipFile(os.environ["TXSTORE_WHEEL"]) as wheel:
        assert files - set(wheel.namelist()) == set()
    assert "txstore/console/static/console.css" in files
