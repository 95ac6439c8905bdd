"""A warm process without a store, which forks a child for each piece of work and may kill it at a given moment.

In:     orders: which function, its arguments, when to kill.
Out:    what the child reported, in order, and how it ended.
Always: a child begins without a store or a thread; its reports arrive before the report of its end; a child that does
        not end in time is reported as hung.

Starting Python takes longer than most lives here; a fork of a process that has imported everything takes a millisecond.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

ROOT = Path(__file__).resolve().parents[2]
WORDS_BYTES_MAX = 4096  # A pipe takes up to this many bytes completely or not at all.
LIMIT_SECONDS = 60.0


class Voice:
    """How a child reports: each `say` is one write, so that a kill leaves it complete or absent."""

    def __init__(self, began: int) -> None:
        self._began = began

    def say(self, *words: object) -> None:
        line = json.dumps(words).encode() + b"\n"
        assert len(line) <= WORDS_BYTES_MAX, line[:200]
        os.write(1, line)

    def ready(self) -> None:
        """The time to the kill counts from here."""
        os.write(self._began, b"!")


Work = Callable[[Voice, dict[str, Any]], None]


@dataclass
class Life:
    """How a child ended, and what it reported."""

    words: list[list[Any]] = field(default_factory=list)
    status: int = 0
    """The exit code, or the signal's number below zero."""
    hung: bool = False

    def __str__(self) -> str:
        """Its end, for messages: what went wrong is among the last reports."""
        last = "\n".join(str(part) for words in self.words[-3:] for part in words)
        return (
            f"ended with {self.status}{', hung' if self.hung else ''}, said {len(self.words)} times, at last:\n{last}"
        )


class Zygote:
    """The parent's side. `run` orders one life after another."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-m", "tests.crash.zygote", *modules]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(LIMIT_SECONDS)

    def begin(
        self,
        work: str,
        arguments: dict[str, Any],
        *,
        kill_after: float | None = None,
        from_ready: bool = True,
        limit: float = LIMIT_SECONDS,
    ) -> int:
        """Starts `module:function` in a child; returns its process id. `finish` must follow.

        `kill_after`: seconds from the child's `ready` (or from its start) to SIGKILL; None: it ends by itself.
        """
        order = {"work": work, "arguments": arguments, "kill_after": kill_after, "from_ready": from_ready}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "limit": limit}) + "\n")
        self._process.stdin.flush()
        (word, pid) = self.hear()
        assert word == "born"
        return int(pid)

    def hear(self) -> list[Any]:
        """The next report, also `["over", status, hung]`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote is gone"
        words: list[Any] = json.loads(line)
        return words

    def finish(self) -> Life:
        """Reads the child's reports until its end."""
        life = Life()
        while (words := self.hear())[0] != "over":
            life.words.append(words)
        life.status, life.hung = words[1], words[2]
        return life

    def run(self, work: str, arguments: dict[str, Any], **when: Any) -> Life:
        """Runs a whole life."""
        self.begin(work, arguments, **when)
        return self.finish()


def _live(order: dict[str, Any], began: int) -> NoReturn:
    """The child."""
    status = 1
    try:
        module, _, function = order["work"].partition(":")
        work: Work = getattr(importlib.import_module(module), function)
        work(Voice(began), order["arguments"])
        status = 0
    except BaseException:
        os.write(1, json.dumps(["wrong", traceback.format_exc()[-1500:]]).encode() + b"\n")
    finally:
        os._exit(status)


def _watch(pid: int, order: dict[str, Any], began: int) -> tuple[int, bool]:
    """Kills the child at the given moment, or waits for its end; returns how it ended, and whether it hung."""
    hung = False
    if order["kill_after"] is not None:
        if order["from_ready"]:
            ready, _, _ = select.select([began], [], [], order["limit"])
            hung = not ready
        time.sleep(0 if hung else order["kill_after"])
        os.kill(pid, signal.SIGABRT if hung else signal.SIGKILL)
    else:
        until = time.monotonic() + order["limit"]
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), False
            time.sleep(0.001)
        hung = True
        os.kill(pid, signal.SIGABRT)  # The fault handler writes down where every thread is.
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), hung


def serve(modules: list[str]) -> None:
    """The zygote's side: orders from stdin, one child at a time."""
    faulthandler.enable()
    for module in modules:
        importlib.import_module(module)
    while line := sys.stdin.readline():
        order = json.loads(line)
        began, begin = os.pipe()
        # The child may report only after its start was reported.
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(go_read, 1)
            _live(order, begin)
        os.close(begin)
        os.write(1, json.dumps(["born", pid]).encode() + b"\n")
        os.write(go_write, b"!")
        status, hung = _watch(pid, order, began)
        for handle in (began, go_read, go_write):
            os.close(handle)
        os.write(1, json.dumps(["over", status, hung]).encode() + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1:])
