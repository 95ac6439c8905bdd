"""A pseudo-terminal for tests: runs a program as on a terminal and shows the screen as a user would see it.

In:     a command, keys.
Out:    the screen's lines, and the style of each cell.
Always: the program has a controlling terminal of its own, so Ctrl-C is sent like any other key; the program ends with
        the test.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyte

COLUMNS, LINES = 110, 32
CTRL_C = b"\x03"
# The child takes the terminal as its own before it becomes the program.
_BEGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class Terminal:
    """`with Terminal([...]) as terminal: terminal.wait_for("text")`."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        columns: int = COLUMNS,
        lines: int = LINES,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=settings | {"TERM": "xterm-256color"} | dict(env or {}),
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """The screen, line by line, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_until(self, holds: Callable[[str], bool], seconds: float = 30.0) -> str:
        """Reads until the screen meets the condition and returns the screen."""
        until = time.monotonic() + seconds
        while not holds(self.text):
            assert time.monotonic() < until, f"the screen never met the condition:\n{self.text}"
            self._read(0.1)
        return self.text

    def wait_for(self, *texts: str, seconds: float = 30.0) -> str:
        return self.wait_until(lambda screen: all(text in screen for text in texts), seconds)

    def end(self, seconds: float = 30.0) -> int:
        """Reads the rest of the output until the program ends and returns its exit code."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < until, f"the program does not end:\n{self.text}"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self._process.returncode

    def _read(self, timeout: float) -> bool:
        poll = select.poll()  # select() refuses descriptors above 1,023.
        poll.register(self._master, select.POLLIN)
        if not poll.poll(round(timeout * 1000)):
            return False
        try:
            found = os.read(self._master, 65536)
        except OSError:
            return False  # The program has ended and closed its side.
        self._stream.feed(found)
        return bool(found)
