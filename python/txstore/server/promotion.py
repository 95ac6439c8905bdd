"""Makes a replica the source.

In:     a replica, and the addresses of the other nodes that it knows.
Out:    a new epoch at the end of its log, which every other node has accepted, or which leaves out nodes that cannot be
        reached because the operator says so.
Always: a source that can be reached stops writing first, and the replica copies the rest of its log. The replica with
        the longest log is promoted. The epoch is on disk before anybody is told.
Not here: opening the store again as its writer (`server`), telling nodes that come back (`herald`).
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

from txstore._native import StoreEpochs
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, InvalidOptionError
from txstore.server.epochs import Epochs
from txstore.server.following_rocketmq import is_running_master
from txstore.server.replication import NoTxstoreError, Replica, Source

__all__ = ["Promotion"]

_log = logging.getLogger("txstore.replica")
_CATCH_UP_SECONDS = 30.0  # Without progress.
_LOOK_SECONDS = 0.02
_SILENT = (BrokerUnreachableError, BrokerTimeoutError)  # A paused node takes connections, and does not answer.


@dataclass(slots=True)
class _Node:
    """Another node: the source, or a replica by its name."""

    name: str | None
    address: str
    epochs: Epochs | None = None
    """None: it cannot be reached."""
    end: int = 0

    def __str__(self) -> str:
        what = "the source" if self.name is None else f"replica {self.name}"
        return f"{what} at {self.address or 'an unknown address'}"


class Promotion:
    """One attempt to promote a replica."""

    def __init__(self, replica: Replica, address: str, *, lose_messages: bool) -> None:
        """`address` is where the other nodes reach this one."""
        self._replica = replica
        self._store = replica.broker.store
        self._epochs = StoreEpochs(self._store)
        self._config: ConnectConfig = replica.config
        self._address = address
        self._lose_messages = lose_messages
        self.losses: list[str] = []
        """What the operator has agreed to lose."""
        own = Epochs.parse(self._epochs.text)
        self._own = own
        source = replica.address
        others = [(name, at) for name, at in own.nodes.items() if name != replica.name and at != source]
        self._nodes = [_Node(None, source), *(_Node(name, at) for name, at in others)]

    def run(self) -> dict[str, Any]:
        """Promotes the replica. Afterwards its store must be opened again.

        Raises InvalidOptionError if messages could be lost and the operator has not agreed, or if this node cannot be
        promoted.
        """
        if not self._own.is_replica:
            raise InvalidOptionError(
                f"{self._address} is {self._own.role}, only a replica can be promoted", option="promote"
            )
        for node in self._nodes:
            self._look(node)
        self._refuse_others_that_have_more(stopped=False)
        self._weigh_the_unreachable()
        number = 1 + max([self._own.accepted, *(node.epochs.accepted for node in self._nodes if node.epochs)])
        self._copy_the_rest(number)
        self._ask_replicas(number)
        # From here on nothing more is copied.
        self._replica.stop()
        self._epochs.accept(number, self._address)
        self._refuse_others_that_have_more(stopped=True)
        # A source is not one of its own replicas, of which there are two at most.
        self._epochs.forget(self._replica.name)
        partial = any(node.epochs is None for node in self._nodes if node.name is not None)
        start = self._epochs.begin(partial=partial, instead_of=self._source.address)
        missing = [str(node) for node in self._nodes if node.epochs is None]
        fields = {"epoch": number, "start": start}
        _log.warning("this node is the source in epoch %d, from %d on", number, start, extra=fields)
        return {"epoch": number, "start": start, "not_asked": missing, "losses": self.losses}

    def _look(self, node: _Node) -> None:
        try:
            with self._connected(node) as peer:
                state = peer.state()
        except _SILENT as error:
            _log.warning("%s cannot be asked: %s", node, error)
            return
        except NoTxstoreError:
            if node.name is None and is_running_master(node.address, self._config):
                raise InvalidOptionError(
                    f"{node} is a RocketMQ broker that is running, and nothing tells it that it was replaced\n"
                    "hint: stop it, then repeat with --lose-messages; nothing is lost if its clients had stopped, and "
                    "`txstore replica status` showed no lag",
                    option="promote",
                ) from None
            raise
        if state["store_id"] != self._store.store_id:
            text = f"{node} has another store\nhint: `txstore replica forget` removes a replica"
            raise InvalidOptionError(text, option="promote")
        node.epochs, node.end = Epochs.parse(state["epochs"]), state["end"]

    def _connected(self, node: _Node) -> Source:
        if not node.address:
            raise BrokerUnreachableError(f"the address of {node} is not known", address="")
        return Source(node.address, self._config)

    def _refuse_others_that_have_more(self, *, stopped: bool) -> None:
        for node in self._nodes:
            if node.epochs is None:
                continue
            if node.epochs.number > self._own.number:
                text = f"{node} is in epoch {node.epochs.number}, this replica in {self._own.number}"
                raise InvalidOptionError(f"{text}\nhint: promote that one", option="promote")
            is_longer = node.name is not None and node.epochs.number == self._own.number and node.end > self._end
            if is_longer and (stopped or not self._source.epochs):
                self._may_lose(f"{node} has a longer log: up to {node.end}, this one up to {self._end}")

    @property
    def _source(self) -> _Node:
        return self._nodes[0]

    @property
    def _end(self) -> int:
        return self._store.appended_end

    def _weigh_the_unreachable(self) -> None:
        for node in self._nodes:
            if node.epochs is not None:
                continue
            if node.name is not None:
                self._may_lose(f"{node} cannot be reached, and may have acknowledged messages after {self._end}")
            elif self._own.required < 2:
                known = self._replica.missing_bytes
                lag = "" if not known else f"; at its last answer it had {known} bytes more"
                self._may_lose(
                    f"{node} cannot be reached, and acknowledges what it alone has (--replicas-required 1, or a broker "
                    f"of RocketMQ): its messages after {self._end} are lost{lag}"
                )

    def _may_lose(self, what: str) -> None:
        self.losses.append(what)
        if not self._lose_messages:
            hint = "promote the node that has more, start the one that is missing, or repeat with --lose-messages"
            raise InvalidOptionError(f"{what}\nhint: {hint}", option="lose_messages")

    def _copy_the_rest(self, number: int) -> None:
        """Stops the source, if it can be reached, and waits until the copy has its log."""
        source = self._source
        if source.epochs is None:
            return
        try:
            source.end = self._accept(source, number)
        except _SILENT:
            source.epochs = None
            self._weigh_the_unreachable()
            return
        until, before = time.monotonic() + _CATCH_UP_SECONDS, self._end
        while self._end < source.end:
            if self._end > before:
                until, before = time.monotonic() + _CATCH_UP_SECONDS, self._end
            if time.monotonic() > until or self._replica.failure is not None:
                why = self._replica.failure or "it is not copied"
                self._may_lose(f"{source} has messages up to {source.end}, this copy up to {self._end}: {why}")
                return
            time.sleep(_LOOK_SECONDS)

    def _ask_replicas(self, number: int) -> None:
        for node in self._nodes[1:]:
            if node.epochs is None:
                continue
            try:
                node.end = self._accept(node, number)
            except _SILENT:
                node.epochs = None
                self._weigh_the_unreachable()

    def _accept(self, node: _Node, number: int) -> int:
        with self._connected(node) as peer:
            return peer.accept_epoch(number, self._address, self._store.store_id)
