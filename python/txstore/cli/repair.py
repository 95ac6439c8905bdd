"""A damaged store repaired: what can be read is kept where it stands, what is lost is named, copies are kept of all.

In: a path, and what `deep` found there. Out: what was done. Always: offline, with the store's lock; copies first; the
log's records stay at their physical offsets. Not here: asking (`store`), the bytes (the engine's `repair`).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstore import errors
from txstore._native import mend_store
from txstore.cli.deep import Depth
from txstore.cli.opening import writing_broker

__all__ = ["repair"]

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def repair(path: str, depth: Depth, copy_to: str | None) -> dict[str, Any]:
    """Repairs, opens and closes the store; what was done.

    Raises StoreCorruptError (nothing can be read), StoreLockedError, InvalidOptionError (`copy_to` is in use).
    """
    if depth.facts["damages"] and not depth.facts["records"]:
        raise errors.StoreCorruptError(
            f"no record of {path} can be read: there is nothing to repair\nhint: take a backup, or make a new store",
            file=path,
            offset=0,
        )
    copies, below = _copies(path, copy_to)
    done = json.loads(mend_store(path, copies, below))
    with writing_broker(path) as broker:
        pending = [row.transaction_id for row in broker.transactions()]
        warnings = broker.open_report.warnings
    place = Path(copies) / below
    lost = depth.facts["lost"]
    result = {
        **done,
        "copies": str(place),
        "lost": lost,
        "lost_count": depth.facts["lost_count"],
        "lost_halves": sum(one["topic"] == _HALF_TOPIC for one in lost),
        "lost_ops": sum(one["topic"] == _OP_TOPIC for one in lost),
        "pending": pending,
        "warnings": warnings,
    }
    report = json.loads((place / "report.json").read_text())
    (place / "report.json").write_text(json.dumps(report | {"done": result}, indent=1) + "\n")
    return result


def _copies(path: str, copy_to: str | None) -> tuple[str, str]:
    """The directory of the copies, and where in it."""
    if copy_to is None:
        return path, f"txstore/repair-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    place = Path(copy_to)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise errors.InvalidOptionError(
            f"{copy_to} is in use\nhint: name a new or an empty directory for the copies", option="--copy-to"
        )
    if place.resolve().is_relative_to(Path(path).resolve()):
        raise errors.InvalidOptionError(
            f"{copy_to} is inside the store\nhint: leave it out: copies then go below txstore/", option="--copy-to"
        )
    return copy_to, ""
