"""The part of a server that lets transactions escape, or takes them as escaped: by its role.

In:     the server's options, its store, what copies another server's store into it.
Out:    in a replica, transactions that escape while its source is away; in a source, those that have escaped ended.
Not here: how each is done (`escape`, `returning`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from txstore._native import RequestCode, StoreEpochs
from txstore.broker import EmbeddedBroker
from txstore.broker.escape_journal import EscapeJournal, escaping_replicas, read_escapes
from txstore.client.options import ConnectConfig
from txstore.errors import InvalidOptionError
from txstore.listener import Checker
from txstore.server.config import ServerConfig
from txstore.server.epochs import Epochs
from txstore.server.escape import Escape, EscapeReport, rules_of
from txstore.server.following_rocketmq import copies_txstore
from txstore.server.replication import Replica
from txstore.server.request import Reply, Request
from txstore.server.returning import Returning

__all__ = ["Escaping", "may_have_escaped"]


class TakesAnswers(Protocol):
    """The part of the engine's server that passes answers to checks on."""

    def take_answers(self, taken: bool) -> None: ...


def may_have_escaped(path: Path) -> bool:
    """Returns whether transactions of the store at a path may have escaped, so that its ends are held at first."""
    return bool(escaping_replicas(path) or read_escapes(path))


class Escaping:
    """One server's part in escapes. Starts with it."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        config: ServerConfig,
        replica: Replica | None,
        native: TakesAnswers,
        checkers: Callable[[str, str, str | None], list[Checker]],
        monotonic: Callable[[], float],
    ) -> None:
        """`checkers` returns those of the connected producers of a group, for a topic and a tag.

        Raises StoreCorruptError if the record of escapes is damaged.
        """
        self._broker, self._replica = broker, replica
        journal = EscapeJournal(broker.path, broker.stat().min_physical_offset)
        self._escape: Escape | None = None
        self._returning: Returning | None = None
        is_source = replica is None and not broker.read_only
        if is_source:
            settles = config.escape_to is not None
            self._returning = Returning(broker.store, journal, settles=settles)
        name_server = config.escape_to
        if name_server is not None and (replica is not None or is_source):
            self._escape = Escape(
                broker,
                journal,
                rules_of(broker, name_server, float(config.escape_after)),
                ConnectConfig.from_environment(),
                report=EscapeReport(journal, escapes=True),
                checkers=checkers,
                may_escape=self._may_escape,
                settled=self._settled,
                monotonic=monotonic,
            )
            native.take_answers(replica is not None)
            self._escape.start()
        if replica is not None:
            replica.watcher = self._escape or EscapeReport(journal, escapes=False)

    def stop(self) -> None:
        """Stops letting transactions escape. Idempotent."""
        if self._escape is not None:
            self._escape.stop()

    def handlers(self) -> dict[int, Callable[[Request], Reply]]:
        """Returns what takes END_TRANSACTION, the answer of a producer to a check of this replica."""
        return {} if self._escape is None else {RequestCode.END_TRANSACTION: self._escape.answered}

    def note_escaped(self, replica: str, escapes: bool, rows: Sequence[str]) -> None:
        """Takes what a replica tells of escaped transactions. Raises InvalidOptionError."""
        if self._returning is None:
            text = "only a source is told of escaped transactions, and this node copies another one or was replaced"
            raise InvalidOptionError(text, option="note_escaped")
        self._returning.note_escaped(replica, escapes, rows)

    def forget(self, replica: str) -> None:
        """Waits no longer for a replica that does not come back."""
        if self._returning is not None:
            self._returning.forget(replica)

    def _may_escape(self) -> bool:
        replica = self._replica
        if replica is None or replica.failure is not None or replica.connected:
            return False
        known = Epochs.parse(StoreEpochs(self._broker.store).text)
        return known.is_replica and known.accepted == known.number and copies_txstore(self._broker.path)

    def _settled(self) -> None:
        if self._returning is not None:
            self._returning.apply()
