"""Option names: which options a read or a write knows, and errors that name one.

In:     the options as Spark passes them, with names in any case.
Out:    the same with the names of the documentation.
Always: an unknown option is an error that names the nearest known one.
Not here: values.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from txstore.errors import InvalidOptionError

__all__ = ["invalid", "known_options"]


def known_options(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Returns the options under the names that they are known by. Raises InvalidOptionError for one not in `names`."""
    known = {name.lower(): name for name in names}
    found = {}
    for given, text in options.items():
        name = known.get(given.lower())
        if name is None:
            near = difflib.get_close_matches(given.lower(), known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"the options are {', '.join(names)}"
            raise invalid(given, f"unknown option\nhint: {hint}")
        found[name] = text
    return found


def invalid(option: str, what: str) -> InvalidOptionError:
    """Returns the error of an option."""
    return InvalidOptionError(f"option {option}: {what}", option=option)
