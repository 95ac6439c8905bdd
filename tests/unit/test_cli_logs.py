"""Guards `txstore serve --log json`: every line can be parsed, also when the process fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.frames import Wire
from tests.remoting_requests import HEARTBEAT, heartbeat
from tests.unit.conftest import SMALL

pytest.importorskip("typer")

_SERVE = ["--listen", "127.0.0.1:0", "--name-server", "none", "--log", "json"]
_PLAIN = "import sys; from txstore.cli.main import main; sys.exit(main())"
# A server in which everything that is logged goes wrong, in the end the command itself.
_WRONG = """
import logging, sys, threading, warnings
import txstore
from txstore.cli.main import main

class Ungrateful:
    def __del__(self):
        raise ValueError("in a finalizer")

def fails():
    raise KeyError("in a thread")

real = txstore.serve

def serve(*arguments, **options):
    with real(*arguments, **options):
        warnings.warn("a warning\\nof two lines", stacklevel=1)
        logging.getLogger("mine").warning("%d of %s", "wrong arguments")
        logging.getLogger("mine").error("a record", extra={"path": sys, "number": float("nan"), "line": "\\u2028"})
        thread = threading.Thread(target=fails, name="mine")
        thread.start()
        thread.join()
        Ungrateful()
        raise RuntimeError("the command\\nfails")

txstore.serve = serve
sys.exit(main())
"""


def run(code: str, store: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and stderr line by line."""
    command = [sys.executable, "-c", code, "serve", str(store), *_SERVE, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines), lines
    return ended.returncode, lines


def test_every_line_is_an_object_whatever_fails(tmp_path: Path) -> None:
    code, lines = run(_WRONG, tmp_path / "store")
    assert code == 1
    told = {line["message"].partition("\n")[0]: line for line in lines}
    warning = next(line for line in lines if line["logger"] == "py.warnings")
    assert "a warning\nof two lines" in warning["message"]
    assert "%d of %s ('wrong arguments',)" in told
    assert (told["a record"]["number"], told["a record"]["line"]) == ("nan", "\u2028")
    assert told["a record"]["path"].startswith("<module 'sys'")
    ended = told["a thread ended: 'in a thread'"]
    assert (ended["thread_name"], "fails" in ended["exception"]) == ("mine", True)
    assert any(line["level"] == "error" and "in a finalizer" in line["message"] for line in lines)
    last = lines[-1]
    assert (last["level"], last["message"]) == ("critical", "the process exits: RuntimeError: the command\nfails")
    assert "Traceback" in last["exception"]


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--nonsense",), "--nonsense"), (("--log=json", "--tls-cert"), "--tls-cert"), (("twice",), "twice")],
)
def test_usage_error_is_an_object(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    code, (line,) = run(_PLAIN, tmp_path / "store", *options)
    assert (code, line["level"], line["error"]) == (2, "critical", "UsageError")
    assert told in line["message"]
    assert not (tmp_path / "store").exists()


def test_panics_of_the_engine_are_logged_as_objects(tmp_path: Path) -> None:
    """The output of that hook is tested in rust/src/base/panics.rs: no call here can make the engine panic."""
    code, lines = run(
        "import sys, txstore.cli.logs as logs\n"
        "logs.log_panics_as_json = lambda: logs._log.info('a hook is set')\n" + _PLAIN,
        tmp_path / "store",
        "--set",
        "flush_disk_typ=SYNC_FLUSH",
    )
    assert (code, lines[0]["message"]) == (2, "a hook is set")


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        ((), 3, "StoreLockedError"),
        (("--set", "flush_disk_typ=SYNC_FLUSH"), 2, "InvalidOptionError"),
    ],
)
def test_failure_to_start_is_an_object(tmp_path: Path, options: tuple[str, ...], code: int, error: str) -> None:
    with txstore.open(tmp_path / "store", **SMALL):
        found, lines = run(_PLAIN, tmp_path / "store", *options)
    assert (found, lines[-1]["level"], lines[-1]["error"]) == (code, "critical", error)


def text_log(path: Path, talk: Callable[[str], None]) -> list[str]:
    """The lines that a server logs as text while clients talk to it."""
    command = [sys.executable, "-c", _PLAIN, "serve", str(path), *_SERVE[:4]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            talk(process.stdout.readline().split()[-1])
            process.terminate()
            return process.communicate(timeout=60)[1].splitlines()
        finally:
            process.kill()


def test_client_cannot_forge_a_line_of_the_log(tmp_path: Path) -> None:
    """Its id and its topics are logged, but they begin no line, and bring no control characters to a terminal."""
    forged = "2026-01-01 00:00:00,000 CRITICAL the disk is on fire"
    names = [f"c\n{forged}", f"c\r\x1b[2J{forged}", f"c\u2028{forged}", f"c\x85{forged}"]

    def talk(address: str) -> None:
        with Wire(address) as wire:
            for name in names:
                assert wire.call(HEARTBEAT, {}, heartbeat(name, "g")).code == 0
            kind = {"topic": "t\n" + forged, "subString": "*", "expressionType": forged}
            consumer = {"groupName": "h", "subscriptionDataSet": [kind]}
            wire.call(HEARTBEAT, {}, json.dumps({"clientID": "d", "consumerDataSet": [consumer]}).encode())

    lines = text_log(tmp_path / "store", talk)
    # Each joins. Whether the server still logs that they left, when it was told to end, is open.
    assert sum("on fire" in line for line in lines) >= len(names)
    assert [line for line in lines if line.startswith("2026-01-01")] == []
    assert [line for line in lines if not line.isprintable()] == []


def test_clients_cannot_fill_the_log(tmp_path: Path) -> None:
    """Many clients that connect and leave, and many closed connections, are a few lines; the counters include all."""

    def talk(address: str) -> None:
        for _ in range(200):
            with Wire(address) as broken:
                broken.socket.sendall(b"\xff" * 100)
                assert broken.closed()
        with Wire(address) as wire:
            for number in range(200):
                assert wire.call(HEARTBEAT, {}, heartbeat(f"c{number}" + "x" * 900, "g")).code == 0

    lines = text_log(tmp_path / "store", talk)
    kinds = Counter(line.split()[3] for line in lines if line[:1].isdigit())
    assert 1 <= kinds["consumer"] <= 100
    assert 1 <= kinds["a"] <= 100


def test_line_is_limited_in_length(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import logging; from txstore.cli.logs import log_to_stderr; log_to_stderr({!r}); "
    code += "logging.getLogger('txstore.remoting').warning('%s', 'y' * 100_000, extra={{'client': 'z' * 100_000}})"
    for form in ("text", "json"):
        subprocess.run([sys.executable, "-c", code.format(form)], check=True, timeout=60)
        line = capfd.readouterr().err
        assert 4_000 < len(line) < 10_000
        assert "(100000 characters)" in line
