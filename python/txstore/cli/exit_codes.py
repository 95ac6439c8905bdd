"""Exit codes of the command line, as numbers and for each error.

In:     an error.
Out:    an exit code: 0 done, 1 a finding or nothing found, 2 wrong usage, 3 the store is unavailable (locked, missing,
        I/O error), 4 the store is damaged, 5 the store must be opened again.
"""

from __future__ import annotations

from txstore import errors

__all__ = [
    "EXIT_DAMAGED",
    "EXIT_FINDING",
    "EXIT_OK",
    "EXIT_REOPEN",
    "EXIT_UNAVAILABLE",
    "EXIT_USAGE",
    "exit_code",
]

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
