"""Forwarder: appends the messages of committed rows to the log, and deletes the rows when the messages are durable.

In:     rows that this process inserts; rows that an earlier process left.
Out:    messages in the log.
Always: a message is appended only after its row was read as committed, and by one thread. A row is deleted only when
        its message is durable. On SQLite nothing is written while the service runs: finished rows are deleted by the
        service's next transactions with a message, the rest when the forwarder closes and when the next one opens.
Not here: the user's transaction (`producer`).

Each row has an owner, the number of a forwarder. It begins with the number of the log that the row is for. Only one
process has the store open for writing, so rows for its log with another owner were left by a process that has ended.

::

    inserted ──► claimed ──► appended ──► (durable) deleting ──► gone
                    │  an earlier row of its message group waits: inserted again
                    └─ it can never be sent: parked
"""

import asyncio
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from txstore._native import OutboxRow
from txstore.database.session import Handle, is_asynchronous, open_handle, run_now
from txstore.database.statements import (
    NEXT_OWNER,
    NOT_DURABLE,
    PARK,
    SELECT_EARLIER,
    SELECT_OUTBOX,
    SELECT_SEQS,
    delete_from_outbox,
)
from txstore.errors import InvalidMessageError, InvalidNameError, StoreClosedError, TxStoreError
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import OutboxLog

__all__ = ["Forwarder"]

_log = logging.getLogger("txstore.database.outbox")

_ROWS = 500  # Read, appended and deleted in one step.
_DELETE_ROWS = 100  # Deleted by one transaction of a service on SQLite.
_POLL_SECONDS = (0.002, 0.02, 0.1)  # Between two looks for a commit: after few were found, after many, at most.
_MANY = 16
_RECENT_SECONDS = 5.0  # Rows of longer transactions are found by the search through all rows.
_SEARCH_SECONDS = 1.0  # Between two searches through all rows.
_IDLE_SECONDS = 5.0  # Between two looks when nothing is expected.
_RETRY_SECONDS = (0.1, 5.0)


class RowDatabase(Protocol):
    """The database that holds the rows: a `txstore.database.Database`."""

    @property
    def source(self) -> Any: ...
    def identity(self) -> str: ...
    def forget_identity(self) -> str: ...


class _Fate(Enum):
    """What became of a committed row."""

    IN_LOG = "in_log"
    """Its message is in the log."""
    PARKED = "parked"
    """It can never be sent, or may have been sent already. The row says why."""
    LATER = "later"
    """An earlier row of its message group is not in the log yet."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A committed row."""

    owner: int
    seq: int
    row: OutboxRow | None
    """None if it cannot be decoded."""
    message_group: str | None
    group_seq: int
    why: str
    """Why it cannot be decoded."""


class Forwarder:
    """Forwards the rows that one process inserts for one log. Thread-safe. Its thread starts with the first row."""

    def __init__(self, database: RowDatabase, log: OutboxLog, choose: Callable[[OutboxRow], int]) -> None:
        self.database = database
        self._log = log
        self._choose = choose
        self._first_owner = log.destination << 32
        self.owner = self._first_owner | random.getrandbits(32)
        self._next = itertools.count(1).__next__
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._is_idle = False
        self._deletes_itself = True
        # Rows by number. `inserted`: when; `appended`: with the log's end after the message; `deleting`: since when.
        self._inserted: dict[int, float] = {}
        self._claimed: set[int] = set()
        self._in_log: set[int] = set()
        self._appended: deque[tuple[int, int]] = deque()
        self._deleting: dict[int, float] = {}

    # For producers

    def next_row(self) -> tuple[int, int]:
        """Returns the owner and the number of a new row. The first call starts the thread."""
        if self._thread is None:
            self._start()
        return self.owner, self._next()

    async def inserted(self, handle: Handle, seq: int) -> None:
        """Notes a row in an open transaction, and deletes finished rows in it where the forwarder does not."""
        with self._lock:
            self._inserted[seq] = time.monotonic()
        if not self._deletes_itself:
            finished = self._finished(_DELETE_ROWS)
            if finished:
                await handle.execute(delete_from_outbox(self.owner, finished))
        if self._is_idle:
            self._wake.set()

    def committed(self, seq: int, row: OutboxRow) -> None:
        """Appends the message of a row that was read as committed, unless the thread does. Never waits for a disk."""
        with self._lock:
            if seq in self._claimed:
                return
            self._claimed.add(seq)
            self._inserted.pop(seq, None)
        try:
            self._log.append(row, self._choose(row))
        except Exception as error:
            # The thread tries again, and parks a row that can never be sent.
            _log.warning("a message could not be appended at its commit: %s", error_text(error))
            self._again([seq])
            return
        self._note_appended([seq])

    def look(self) -> None:
        """Makes the thread look for committed rows now."""
        if self._is_idle:
            self._wake.set()

    def rolled_back(self, seqs: Iterable[int]) -> None:
        """Stops looking for rows that probably were rolled back. A search finds them if they were not."""
        with self._lock:
            for seq in seqs:
                self._inserted.pop(seq, None)

    def close(self, timeout: float) -> None:
        """Forwards and deletes what is committed, then stops, within `timeout` seconds. What is left is forwarded when
        a broker opens the store again."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(timeout)

    # The thread

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the broker is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="txstore-forwarder", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        if is_asynchronous(self.database.source):
            asyncio.run(self._loop())
        else:
            run_now(self._loop())

    async def _loop(self) -> None:
        pause = _RETRY_SECONDS[0]
        while True:
            try:
                handle = await open_handle(self.database.source, keep=True)
                try:
                    self._deletes_itself = await handle.dialect() != "sqlite"
                    await handle.rollback()
                    await self._take_over(handle)
                    pause = _RETRY_SECONDS[0]
                    await self._forward(handle)
                    return
                finally:
                    await handle.close()
            except Exception as error:
                if self._closed:
                    _log.warning("rows of the outbox are left for the next opening: %s", error_text(error))
                    return
                _log.warning("the outbox could not be forwarded, and is tried again: %s", error_text(error))
            time.sleep(pause)
            pause = min(pause * 2, _RETRY_SECONDS[1])

    async def _forward(self, handle: Handle) -> None:
        pause, next_search = _POLL_SECONDS[0], 0.0
        while True:
            is_last, now = self._closed, time.monotonic()
            searches = is_last or now >= next_search
            if searches:
                next_search = now + _SEARCH_SECONDS
            forwarded = await self._forward_own(handle, everything=searches)
            if is_last:
                self._log.make_durable()
            if self._deletes_itself or is_last:
                await self._delete_finished(handle)
            if is_last:
                return
            pause = _POLL_SECONDS[forwarded > _MANY] if forwarded else min(pause * 2, _POLL_SECONDS[2])
            self._wait(pause)

    def _wait(self, pause: float) -> None:
        """Waits for the next look. While rows are expected, `pause` collects commits for one step."""
        with self._lock:
            self._is_idle = not self._inserted and not self._closed
            waits = bool(self._appended)
        if not self._is_idle:
            time.sleep(pause)
            return
        self._wake.wait(_POLL_SECONDS[2] if waits else _IDLE_SECONDS)
        self._wake.clear()
        self._is_idle = False

    async def _forward_own(self, handle: Handle, *, everything: bool) -> int:
        """Appends the messages of this process's committed rows; returns how many."""
        first, forwarded = await self._first_new(handle, everything=everything), 0
        if first is None:
            return 0
        while True:
            found = await self._fetch(handle, self.owner, first)
            new = self._claim(found)
            try:
                fates = await self._append(handle, new, once=False)
            except BaseException:
                self._again(one.seq for one in new)
                raise
            self._note_appended(seq for seq, fate in fates.items() if fate is _Fate.IN_LOG)
            self._again(seq for seq, fate in fates.items() if fate is _Fate.LATER)
            forwarded += len(fates)
            if len(found) < _ROWS:
                return forwarded
            first = found[-1].seq + 1

    async def _first_new(self, handle: Handle, *, everything: bool) -> int | None:
        """Returns the number from which rows may be new; None if none is expected."""
        if everything:
            return await self._search(handle)
        now = time.monotonic()
        with self._lock:
            return min((seq for seq, at in self._inserted.items() if now - at < _RECENT_SECONDS), default=None)

    async def _search(self, handle: Handle) -> int | None:
        """Searches through all rows; returns the first one that is not claimed."""
        with self._lock:
            deleting = list(self._deleting)
        committed = {seq for (seq,) in await handle.fetch(SELECT_SEQS, owner=self.owner)}
        await handle.rollback()
        now = time.monotonic()
        with self._lock:
            # On SQLite, a transaction of the service deletes finished rows. It may last long, or roll back.
            self._forget(seq for seq in deleting if seq not in committed)
            for seq in [seq for seq, since in self._deleting.items() if now - since > _RECENT_SECONDS]:
                del self._deleting[seq]
                self._appended.appendleft((seq, 0))
            for seq in [seq for seq, at in self._inserted.items() if now - at > _RECENT_SECONDS]:
                del self._inserted[seq]
            return min(committed - self._claimed, default=None)

    def _claim(self, found: Sequence[_Found]) -> list[_Found]:
        """Returns the rows that no other thread appends, in their order."""
        with self._lock:
            new = [one for one in found if one.seq not in self._claimed]
            for one in new:
                self._claimed.add(one.seq)
                self._inserted.pop(one.seq, None)
        return new

    def _note_appended(self, seqs: Iterable[int]) -> None:
        with self._lock:
            end = self._log.appended_end()
            for seq in seqs:
                self._in_log.add(seq)
                self._appended.append((seq, end))

    def _again(self, seqs: Iterable[int]) -> None:
        """Makes rows wait for the next look."""
        now = time.monotonic()
        with self._lock:
            for seq in seqs:
                self._claimed.discard(seq)
                self._inserted[seq] = now

    # Appending

    async def _fetch(self, handle: Handle, owner: int, first: int) -> list[_Found]:
        rows = await handle.fetch(SELECT_OUTBOX, owner=owner, first=first, rows=_ROWS)
        await handle.rollback()
        return [_decoded(owner, *row) for row in rows]

    async def _append(self, handle: Handle, rows: Sequence[_Found], *, once: bool) -> dict[int, _Fate]:
        """Appends the messages of rows of one owner, in order; returns what became of each row, by number."""
        fates: dict[int, _Fate] = {}
        ready: list[tuple[_Found, OutboxRow, int]] = []
        for one in rows:
            if not await self._is_its_turn(handle, one, fates):
                fates[one.seq] = _Fate.LATER
            elif one.row is None:
                fates[one.seq] = await self._park(handle, one, one.why)
            else:
                try:
                    ready.append((one, one.row, self._choose(one.row)))
                    fates[one.seq] = _Fate.IN_LOG
                except InvalidNameError as error:
                    fates[one.seq] = await self._park(handle, one, error_text(error))
        fates.update(await self._append_ready(handle, ready, once=once))
        return fates

    async def _append_ready(
        self, handle: Handle, ready: Sequence[tuple[_Found, OutboxRow, int]], *, once: bool
    ) -> dict[int, _Fate]:
        if not ready:
            return {}
        try:
            done = self._log.append_many([row for _, row, _ in ready], [queue for _, _, queue in ready], once=once)
        except InvalidMessageError as error:
            if len(ready) == 1:
                return {ready[0][0].seq: await self._park(handle, ready[0][0], error_text(error))}
            fates = {}
            for single in ready:
                fates.update(await self._append_ready(handle, [single], once=once))
            return fates
        fates = {}
        for (one, _, _), fate in zip(ready, done, strict=True):
            fates[one.seq] = _Fate.IN_LOG
            if fate == "in_doubt":
                why = "it may be in the log already, but the log no longer reaches back to the time of this message"
                fates[one.seq] = await self._park(handle, one, why)
        return fates

    async def _is_its_turn(self, handle: Handle, one: _Found, fates: dict[int, _Fate]) -> bool:
        """Tells whether all earlier rows of its message group are in the log, or go there before it."""
        if one.message_group is None or one.group_seq <= 1:
            return True
        earlier = await handle.fetch(SELECT_EARLIER, message_group=one.message_group, group_seq=one.group_seq)
        await handle.rollback()
        with self._lock:
            return all(
                (owner == one.owner and fates.get(seq) is _Fate.IN_LOG) or (owner == self.owner and seq in self._in_log)
                for owner, seq in earlier
            )

    async def _park(self, handle: Handle, one: _Found, why: str) -> _Fate:
        _log.error("a row of the outbox cannot be sent and is parked: %s", why, extra={"reason": why})
        await handle.begin()
        await handle.run(PARK, parked=why[:1000], owner=one.owner, seq=one.seq)
        await handle.commit()
        return _Fate.PARKED

    # Deletion

    def _finished(self, most: int) -> list[int]:
        """Takes rows whose messages are durable."""
        durable, now = self._log.durable_end(), time.monotonic()
        finished: list[int] = []
        with self._lock:
            while len(finished) < most and self._appended and self._appended[0][1] <= durable:
                seq, _ = self._appended.popleft()
                self._deleting[seq] = now
                finished.append(seq)
        return finished

    async def _delete_finished(self, handle: Handle) -> None:
        while finished := self._finished(_ROWS):
            await self._delete(handle, self.owner, finished)
            with self._lock:
                self._forget(finished)

    def _forget(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._deleting.pop(seq, None)
            self._claimed.discard(seq)
            self._in_log.discard(seq)

    async def _delete(self, handle: Handle, owner: int, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        await handle.begin()
        if self._deletes_itself:
            await handle.execute(NOT_DURABLE.named)
        await handle.execute(delete_from_outbox(owner, seqs))
        await handle.commit()

    # Rows of processes that have ended

    async def _take_over(self, handle: Handle) -> None:
        """Forwards the rows that earlier processes left for this log, until none is left that can be forwarded."""
        while await self._take_over_all(handle):
            pass

    async def _take_over_all(self, handle: Handle) -> int:
        after, last, taken = self._first_owner - 1, self._first_owner | 0xFFFF_FFFF, 0
        while True:
            _, owner = await handle.run(NEXT_OWNER, after=after, last=last)
            await handle.rollback()
            if owner is None:
                return taken
            if owner != self.owner:
                taken += await self._take_over_from(handle, owner)
            after = owner

    async def _take_over_from(self, handle: Handle, owner: int) -> int:
        first, taken = 0, 0
        while found := await self._fetch(handle, owner, first):
            fates = await self._append(handle, found, once=True)
            self._log.make_durable()
            done = [seq for seq, fate in fates.items() if fate is _Fate.IN_LOG]
            await self._delete(handle, owner, done)
            taken += len(done)
            first = found[-1].seq + 1
        if taken:
            _log.info("%d messages that a process left in the outbox are in the log", taken)
        return taken


def _decoded(owner: int, seq: int, message: bytes, message_group: str | None, group_seq: int | None) -> _Found:
    try:
        row, why = OutboxRow(bytes(message)), ""
    except TxStoreError as error:
        row, why = None, error_text(error)
    return _Found(owner, seq, row, message_group, group_seq or 0, why)
