"""Sent: the rows that a database keeps after they were sent, and sends again where a restored log has lost them.

In:     the table of sent rows, a log.
Out:    messages in the log that were in it before.
Always: a message that the log has is not sent again, nor one that retention may have removed from the log.
Not here: who moves rows there (`forwarder`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txstore._native import OutboxRow
from txstore.database.fork import outside_database
from txstore.database.session import Handle
from txstore.database.statements import SELECT_EXPIRED, SELECT_SENT, delete_from_sent
from txstore.errors import InvalidMessageError, InvalidNameError, InvalidOptionError, TxStoreError
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import Outboxes, OutboxLog

__all__ = ["LogBroker", "Resent", "SendsAgain", "expire_sent", "messages_in_log", "send_again"]

_log = logging.getLogger("txstore.database.outbox")

_ROWS = 500  # Read and sent in one step.


class LogBroker(Protocol):
    """A broker that knows which messages its log has."""

    def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]: ...


class SendsAgain(LogBroker, Protocol):
    """A blocking broker to whose log rows are sent."""

    @property
    def outboxes(self) -> Outboxes: ...


@dataclass(frozen=True, slots=True)
class Resent:
    """What became of the rows that a database has kept, as `Database.resend` returns it."""

    appended: int
    """How many messages were missing in the log, and are in it now."""
    present: int
    """How many were in the log."""
    in_doubt: int
    """How many are older than the log's first message. Retention may have removed them, so they were not sent."""
    refused: int
    """How many the log does not take. The logger `txstore.database.outbox` says why."""
    other_logs: int
    """How many were sent to other logs, and were not looked at."""


async def expire_sent(handle: Handle, keep_ms: int) -> None:
    """Removes rows that were sent longer than `keep_ms` ago, by the database's clock. Not for SQLite."""
    while True:
        await handle.begin()
        ids = [row_id for (row_id,) in await handle.fetch(SELECT_EXPIRED, keep_ms=keep_ms, rows=_ROWS)]
        if ids:
            await handle.execute(delete_from_sent(ids, await handle.dialect()))
        await handle.commit()
        if len(ids) < _ROWS:
            return


def messages_in_log(broker: LogBroker, messages: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those (topic, message id) that the broker's log has."""
    topics: dict[str, list[str]] = {}
    for topic, message_id in messages:
        topics.setdefault(topic, []).append(message_id)
    found: set[tuple[str, str]] = set()
    for topic, ids in topics.items():
        there = broker.has_messages(topic, ids)
        found.update((topic, message_id) for message_id, is_there in zip(ids, there, strict=True) if is_there)
    return found


async def send_again(handle: Handle, broker: SendsAgain, database: Any, *, other_logs: bool) -> Resent:
    """Sends the kept rows whose messages the log does not have, in the order in which they were sent.

    Raises InvalidOptionError for a log that cannot be asked, and the errors of a broker that is away.
    """
    with outside_database():
        log, choose = broker.outboxes.log(database)
    if not log.appends_once:
        raise InvalidOptionError(
            "a RocketMQ broker cannot tell what retention has removed, so rows cannot be sent to it again\n"
            "hint: `txstore serve`, or a store's directory",
            option="broker",
        )
    step, skipped = _Step(broker, log, choose), 0
    after_ms, after = -1, -1
    while True:
        found = await handle.fetch(SELECT_SENT, after_ms=after_ms, after=after, rows=_ROWS)
        await handle.rollback()
        if not found:
            break
        ours = [one for one in found if other_logs or one[1] == log.destination]
        skipped += len(found) - len(ours)
        with outside_database():
            step.send([bytes(message) for _, _, message, _ in ours])
        after, _, _, after_ms = found[-1]
    with outside_database():
        log.make_durable()
    return Resent(step.appended, step.present, step.in_doubt, step.refused, skipped)


class _Step:
    """Sends rows in steps, and counts what became of them."""

    def __init__(self, broker: SendsAgain, log: OutboxLog, choose: Callable[[OutboxRow], int]) -> None:
        self._broker = broker
        self._log = log
        self._choose = choose
        self.appended = self.present = self.in_doubt = self.refused = 0

    def send(self, messages: Sequence[bytes]) -> None:
        rows = [row for row in map(self._decoded, messages) if row is not None]
        # One process deletes the rows of a message group in the order of the log; several may do so a little later.
        rows.sort(key=lambda row: row.born_timestamp)
        there = messages_in_log(self._broker, [(row.topic, row.message_id) for row in rows])
        missing = [row for row in rows if (row.topic, row.message_id) not in there]
        self.present += len(rows) - len(missing)
        ready = [(row, queue_id) for row in missing if (queue_id := self._queue(row)) is not None]
        self._append([row for row, _ in ready], [queue_id for _, queue_id in ready])

    def _append(self, rows: Sequence[OutboxRow], queue_ids: Sequence[int]) -> None:
        if not rows:
            return
        try:
            fates = self._log.append_many(rows, queue_ids, once=True)
        except InvalidMessageError as error:
            if len(rows) == 1:
                self._refuse(rows[0], error)
                return
            for row, queue_id in zip(rows, queue_ids, strict=True):
                self._append([row], [queue_id])
            return
        for row, fate in zip(rows, fates, strict=True):
            if isinstance(fate, InvalidMessageError | InvalidNameError):
                self._refuse(row, fate)
            elif isinstance(fate, TxStoreError):
                raise fate
            else:
                self.appended += fate == "appended"
                self.present += fate == "present"
                self.in_doubt += fate == "in_doubt"

    def _decoded(self, message: bytes) -> OutboxRow | None:
        try:
            return OutboxRow(message)
        except TxStoreError as error:
            self._refuse(None, error)
            return None

    def _queue(self, row: OutboxRow) -> int | None:
        try:
            return self._choose(row)
        except InvalidNameError as error:
            self._refuse(row, error)
            return None

    def _refuse(self, row: OutboxRow | None, error: TxStoreError) -> None:
        self.refused += 1
        what = "a row" if row is None else f"message {row.message_id}"
        _log.error("%s cannot be sent again: %s", what, error_text(error), extra={"reason": error_text(error)})
