"""Guards the ports of tests: a server that is killed restarts at its port, and no other test has taken it meanwhile."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports

ROOT = Path(__file__).resolve().parents[2]
TAKE = """
import sys
from pathlib import Path
from tests.ports import Part
print(list(Part(Path(sys.argv[1])).ports)[0], flush=True)
sys.stdin.read()
"""


def test_processes_share_no_port(tmp_path: Path) -> None:
    own = [ports.Part(tmp_path) for _ in range(2)]
    command = [sys.executable, "-c", TAKE, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        firsts = [int(other.stdout.readline()), *(part.ports[0] for part in own)]
        assert len(set(firsts)) == 3
        assert min(firsts) >= ports.FIRST
        assert max(part.ports[-1] for part in own) < ports.LAST
        other.kill()
    # The port of a process that has ended, or has let go, is given again.
    own[0].let_go()
    again = [ports.Part(tmp_path) for _ in range(2)]
    assert sorted(part.ports[0] for part in again) == sorted({*firsts} - {own[1].ports[0]})
    for part in (own[1], *again):
        part.let_go()


def test_port_is_free_and_different_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [ports.free_port() for _ in range(20)]
    assert len(set(given)) == 20
    # RocketMQ's port for slaves listens at all addresses, so it must be free at each.
    for host in ("127.0.0.1", ""):
        with socket.create_server((host, 0)) as listener:
            taken = int(listener.getsockname()[1])
            monkeypatch.setattr(ports, "_ports", lambda of=(taken, given[0]): iter(of))
            assert ports.free_port() == given[0]


def test_a_second_port_is_given_with_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    found = itertools.cycle(range(ports.FIRST, ports.FIRST + 10))
    monkeypatch.setattr(ports, "_ports", lambda: found)
    monkeypatch.setattr(ports, "_is_free", lambda port: port != ports.FIRST + 3)
    given = [ports.free_port(), ports.free_port(below=2), ports.free_port(), ports.free_port(below=2)]
    assert [port - ports.FIRST for port in given] == [0, 4, 5, 8]
