"""Memory and open files of another process.

In:  a process's id.
Out: its anonymous bytes, now, at most and over time while it is watched, and the most files and sockets that it had
     open. Maps of files do not count as memory, because the system may take them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Watch", "anonymous_bytes", "open_files"]

_EVERY_SECONDS = 0.05


def anonymous_bytes(pid: int) -> int:
    """Returns 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


def open_files(pid: int) -> int:
    """Counts open files and sockets. Returns 0 for a process that has ended."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


class Watch:
    """Keeps the peaks of a process's memory and open files, inside `with`. The process may be replaced meanwhile."""

    def __init__(self, pid: Callable[[], int]) -> None:
        self.peak_bytes = 0
        self.samples: list[int] = []
        """Anonymous bytes, one sample every 50 ms while the process lives."""
        self.peak_files = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            pid = self._pid()
            if now := anonymous_bytes(pid):
                self.samples.append(now)
            self.peak_bytes = max(self.peak_bytes, now)
            self.peak_files = max(self.peak_files, open_files(pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
