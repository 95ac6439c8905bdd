"""Agreement: asks on a terminal before anything that cannot be undone.

In:     a question.
Out:    whether to continue.
Always: asks only on a terminal, and on stderr, so that the question does not mix with output for a pipe. Without a
        terminal it does not ask, because a program means what it says.
Not here: what is done afterwards.
"""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

__all__ = ["Yes", "agreed", "is_asked"]

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def is_asked() -> bool:
    """Tells whether a person can be asked: stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str, yes: bool) -> bool:
    """Returns whether to continue: `yes` is set, nobody can be asked, or the answer is yes."""
    if yes or not is_asked():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
