"""The entry of the command line: one parser, one place where errors become text and exit codes.

In: arguments. Out: an exit code: 0 done, 1 a finding or nothing found, 2 wrong usage, 3 the store cannot be had now,
4 the store is damaged. Always: an error is shown as `txstore: error: …` with its hints, never as a traceback. Not here:
what the commands do; each group has a file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from txstore import _native, errors
from txstore.cli import store, tx

__all__ = ["main"]

EXIT_OK, EXIT_FINDING, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_DAMAGED = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it.

# The first class that fits decides; what is in none is a store that cannot be had now.
_EXIT_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((errors.StoreCorruptError, errors.MissingFileError, errors.ForeignStoreError), EXIT_DAMAGED),
    ((errors.InvalidMessageError, errors.InvalidNameError, errors.InvalidOptionError), EXIT_USAGE),
    ((errors.MessageNotFoundError, errors.TransactionNotFoundError, errors.OffsetTooOldError), EXIT_FINDING),
    ((errors.AlreadyEndedError, errors.StillPendingError, errors.WrongGroupError), EXIT_FINDING),
)

_EPILOG = """\
exit codes: 0 done, 1 a finding or nothing found, 2 wrong usage, 3 the store cannot be had now, 4 the store is damaged
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line: a noun, then a verb."""
    top = argparse.ArgumentParser(
        prog="txstore",
        description="Looks at a store of transactional messages, and after it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"txstore {_native.__version__}")
    nouns = top.add_subparsers(metavar="NOUN", required=True)
    store.add_commands(nouns)
    tx.add_commands(nouns)
    return top


def exit_code(error: BaseException) -> int:
    """What an error means to a shell."""
    return next((code for classes, code in _EXIT_CODES if isinstance(error, classes)), EXIT_UNAVAILABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; what `txstore` on the command line calls."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except (errors.TxStoreError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output has seen enough (`| head`); Python would complain again while it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        print(f"txstore: error: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print("txstore: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
