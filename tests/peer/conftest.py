"""Fixtures of the peer tests: a Java process that holds a real RocketMQ, one for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.peer.agreement")

from tests.peer import rocketmq as peer  # noqa: E402


@pytest.fixture(scope="session")
def rocketmq_home(tmp_path_factory: pytest.TempPathFactory) -> peer.Home:
    """The folder in which peer processes start; skips if Java or Maven's packages are not available."""
    try:
        return peer.Home.build(tmp_path_factory.mktemp("rocketmq"))
    except peer.NoPeerError as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def rocketmq(rocketmq_home: peer.Home) -> Iterator[peer.Peer]:
    """One long-lived process, for tests that need not kill it."""
    with rocketmq_home.start() as process:
        yield process
