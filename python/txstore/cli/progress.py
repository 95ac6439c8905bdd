"""Progress: a progress bar on stderr.

In:     the steps done.
Out:    one line, redrawn ten times a second and wiped at the end.
Always: prints nothing if stderr is not a terminal, so pipes and logs stay clean.
Not here: colours, several bars, stdout.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress"]

_REDRAW_SECONDS = 0.1
_BAR_CELLS = 28


class Progress:
    """`with Progress("reading", total) as bar: bar.to(done)`; a total of 0 counts without a bar."""

    def __init__(self, label: str, total: int = 0, stream: TextIO | None = None) -> None:
        self._label, self._total = label, total
        self._stream = sys.stderr if stream is None else stream
        self._watched = self._stream.isatty()
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Clears the line, so that something else can be printed; the next `to` draws again."""
        if self._watched:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def to(self, done: int) -> None:
        """Sets how much is done."""
        now = time.monotonic()
        if not self._watched or now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at = now
        self._stream.write(f"\r\x1b[K{self._label} {self._text(done)}")
        self._stream.flush()

    def _text(self, done: int) -> str:
        if self._total <= 0:
            return f"{done:,}"
        part = min(1.0, done / self._total)
        filled = round(part * _BAR_CELLS)
        return f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {part:4.0%}"
