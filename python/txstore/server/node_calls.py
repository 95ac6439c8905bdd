"""Answers what other nodes and operators ask of a node that has replicas, or is one.

In:     epochs of other nodes, and the wish to promote this one.
Out:    the end of the node's log when it accepts an epoch, and the epoch that it begins.
Always: one promotion at a time.
Not here: the steps of a promotion (`promotion`), opening the store in its new role (`opening`).
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from txstore._native import StoreEpochs
from txstore.broker import EmbeddedBroker
from txstore.errors import InvalidOptionError
from txstore.server.escaping import Escaping
from txstore.server.promotion import Promotion
from txstore.server.replication import Replica

__all__ = ["NodeCalls"]


class NodeCalls:
    """The calls of a node."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        replica: Replica | None,
        address: str | None,
        reopen: Callable[..., None],
        escaping: Escaping,
    ) -> None:
        """`address` is where other nodes reach this one. `reopen` lets the server open its store again, soon,
        for a reason; `has_lost` tells it that messages were lost."""
        self._broker, self._replica = broker, replica
        self._address, self._reopen = address, reopen
        self.note_escaped: Callable[[str, bool, Sequence[str]], None] = escaping.note_escaped
        self._escaping = escaping
        self._epochs = StoreEpochs(broker.store)
        self._promoting = threading.Lock()

    def accept_epoch(self, epoch: int, source: str, store_id: str) -> int:
        """Accepts an epoch, whose source is at `source`. Returns the end of the log, which is then final.

        Raises InvalidOptionError for another store, and if a higher epoch was accepted.
        """
        own = self._broker.store.store_id or ""
        if store_id != own:
            raise InvalidOptionError(f"this node has store {own}, not {store_id}", option="store_id")
        end: int = self._epochs.accept(epoch, source or None)
        return end

    def promote(self, lose_messages: bool) -> dict[str, Any]:
        """Makes this replica the source. Raises InvalidOptionError."""
        if self._replica is None:
            raise InvalidOptionError(
                "this node is the source already, or was replaced: only a replica can be promoted", option="promote"
            )
        if self._address is None:
            raise InvalidOptionError(
                "only a node with a TCP address can be promoted\nhint: pass listen", option="listen"
            )
        if not self._promoting.acquire(blocking=False):
            raise InvalidOptionError("this replica is being promoted already", option="promote")
        promotion = Promotion(self._replica, self._address, lose_messages=lose_messages)
        try:
            return promotion.run()
        finally:
            self._promoting.release()
            if self._replica.stopped:
                # As the source; after a failure, as a replica that follows again.
                self._reopen("it was asked to become the source", has_lost=bool(promotion.losses))

    def forget_replica(self, name: str) -> bool:
        """Removes a replica that does not come back. Returns False if it is not known."""
        self._escaping.forget(name)
        known: bool = self._epochs.forget(name)
        return known
