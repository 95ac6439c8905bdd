"""Fixtures of the fault tests: one warm process that forks the children of a whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote(
        "txstore", "tests.crash.workload", "tests.crash.script", "tests.crash.look", "tests.crash.beside"
    ) as warm:
        yield warm
