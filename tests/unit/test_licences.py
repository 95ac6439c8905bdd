"""Guards the crates that are compiled: their licences, and both lock files.

Each crate in a wheel may be part of software under the Apache License 2.0. The wheel also names them, in its SBOM
(`*.dist-info/sboms/`), which `make wheels` looks for.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("ISC", "MIT", "Unicode-3.0", "Unlicense", "Zlib"),
}
"""Licences without conditions on the software that contains the crate, by their SPDX names."""


def is_accepted(expression: str) -> bool:
    """Whether an SPDX expression leaves a choice of accepted licences. `/` is an old form of OR."""
    text = re.sub(r"\s*/\s*", " OR ", expression.strip())
    while match := re.search(r"\(([^()]*)\)", text):
        text = text.replace(match[0], "MIT" if is_accepted(match[1]) else "refused")
    return any(all(name.strip() in ACCEPTED for name in one.split(" AND ")) for one in text.split(" OR "))


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT/GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND ISC", True),
        ("(LGPL-3.0-only OR GPL-3.0-only) AND ISC", False),
        ("", False),
    ],
)
def test_an_expression_is_understood(expression: str, accepted: bool) -> None:
    assert is_accepted(expression) == accepted


def metadata(directory: Path) -> subprocess.CompletedProcess[str]:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--all-features"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not here")
def test_the_lock_file_of_fuzzing_has_what_the_engine_needs() -> None:
    done = metadata(ROOT / "fuzz")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not here")
def test_crates_have_accepted_licences() -> None:
    done = metadata(ROOT)
    licences = {package["name"]: package["license"] or "" for package in json.loads(done.stdout)["packages"]}
    assert "pyo3" in licences
    assert [name for name, licence in licences.items() if not is_accepted(licence)] == []
