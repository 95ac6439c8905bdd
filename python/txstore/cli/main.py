"""The entry point of the command line.

In:     arguments.
Out:    an exit code (`exit_codes`).
Always: an error is shown as `txstore: error: …` with its hints, never as a traceback. Without the extra `cli`, one line
        says what to install.
Not here: the commands. Each noun has a module, and `commands` lists them all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from txstore.cli.exit_codes import EXIT_UNAVAILABLE

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        from txstore.cli import commands
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"txstore: {error.name} is missing: pip install 'txstore[cli]'", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return commands.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
