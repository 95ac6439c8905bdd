"""Flags: says an error of the library in the words of the command line.

In:     the text of an error, the options of the command that raised it.
Out:    the same text, with `--name` instead of a keyword of Python.
Always: a word that may be something else is left as it is: a keyword is replaced if it has an underscore, if a value is
        given to it, or if it begins the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["flags_of", "in_flags"]

_VALUE = r"""=(?:'([^']*)'|"([^"]*)"|(\[?[\w.:/-]+\]?))?"""
_TO_PASS = re.compile(r"^hint: pass .*$", re.MULTILINE)


def flags_of(command: Any) -> dict[str, str]:
    """Returns the flags of a command, and of all commands below it, by their keywords."""
    found: dict[str, str] = {}
    for below in getattr(command, "commands", {}).values():
        found |= flags_of(below)
    for parameter in command.params:
        flags = [name for name in parameter.opts if name.startswith("--")]
        if parameter.name is not None and flags:
            found[flags[0].removeprefix("--").replace("-", "_")] = flags[0]
    return found


def in_flags(text: str, flags: Mapping[str, str]) -> str:
    """Returns an error's text with flags instead of keywords."""

    def given(found: re.Match[str]) -> str:
        value = next((group for group in found.groups()[1:] if group is not None), None)
        flag = flags[found[1]]
        return flag if value is None or value in ("True", "None") else f"{flag} {value}"

    names = "|".join(map(re.escape, sorted(flags, key=len, reverse=True)))
    if not names:
        return text
    text = re.sub(rf"(?<![\w./-])({names}){_VALUE}", given, text)
    long = "|".join(re.escape(name) for name in flags if "_" in name)
    if long:
        text = re.sub(rf"(?<![\w./=-])({long})(?![\w(=.])", lambda found: flags[found[1]], text)
    text = re.sub(rf"^({names})(?=:| must| and | is | '| needs )", lambda found: flags[found[1]], text)
    word = re.compile(rf"(?<![\w./=-])({names})(?![\w(=.'-])")
    return _TO_PASS.sub(lambda hint: word.sub(lambda found: flags[found[1]], hint[0]), text)
