"""Traces a child process with strace, so that the N-th system call of a kind fails in the real process.

In:     a child that waits for SIGUSR1, a fault.
Out:    whether the call was reached.
Always: only calls that the engine makes for a store's files can fail.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ATTACHED_SECONDS = 30.0


@dataclass(frozen=True)
class Fault:
    """Which call fails, and how; `for_good`: each later one fails, too."""

    call: str
    number: int
    error: str
    for_good: bool

    def __str__(self) -> str:
        return f"{self.call} {self.number}{' and later' if self.for_good else ''}: {self.error}"

    @property
    def injection(self) -> str:
        what = "retval=0" if self.error == "nothing written" else f"error={self.error}"
        return f"inject={self.call}:{what}:when={self.number}{'+' if self.for_good else ''}"


@cache
def why_not() -> str | None:
    """The reason why tracing is not possible here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[:200]}"


class Tracer:
    """strace, attached to a process. `release` lets the process continue; `calls` and `met` read the trace."""

    def __init__(self, pid: int, log: Path, arguments: list[str]) -> None:
        self._pid, self._log = pid, log
        command = ["strace", "-f", "-y", "-p", str(pid), "-o", str(log), *arguments]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        told = self._process.stderr.readline()
        assert "attached" in told, told

    def release(self) -> None:
        os.kill(self._pid, signal.SIGUSR1)

    def wait(self) -> None:
        """Waits until the traced process has ended."""
        self._process.communicate(timeout=_ATTACHED_SECONDS)

    def stop(self) -> None:
        """Detaches from the process; its calls succeed from then on."""
        self._process.terminate()
        self._process.communicate(timeout=_ATTACHED_SECONDS)

    def calls(self) -> Counter[str]:
        """How often the process's first thread made each call."""
        found = re.findall(rf"^{self._pid} +(\w+)\(", self._log.read_text(), flags=re.MULTILINE)
        return Counter(found)

    def met(self) -> bool:
        """Whether a call failed as requested."""
        return "(INJECTED)" in self._log.read_text()


def files_of(store: Path) -> list[str]:
    """`-P` for each file: memory maps without a file must not fail."""
    return [word for file in sorted(store.rglob("*")) if file.is_file() for word in ("-P", str(file))]
