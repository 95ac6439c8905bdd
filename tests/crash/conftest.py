"""Fixtures of the fault tests: one warm process that forks the children of a whole run; a file system that fills."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote(
        "txstore", "tests.crash.workload", "tests.crash.script", "tests.crash.look", "tests.crash.processes"
    ) as warm:
        yield warm


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of a few megabytes."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "txstore-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield directory
    gc.collect()  # A closed store keeps its maps until it is collected.
    subprocess.run(["umount", str(directory)], check=True)
