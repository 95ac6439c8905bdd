"""The entry point of the command line, and the exit codes of errors.

In:     arguments.
Out:    an exit code: 0 done, 1 a finding or nothing found, 2 wrong usage, 3 the store is unavailable (locked, missing,
        I/O error), 4 the store is damaged, 5 the store must be opened again.
Always: an error is shown as `txstore: error: …` with its hints, never as a traceback. Without the extra `cli`, one line
        says what to install.
Not here: the commands. Each noun has a module, and `commands` lists them all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from txstore import errors

__all__ = ["exit_code", "main"]

EXIT_OK, EXIT_FINDING, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_DAMAGED, EXIT_REOPEN = 0, 1, 2, 3, 4, 5

# The first class that fits decides. Any other error means that the store is unavailable.
_EXIT_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((errors.StoreCorruptError, errors.MissingFileError, errors.ForeignStoreError), EXIT_DAMAGED),
    ((errors.StorePoisonedError,), EXIT_REOPEN),
    ((errors.InvalidMessageError, errors.InvalidNameError, errors.InvalidOptionError), EXIT_USAGE),
    ((errors.MessageNotFoundError, errors.TransactionNotFoundError, errors.OffsetTooOldError), EXIT_FINDING),
    ((errors.AlreadyEndedError, errors.StillPendingError, errors.WrongGroupError, errors.InUseError), EXIT_FINDING),
)


def exit_code(error: BaseException) -> int:
    """Returns the exit code of an error."""
    return next((code for classes, code in _EXIT_CODES if isinstance(error, classes)), EXIT_UNAVAILABLE)


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
