"""RocketMQ's Go client in a process of its own, driven by JSON lines.

In:     commands as calls.
Out:    what the client was told and received.
Always: built from `go/` once for these very sources, offline if the modules are there. Raises NoGoError if Go or the
        modules are not available.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import Future
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).with_name("go")
BUILT = ROOT / "target" / "go"
VERSION = (1, 21)
BUILD_TIMEOUT_S = 900
CALL_TIMEOUT_S = 180


class NoGoError(Exception):
    """Go is not installed, is too old, or cannot get the client's modules."""


def build() -> Path:
    """The program. Raises NoGoError."""
    go = shutil.which("go")
    if go is None:
        raise NoGoError("the Go client's tests need Go 1.21 or newer (go)")
    told = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, cwd=SOURCES).stdout
    found = re.match(r"go(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < VERSION:
        raise NoGoError(f"the Go client's tests need Go 1.21 or newer, this is {told.strip()}")
    digest = sha256(told.encode() + b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    program = BUILT / f"client-{digest}"
    if not program.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        # Built under another name and renamed, so that it is complete or absent.
        unfinished = program.with_suffix(f".{os.getpid()}")
        command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(unfinished), "."]
        try:
            subprocess.run(command, cwd=SOURCES, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.CalledProcessError as problem:
            raise NoGoError(f"go build failed: {problem.stderr[-2_000:]}") from problem
        except subprocess.TimeoutExpired as problem:
            raise NoGoError(f"go build took longer than {BUILD_TIMEOUT_S} s") from problem
        unfinished.rename(program)
    return program


class GoClient:
    """One process. Commands from several threads run concurrently."""

    def __init__(self, program: Path, home: Path) -> None:
        """`home`: the directory in which a broadcasting consumer keeps its offsets."""
        self._next = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        with (home / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                [str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | {"HOME": str(home)},
            )
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self, command: str, **arguments: Any) -> Future[Any]:
        number, answer = next(self._next), Future[Any]()
        self._waiting[number] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "command": command} | arguments) + "\n")
        self._process.stdin.flush()
        return answer

    def call(self, command: str, **arguments: Any) -> Any:
        return self.begin(command, **arguments).result(CALL_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            answer = self._waiting.pop(reply["id"])
            if "error" in reply:
                answer.set_exception(RuntimeError(reply["error"]))
            else:
                answer.set_result(reply["result"])
        for answer in self._waiting.values():
            answer.set_exception(RuntimeError("the Go process has ended"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
