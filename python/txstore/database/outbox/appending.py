"""Appending: puts the messages of committed rows into the log, those of each message group in their order.

In:     rows of one owner, which were read as committed.
Out:    what became of each.
Always: a row of a message group is appended only if all earlier ones are in the log, also those of other processes. If
        the log stores each message once, earlier rows of others are sent first, so nobody waits for their owners, who
        still delete them. Otherwise rows wait until their owners have deleted them.
Not here: which rows those are, and when their messages are durable (`forwarder`).
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from txstore._native import OutboxRow
from txstore.database.fork import outside_database
from txstore.database.session import Handle
from txstore.database.statements import PARK, SELECT_EARLIER, SELECT_GROUP
from txstore.errors import (
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidMessageError,
    InvalidNameError,
    TooManyPendingError,
    TxStoreError,
)
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import OutboxLog

__all__ = ["Appending", "Fate", "Row", "decoded"]

_log = logging.getLogger("txstore.database.outbox")

_EARLIER_ROWS = 500  # Of other owners, sent first in one step.
_KNOWN_GROUPS = 10_000
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)
_IN_LOG = frozenset(("appended", "present"))
_NEVER = (InvalidMessageError, InvalidNameError)


class Fate(Enum):
    """What became of a committed row."""

    IN_LOG = "in_log"
    """Its message is in the log."""
    PARKED = "parked"
    """It can never be sent, or may have been sent already. The row says why."""
    LATER = "later"
    """An earlier row of its message group is not in the log yet."""
    FAILED = "failed"
    """The log could not take it now."""


@dataclass(slots=True)
class Row:
    """A row of the table."""

    id: int
    row: OutboxRow | None
    """None if it cannot be decoded, or is not in memory."""
    message_group: str | None
    group_seq: int
    queue_id: int | None = None
    """None if it is not chosen yet."""
    why: str = ""
    """Why it cannot be decoded."""


_Ready = tuple[Row, OutboxRow, int]
"""A row to append, with its message and its queue."""


class _Group:
    """The rows of one message group, in one step."""

    def __init__(self, earlier: Sequence[tuple[int, int, str | None]]) -> None:
        self.earlier = list(reversed(earlier))
        """Number, `group_seq` and why it is parked, of those not looked at yet. The first one is the last."""
        self.waits = False
        """Whether a row waits, so that all later ones do."""


class Appending:
    """Appends rows to one log. Not thread-safe."""

    def __init__(
        self,
        log: OutboxLog,
        choose: Callable[[OutboxRow], int],
        own: range,
        in_log: Callable[[Iterable[int]], Set[int]],
        failed: Callable[[Handle, TxStoreError], Awaitable[None]],
    ) -> None:
        """`own`: the ids of this process's rows. `in_log` returns those of some own rows that are in the log. `failed`
        is told why the log refused a message for now."""
        self._log = log
        self._choose = choose
        self._own = own
        self._in_log = in_log
        self._tell_failed = failed
        self._known: dict[str, set[int]] = {}
        """By message group, rows of other owners that are in the log, and were not deleted yet."""
        self.away: TxStoreError | None = None
        """Why the log cannot be reached."""

    async def append(self, handle: Handle, rows: Sequence[Row], *, once: bool) -> dict[int, Fate]:
        """Appends the messages of rows of one owner, in order; returns what became of each row, by number."""
        wanted = {one.id for one in rows}
        simple = _simple(rows)
        if len(simple) == len(rows) and self.away is None:
            return await self._append_ready(handle, simple, wanted, once=once)
        return await self._append_in_turn(handle, rows, wanted, once=once)

    async def _append_in_turn(
        self, handle: Handle, rows: Sequence[Row], wanted: Set[int], *, once: bool
    ) -> dict[int, Fate]:
        # A thread may get its row's number first, and insert the row last.
        rows = sorted(rows, key=lambda one: one.group_seq)
        fates: dict[int, Fate] = {}
        ready: list[_Ready] = []
        groups: dict[str, _Group] = {}
        for one in rows:
            if self.away is not None:
                fates[one.id] = Fate.FAILED
            elif one.group_seq > 1 and not await self._is_its_turn(handle, one, rows, fates, groups, ready):
                fates[one.id] = Fate.LATER
            elif one.row is None:
                fates[one.id] = await self._park(handle, one, one.why)
            else:
                try:
                    queue_id = self._choose(one.row) if one.queue_id is None else one.queue_id
                    ready.append((one, one.row, queue_id))
                    fates[one.id] = Fate.IN_LOG
                except InvalidNameError as error:
                    fates[one.id] = await self._park(handle, one, error_text(error))
                except TxStoreError as error:
                    fates[one.id] = await self._failed(handle, error)
        done = await self._append_ready(
            handle, ready, wanted, once=once or any(one.id not in wanted for one, _, _ in ready)
        )
        for one, _, _ in ready:
            if one.id in wanted:
                fates[one.id] = done[one.id]
            elif done[one.id] is Fate.IN_LOG and one.message_group is not None:
                self._known.setdefault(one.message_group, set()).add(one.id)
        return fates

    async def _append_ready(
        self, handle: Handle, ready: Sequence[_Ready], wanted: Set[int], *, once: bool
    ) -> dict[int, Fate]:
        """Appends rows of which the `wanted` ones may be parked."""
        if not ready:
            return {}
        try:
            with outside_database():
                done = self._log.append_many([row for _, row, _ in ready], [queue for _, _, queue in ready], once=once)
        except (InvalidMessageError, TooManyPendingError) as error:
            if len(ready) > 1:
                return await self._append_singly(handle, ready, wanted, once=once)
            one = ready[0][0]
            if isinstance(error, InvalidMessageError):
                return {one.id: await self._refused(handle, one, wanted, error_text(error))}
            # Too many messages wait for their times. Those without a time do not wait for them.
            return {one.id: await self._failed(handle, error)}
        fates = dict.fromkeys([one.id for one, _, _ in ready], Fate.IN_LOG)
        if _IN_LOG.issuperset(done):
            return fates
        for (one, _, _), fate in zip(ready, done, strict=True):
            if isinstance(fate, _NEVER):
                fates[one.id] = await self._refused(handle, one, wanted, error_text(fate))
            elif isinstance(fate, TxStoreError):
                fates[one.id] = await self._failed(handle, fate)
            elif fate == "in_doubt":
                why = "it may be in the log already, but the log no longer reaches back to the time of this message"
                fates[one.id] = await self._refused(handle, one, wanted, why)
        return fates

    async def _append_singly(
        self, handle: Handle, ready: Sequence[_Ready], wanted: Set[int], *, once: bool
    ) -> dict[int, Fate]:
        fates: dict[int, Fate] = {}
        held: set[str] = set()
        for one, row, queue_id in ready:
            if one.message_group in held:
                fates[one.id] = Fate.LATER
                continue
            fates.update(await self._append_ready(handle, [(one, row, queue_id)], wanted, once=once))
            if fates[one.id] is not Fate.IN_LOG and one.message_group is not None:
                held.add(one.message_group)
        return fates

    async def _refused(self, handle: Handle, one: Row, wanted: Set[int], why: str) -> Fate:
        """Parks a row that the log never takes; one of another owner is left to its owner."""
        return await self._park(handle, one, why) if one.id in wanted else Fate.FAILED

    async def _failed(self, handle: Handle, error: TxStoreError) -> Fate:
        if isinstance(error, _AWAY):
            self.away = error
        else:
            await self._tell_failed(handle, error)
        return Fate.FAILED

    async def _park(self, handle: Handle, one: Row, why: str) -> Fate:
        _log.error("a row of the outbox cannot be sent and is parked: %s", why, extra={"reason": why})
        await handle.begin()
        await handle.run(PARK, parked=why[:1000], id=one.id)
        await handle.commit()
        return Fate.PARKED

    # Message groups

    async def _is_its_turn(
        self,
        handle: Handle,
        one: Row,
        rows: Sequence[Row],
        fates: dict[int, Fate],
        groups: dict[str, _Group],
        ready: list[_Ready],
    ) -> bool:
        """Tells whether all earlier rows of its message group are in the log, or go there before it. Adds rows of other
        owners to those that are `ready`."""
        assert one.message_group is not None
        group = groups.get(one.message_group)
        if group is None:
            last = max(other.group_seq for other in rows if other.message_group == one.message_group)
            group = groups[one.message_group] = _Group(await self._earlier(handle, one.message_group, last))
        passed: dict[int, int] = {}
        while not group.waits and group.earlier and group.earlier[-1][1] < one.group_seq:
            row_id, group_seq, parked = group.earlier.pop()
            if fates.get(row_id) is not Fate.IN_LOG:
                passed[row_id] = group_seq
                group.waits = parked is not None
        if passed and not group.waits:
            in_log = self._in_log(passed) | self._known.get(one.message_group, set())
            missing = [(row_id, group_seq) for row_id, group_seq in passed.items() if row_id not in in_log]
            group.waits = any(row_id in self._own or row_id in fates for row_id, _ in missing)
            if not group.waits:
                group.waits = not await self._send_first(handle, one.message_group, missing, ready)
        return not group.waits

    async def _earlier(self, handle: Handle, message_group: str, group_seq: int) -> list[tuple[int, int, str | None]]:
        found = await handle.fetch(
            SELECT_EARLIER, destination=self._log.destination, message_group=message_group, group_seq=group_seq
        )
        await handle.rollback()
        if known := self._known.get(message_group):
            known.intersection_update([row_id for row_id, _, _ in found])
            if not known:
                del self._known[message_group]
        if len(self._known) > _KNOWN_GROUPS:
            self._known.clear()  # They are sent again, which costs a request.
        return [(row_id, group_seq, parked) for row_id, group_seq, parked in found]

    async def _send_first(
        self, handle: Handle, message_group: str, missing: Sequence[tuple[int, int]], ready: list[_Ready]
    ) -> bool:
        """Adds rows of other owners to those that are ready; returns whether all of them can be sent."""
        if not missing:
            return True
        if not self._log.appends_once:
            return False
        wanted, (_, first), (_, last) = {row_id for row_id, _ in missing}, missing[0], missing[-1]
        found = await handle.fetch(
            SELECT_GROUP,
            destination=self._log.destination,
            message_group=message_group,
            first=first,
            last=last,
            rows=_EARLIER_ROWS,
        )
        await handle.rollback()
        for one in found:
            row = decoded(*one)
            if row.id not in wanted:
                continue
            if row.row is None:
                return False
            try:
                ready.append((row, row.row, self._choose(row.row)))
            except TxStoreError as error:
                if isinstance(error, _AWAY):
                    self.away = error
                return False
        return len(found) < _EARLIER_ROWS  # Rows that were not found were deleted by their owners meanwhile.


def _simple(rows: Sequence[Row]) -> list[_Ready]:
    """Returns the rows that need no look at others, and whose queues are chosen: most of all."""
    return [
        (one, one.row, one.queue_id)
        for one in rows
        if one.row is not None and one.queue_id is not None and one.group_seq <= 1
    ]


def decoded(row_id: int, message: bytes, message_group: str | None, group_seq: int | None) -> Row:
    """Returns a row of the table as it was read."""
    try:
        row, why = OutboxRow(bytes(message)), ""
    except TxStoreError as error:
        row, why = None, error_text(error)
    return Row(row_id, row, message_group, group_seq or 0, why=why)
