"""Repairs a damaged store: keeps what can be read, names what is lost, copies what is changed.

In:     a path, and what `deep` found there.
Out:    what was done.
Always: works offline, under the store's lock. Makes copies first. The log's records keep their physical offsets.
Not here: asking for confirmation (the command line), the bytes (the engine's `repair`).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstore import errors
from txstore._native import HALF_TOPIC, OP_TOPIC, mend_store
from txstore.inspection.deep import Depth
from txstore.inspection.opening import writing_broker

__all__ = ["repair"]


def repair(path: str, depth: Depth, copy_to: str | None) -> dict[str, Any]:
    """Repairs, opens and closes the store; returns what was done.

    Raises StoreCorruptError (nothing can be read), StoreLockedError, InvalidOptionError (`copy_to` is in use).
    """
    if depth.facts["damages"] and not depth.facts["records"]:
        raise errors.StoreCorruptError(
            f"no record of {path} can be read, so there is nothing to repair\nhint: restore a backup",
            file=path,
            offset=0,
        )
    copies, below = _copies(path, copy_to)
    done = json.loads(mend_store(path, copies, below))
    with writing_broker(path) as broker:
        pending = [row.transaction_id for row in broker.transactions()]
        warnings = broker.open_report.warnings
    directory = Path(copies) / below
    lost = depth.facts["lost"]
    result = {
        **done,
        "copies": str(directory),
        "lost": lost,
        "lost_count": depth.facts["lost_count"],
        "lost_halves": sum(one["topic"] == HALF_TOPIC for one in lost),
        "lost_ops": sum(one["topic"] == OP_TOPIC for one in lost),
        "pending": pending,
        "warnings": warnings,
    }
    report = json.loads((directory / "report.json").read_text())
    (directory / "report.json").write_text(json.dumps(report | {"done": result}, indent=1) + "\n")
    return result


def _copies(path: str, copy_to: str | None) -> tuple[str, str]:
    """Returns the base directory of the copies, and the path in it."""
    if copy_to is None:
        return path, f"txstore/repair-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    directory = Path(copy_to)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise errors.InvalidOptionError(
            f"{copy_to} is not empty\nhint: name a new or an empty directory for the copies", option="--copy-to"
        )
    if directory.resolve().is_relative_to(Path(path).resolve()):
        raise errors.InvalidOptionError(
            f"{copy_to} is inside the store\nhint: omit it, and the copies go below txstore/", option="--copy-to"
        )
    return copy_to, ""
