"""Copies a store as a killed process leaves it.

In:     a store that may be open.
Out:    its files in another folder.
Always: sockets are left out: they belong to the running program, and Python cannot copy them.
"""

import shutil
from pathlib import Path

__all__ = ["killed_copy"]


def killed_copy(store: Path, copy: Path) -> Path:
    """Copies a store's files and returns the copy."""
    return shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.sock"))
