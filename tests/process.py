"""What a process has: memory, open files and threads; and stopping one.

In:  another process's id; or a folder, or the name of threads, of this process.
Out: the other's anonymous bytes, now, at most and over time while it is watched, and the most files and sockets that it
     had open. Maps of files do not count as memory, because the system may take them back. Of this process, only what
     was asked for: what earlier tests left, and when it goes, must not be seen.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.waiting import eventually

__all__ = ["Watch", "anonymous_bytes", "open_files", "open_files_in", "paused", "stop", "threads_named"]

T = TypeVar("T")

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


def open_files_in(folder: Path) -> list[str]:
    """Returns the paths of the files below a folder that this process has open."""
    links = [_or_none(file.readlink) for file in Path("/proc/self/fd").iterdir()]
    return sorted(str(link) for link in links if link is not None and link.is_relative_to(folder))


def threads_named(name: str) -> set[int]:
    """Returns the ids of this process's threads with a name of at most 15 bytes."""
    tasks = list(Path("/proc/self/task").iterdir())
    names = [_or_none((task / "comm").read_text) for task in tasks]
    return {int(task.name) for task, found in zip(tasks, names, strict=True) if found and found.strip() == name}


def stop(pid: int) -> None:
    """Stops a process with SIGSTOP, and returns when none of its threads runs any more.

    On busy cores its threads run on for some milliseconds after the signal, and could still answer a request.
    """
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _states(pid) <= {"T", "Z"})


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stops a process until the end of the block."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    """The letters that proc(5) has for the states of a process's threads: T is stopped by a signal, Z has ended."""
    stats = [_or_none((task / "stat").read_text) for task in Path(f"/proc/{pid}/task").iterdir()]
    return {stat.rpartition(")")[2].split()[0] for stat in stats if stat is not None}


def _or_none(read: Callable[[], T]) -> T | None:
    """Nothing for a file that was closed, or a thread that has ended, since its folder was listed."""
    try:
        return read()
    except OSError:
        return None


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
