"""Guards the ports of tests: a server that is killed restarts at its port, and no other test has taken it meanwhile."""

from __future__ import annotations

import socket

import pytest

from tests import ports


def test_workers_of_one_run_share_no_port() -> None:
    for run in range(100):
        first, second = (set(ports.part(worker, run)) for worker in ("gw0", "gw1"))
        assert not first & second
        assert min(first | second) >= ports.FIRST
        assert max(first | second) < ports.LAST


def test_port_is_free_and_different_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [ports.free_port() for _ in range(20)]
    assert len(set(given)) == 20
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = int(listener.getsockname()[1])
        monkeypatch.setattr(ports, "_ports", iter([taken, given[0]]))
        assert ports.free_port() == given[0]
