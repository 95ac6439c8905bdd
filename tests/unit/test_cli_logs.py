"""The story: whoever collects `txstore serve --log json` parses every line, also those of the worst moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.unit.conftest import SMALL

pytest.importorskip("typer")

_SERVE = ["--listen", "127.0.0.1:0", "--name-server", "none", "--log", "json"]
_PLAIN = "import sys; from txstore.cli.main import main; sys.exit(main())"
# A server in which all that can be told goes wrong, in the end the command itself.
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
    assert (last["level"], last["message"]) == ("critical", "the process ends: RuntimeError: the command\nfails")
    assert "Traceback" in last["exception"]


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--nonsense",), "--nonsense"), (("--log=json", "--tls-cert"), "--tls-cert"), (("twice",), "twice")],
)
def test_a_usage_error_is_an_object(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    code, (line,) = run(_PLAIN, tmp_path / "store", *options)
    assert (code, line["level"], line["error"]) == (2, "critical", "UsageError")
    assert told in line["message"]
    assert not (tmp_path / "store").exists()


def test_the_engine_s_panics_are_to_be_told_so_too(tmp_path: Path) -> None:
    """What that hook writes is tested where it is (rust/src/panics.rs): nothing here can make the engine panic."""
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
def test_what_keeps_it_from_serving_is_an_object(
    tmp_path: Path, options: tuple[str, ...], code: int, error: str
) -> None:
    with txstore.open(tmp_path / "store", **SMALL):
        found, lines = run(_PLAIN, tmp_path / "store", *options)
    assert (found, lines[-1]["level"], lines[-1]["error"]) == (code, "critical", error)
