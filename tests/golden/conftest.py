"""Fixtures of the golden tests: the stores, unpacked below the test run's own directory."""

from __future__ import annotations

import pytest

from tests.golden.unpack import Unpacked


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))
