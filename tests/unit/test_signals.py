"""Guards the signals of programs: a command that waits for Ctrl-C leaves the program's own handlers as they were."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from txstore.signals import STOP, handled

NUMBERS = (*STOP, signal.SIGHUP)


@pytest.mark.parametrize("command", ["serve FILE", "console FILE", "forward sqlite:///FILE --to FILE"])
def test_command_returns_the_handlers(run: Run, tmp_path: Path, command: str) -> None:
    """Here it fails early. A test that runs later in this process is ended by Ctrl-C."""
    file = tmp_path / "file"
    file.write_bytes(b"no store")
    before = [signal.getsignal(number) for number in NUMBERS]
    code, _, _ = run(*command.replace("FILE", str(file)).split())
    assert code != 0
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_function_is_called_within_the_block() -> None:
    got: list[str] = []
    with handled({signal.SIGTERM: lambda: got.append("outer")}):
        with handled(dict.fromkeys(STOP, lambda: got.append("inner"))):
            for number in STOP:
                signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert got == ["inner", "inner", "outer"]


def test_another_thread_installs_nothing() -> None:
    """Python allows it in the main thread alone."""
    seen: list[object] = []

    def work() -> None:
        with handled(dict.fromkeys(STOP, lambda: os._exit(1))):
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
