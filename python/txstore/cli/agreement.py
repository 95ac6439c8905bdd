"""Agreement: what cannot be undone is asked about first, where somebody sits.

In: a question. Out: whether to go on. Always: asked on a terminal only, and on stderr, so that what a pipe gets is the
answer's alone; without a terminal nobody is asked, as a program means what it says. Not here: what is done then.
"""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

__all__ = ["Yes", "agreed", "is_asked"]

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def is_asked() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str, yes: bool) -> bool:
    """Whether to go on: `yes`, nobody to ask, or who was asked says so."""
    if yes or not is_asked():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
