"""Reads what a node knows of epochs: which node may write the log.

In:     the text of `txstore/epochs.json`.
Out:    `Epochs`.
Not here: what changes it (the engine's `StoreEpochs`).
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from txstore._native import read_epochs

__all__ = ["Epochs", "epochs_of"]


@dataclass(frozen=True, slots=True)
class Epochs:
    """What a node knows of epochs."""

    number: int
    """The last epoch of the log."""
    start: int
    """The physical offset at which it begins."""
    accepted: int
    """The highest epoch that the node has heard of."""
    is_replica: bool
    """Whether the node copies another one's log."""
    source: str | None
    """The address of the node that has the accepted epoch, if it is known."""
    nodes: dict[str, str]
    """The addresses of the replicas, by name. Empty if an address is not known."""
    required: int
    """How many copies the newest records had before they were acknowledged."""
    instead_of: str | None
    """The address of the source that the last epoch's node replaced; None if it replaced none."""
    must_cut: bool
    """Whether a rejoin has still to cut the log."""

    @classmethod
    def parse(cls, text: str) -> "Epochs":
        """Reads the text, whose checksum the engine has verified."""
        facts = json.loads(text)
        last = facts["epochs"][-1]
        return cls(
            last["epoch"], last["start"], facts["accepted"], facts["replica"], facts["source"], facts["nodes"],
            facts["required"], last["insteadOf"], facts["cut"] is not None,
        )  # fmt: skip

    @property
    def role(self) -> str:
        """'source', 'replica', or 'fenced': a source that another node has replaced."""
        if self.is_replica:
            return "replica"
        return "fenced" if self.accepted > self.number else "source"


def epochs_of(path: str | os.PathLike[str]) -> Epochs | None:
    """Returns what the node with this store knows; None if the store was never copied. Raises StoreCorruptError."""
    text = read_epochs(path) if Path(path).is_dir() else None
    return None if text is None else Epochs.parse(text)
