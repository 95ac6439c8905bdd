"""Progress: a progress bar on stderr.

In:     the steps done.
Out:    one line, redrawn ten times a second and wiped at the end.
Always: prints nothing if stderr is not a terminal, so pipes and logs stay clean. rich is loaded only to draw.
Not here: several bars, stdout.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from txstore.cli.output import is_coloured

if TYPE_CHECKING:
    from rich import progress

__all__ = ["Progress"]

_BAR_CELLS = 28


class Progress:
    """`with Progress("reading", total) as bar: bar.to(done)`; a total of 0 counts without a bar."""

    def __init__(self, label: str, total: int = 0, stream: TextIO | None = None) -> None:
        self._label, self._total = label, total
        self._stream = sys.stderr if stream is None else stream
        self._bar: progress.Progress | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._bar = _bar(self._stream, counts=self._total <= 0)
            self._bar.add_task(self._label, total=self._total or None)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Clears the line, so that something else can be printed; the next `to` draws again."""
        if self._bar is not None:
            self._bar.stop()

    def to(self, done: int) -> None:
        """Sets how much is done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            self._bar.start()


def _bar(stream: TextIO, *, counts: bool) -> progress.Progress:
    """Returns a bar, or a counter if `counts`, that is wiped when it stops."""
    from rich import progress
    from rich.console import Console

    columns = (
        [progress.TextColumn("{task.completed:,}")]
        if counts
        else [
            progress.BarColumn(_BAR_CELLS),
            progress.TaskProgressColumn(),
        ]
    )
    console = Console(file=stream, no_color=not is_coloured(stream))
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        *columns,
        console=console,
        transient=True,
        # What a command prints goes to stdout, not through the bar's console.
        redirect_stdout=False,
        redirect_stderr=False,
    )
