"""Record: which transactions are a batch, as the store keeps it.

In:     the transactions of the tasks whose results count.
Out:    JSON.
Always: the first record of a batch decides. A batch that is written again finds it, and publishes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from txstore.errors import ProtocolError
from txstore.spark.sink.target import Waiting

__all__ = ["BatchRecord"]

_VERSION = 1


@dataclass(frozen=True)
class BatchRecord:
    """The transactions that are a batch."""

    app: str
    batch: int
    transactions: tuple[Waiting, ...]

    def to_json(self) -> bytes:
        """Returns the record as it is stored."""
        found = {"v": _VERSION, "app": self.app, "batch": self.batch, "transactions": self.transactions}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, body: bytes) -> BatchRecord:
        """Parses a record. Raises ProtocolError for other bytes."""
        try:
            found = json.loads(body)
            if found["v"] != _VERSION:
                raise ValueError(f"version {found['v']}")
            return cls(found["app"], found["batch"], _waiting(found["transactions"]))
        except (KeyError, TypeError, ValueError) as error:
            text = f"the record of a batch cannot be read: {error!r}"
            raise ProtocolError(f"{text}\nhint: another version of txstore wrote it") from error


def _waiting(rows: Sequence[Sequence[str | int]]) -> tuple[Waiting, ...]:
    return tuple(Waiting(*row) for row in rows)  # type: ignore[arg-type]
