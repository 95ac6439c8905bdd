"""Drives a program in another language by JSON lines: a command a line to its stdin, a reply a line from its stdout.

In:     a command line; commands as calls: {"id", "command", and its arguments}.
Out:    results; {"id", "error", "code"} raises ProgramError.
Always: commands from several threads run concurrently. When the program ends, waiting calls raise ProgramGoneError.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Program", "ProgramError", "ProgramGoneError"]

CALL_TIMEOUT_S = 180
_EXIT_TIMEOUT_S = 30


class ProgramError(Exception):
    """The program reports an error. `code`: the one that its server answered, if any."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class ProgramGoneError(ProgramError):
    """The program has ended."""


class Program:
    """A running program."""

    def __init__(self, command: Sequence[str], home: Path, environment: Mapping[str, str]) -> None:
        """`home`: its working directory, where also its stderr is written."""
        self._next = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._home = home
        with (home / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=dict(environment),
                cwd=home,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begin(self, command: str, **arguments: Any) -> Future[Any]:
        """Sends a command; its result comes later."""
        answer = Future[Any]()
        with self._lock:
            number = next(self._next)
            self._waiting[number] = answer
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps({"id": number, "command": command} | arguments) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                if self._waiting.pop(number, None) is not None:
                    answer.set_exception(self._gone())
        return answer

    def call(self, command: str, **arguments: Any) -> Any:
        """Sends a command and waits for its result. Raises ProgramError, TimeoutError."""
        return self.begin(command, **arguments).result(CALL_TIMEOUT_S)

    def _gone(self) -> ProgramGoneError:
        told = (self._home / "stderr").read_text(errors="replace")[-2_000:]
        return ProgramGoneError(f"the program has ended; the end of its stderr: {told}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                answer = self._waiting.pop(reply["id"])
            if "error" in reply:
                answer.set_exception(ProgramError(reply["error"], reply.get("code")))
            else:
                answer.set_result(reply["result"])
        with self._lock:
            gone, self._waiting = self._waiting, {}
        for answer in gone.values():
            answer.set_exception(self._gone())

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.wait(_EXIT_TIMEOUT_S)
        self._reader.join()
        self._process.stdout.close()
        if not self._process.stdin.closed:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_EXIT_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
        self._close()
