"""Forwarder: appends the messages of committed rows to the log, and deletes the rows when the messages are durable.

In:     rows that this process inserts; rows that other processes left.
Out:    messages in the log.
Always: a message is appended only after its row was read as committed, and by one thread. A row is deleted only when
        its message is durable. While a service on SQLite sends, nothing is written: finished rows are deleted by its
        next transactions with a message, and the rest when the forwarder closes. With a remote log, other processes
        look for rows that wait, so there the rest is deleted when the service has sent nothing for a while.
Not here: the user's transaction (`producer`).

Each row has an owner: a forwarder, whose random number begins the row's id. A process that has opened a store takes
over the rows of all other owners at once: they have ended, or are clients, whose messages are not stored twice. Later,
and with a remote log, it takes over rows that wait for long (`unattended`).

::

    inserted ──► claimed ──► appended ──► (durable) deleting ──► gone
                    │  an earlier row of its message group waits: inserted again
                    └─ it can never be sent: parked
"""

import asyncio
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

from txstore._native import OutboxRow
from txstore.coroutines import run_now
from txstore.database.fork import inside_database, outside_database
from txstore.database.outbox.appended import Appended
from txstore.database.outbox.appending import Appending, Fate, Row, decoded
from txstore.database.outbox.expected import Expected
from txstore.database.outbox.ids import ROW_ID_MAX, ids_of, new_owner
from txstore.database.outbox.sent import expire_sent
from txstore.database.outbox.unattended import Unattended
from txstore.database.session import Handle, is_asynchronous, named, open_handle
from txstore.database.statements import (
    FORGET_LOG,
    LOCK_FREE,
    NEXT_ROW,
    NOT_DURABLE,
    REMEMBER_LOG,
    SELECT_IDS,
    SELECT_IDS_SQLITE,
    SELECT_OUTBOX,
    SELECT_OUTCOME,
    Statement,
    finish,
)
from txstore.errors import (
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidMessageError,
    InvalidNameError,
    StoreClosedError,
    TxStoreError,
)
from txstore.forks import at_fork
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import OutboxLog

if TYPE_CHECKING:
    from txstore.database.outbox.waiting import OutboxStatus

__all__ = ["Forwarder", "RowDatabase"]

_log = logging.getLogger("txstore.database.outbox")

_ROWS = 500  # Read, appended and deleted in one step.
_DELETE_ROWS = 32, 100  # Deleted by one transaction of a service on SQLite, at least and at most.
_CLAIMED_SECONDS = 1.0  # A commit waits at most so long for the thread that has claimed its row.
_POLL_SECONDS = (0.002, 0.1)  # Between two looks for commits, at least and at most.
_STEADY_SECONDS = 0.01  # At most, while looks find rows, but few.
_FEW_ROWS = 32  # A look takes about as long without rows as with so many.
_LOOKING_SHARE = 0.1  # Of the time; so looks become rarer, and find more rows, where each one takes longer.
_DELETE_STEPS = 20  # In one transaction on SQLite, whose commit waits for the disk.
_DELETE_SECONDS = 0.2  # Between two deletions by the forwarder.
_RECENT_SECONDS = 5.0  # Rows of longer transactions are found by the search through all rows.
_SEARCH_SECONDS = 1.0  # Between two searches through all rows, at least.
_SEARCHING_SHARE = 0.02  # Of the time; PostgreSQL passes rows that were deleted but cannot be vacuumed.
_SEARCHED_ROWS = 5000  # In one step.
_IDLE_SECONDS = 5.0  # Between two looks when nothing is expected.
_RETRY_SECONDS = (0.1, 5.0)
_DELETE_SOON_SECONDS = 1.0  # The same on SQLite with a remote log.
_QUIET_SECONDS = 2.0  # Without a message, before the forwarder deletes on SQLite.
_WATCH_SECONDS = 2.0  # Between two looks for rows that other processes left.
_WATCHED_ROWS = 20_000  # Of each owner.
_EXPIRE_SECONDS = 10.0  # Between two removals of rows that were kept.
_OLD_SECONDS = 60.0  # A warning says that a row has waited this long; repeated as often.
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)
_NEVER = (InvalidMessageError, InvalidNameError)


class RowDatabase(Protocol):
    """The database that holds the rows: a `txstore.database.Database`."""

    @property
    def source(self) -> Any: ...
    @property
    def is_identified(self) -> bool: ...
    def identity(self) -> str: ...
    def forget_identity(self) -> str: ...
    @property
    def keep_sent_ms(self) -> int | None: ...
    def outbox_status(self, destination: int, own: range, in_log: Set[int]) -> "OutboxStatus": ...


class Forwarder:
    """Forwards the rows that one process inserts for one log. Thread-safe."""

    def __init__(
        self,
        database: RowDatabase,
        log: OutboxLog,
        choose: Callable[[OutboxRow], int],
        *,
        take_over_seconds: float | None = None,
    ) -> None:
        """`take_over_seconds` replaces the log's."""
        self.database = database
        self._log = log
        self._choose = choose
        self._take_over_seconds = log.take_over_seconds if take_over_seconds is None else take_over_seconds
        self._watch_seconds = max(self._take_over_seconds, _POLL_SECONDS[1])
        self.destination = log.destination
        self.chooses_later: bool = log.is_remote
        """Whether queues are chosen when rows are forwarded: before, it would wait for another process."""
        self.checks_durability = True
        """Whether nobody has looked yet if the database may lose commits."""
        self.taken_over = 0
        """How many rows of other processes were forwarded."""
        self._remembers = log.remembered_as is None
        """Whether the database knows the log."""
        self.failure: TxStoreError | None = None
        """Why nothing can be forwarded at present: the broker or the database cannot be reached."""
        self._closed = False
        self._begin()
        _forwarders.add(self)

    def _begin(self) -> None:
        """Begins as an owner without rows, without a thread: at first, and in a forked process."""
        self._own = new_owner()
        self.new_id = itertools.count(self._own.start).__next__
        """Returns the id of a new row."""
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        """Notified when rows that were claimed are in the log, or no longer claimed."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._unattended = Unattended(self._take_over_seconds)
        self._appending = Appending(self._log, self._choose, self._own, self._those_in_log, self._warn_if_old)
        self._next_search = self._next_watch = self._next_warning = self._next_expiry = 0.0
        self._is_sqlite = False
        self._is_idle = self._is_asleep = False
        self._deletes_itself = True
        self._last_insert = self._next_delete = 0.0
        self._inserted = Expected()
        self._claimed: set[int] = set()
        self._in_log: set[int] = set()
        self._appended = Appended()
        self._deleting: dict[int, float] = {}
        """With the time since when."""

    # For producers

    def start(self) -> None:
        """Starts the thread, which first forwards what earlier processes left. Idempotent. Raises StoreClosedError."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("the broker is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="txstore-forwarder", daemon=True)
                self._thread.start()

    def inserted(
        self, row_id: int, row: OutboxRow, group_seq: int, queue_id: int | None, *, has_hook: bool
    ) -> tuple[str, ...]:
        """Notes a row in an open transaction, whose commit is looked for unless a hook tells it. Returns statements to
        execute in that transaction: they delete finished rows, on SQLite."""
        since = time.monotonic()
        if self._thread is None:
            self.start()  # In a forked process.
        with self._lock:
            self._inserted.add(row_id, row, queue_id, since, group_seq=group_seq)
        self._last_insert = since
        if self._is_idle and (not has_hook or self._is_asleep):
            self._wake.set()
        # Most calls end here, so the first comparison takes no lock.
        if self._is_sqlite and self._appended.first_end <= self._log.durable_end():
            least, most = _DELETE_ROWS
            is_due = self._deletes_itself and since >= self._next_delete
            if (is_due or len(self._appended) >= least) and (finished := self._finished(most)):
                self._next_delete = since + _DELETE_SOON_SECONDS
                return finish(finished, "sqlite", self.database.keep_sent_ms)
        return ()

    def committed(self, row_id: int, row: OutboxRow, queue_id: int) -> None:
        """Appends the message of a row that was read as committed, or waits while the thread does. Never waits for a
        disk, nor long for a thread that cannot append it now."""
        with self._lock:
            if row_id in self._claimed:
                self._settled.wait_for(lambda: row_id in self._in_log or row_id not in self._claimed, _CLAIMED_SECONDS)
                return
            self._claimed.add(row_id)
            self._inserted.pop(row_id)
        try:
            is_in_log = self._log.append(row, queue_id) != "in_doubt"
        except Exception as error:
            _log.warning("a message could not be appended at its commit: %s", error_text(error))
            is_in_log = False
        if is_in_log:
            self._note_appended([row_id])
        else:
            # The thread tries again, and parks a row that can never be sent.
            self._again([Row(row_id, None, None, 0)])

    @property
    def name(self) -> str:
        """The database, without its password."""
        return named(self.database.source)

    def status(self) -> "OutboxStatus":
        """Returns how many rows wait for the log, of all processes."""
        with self._lock:
            in_log = frozenset(self._in_log)
        return self.database.outbox_status(self.destination, self._own, in_log)

    def look(self) -> None:
        """Makes the thread look for committed rows now."""
        if self._is_idle:
            self._wake.set()

    def rolled_back(self, ids: Iterable[int]) -> None:
        """Stops looking for rows that probably were rolled back. A search finds them if they were not."""
        with self._lock:
            for row_id in ids:
                self._inserted.pop(row_id)

    def close(self, timeout: float) -> None:
        """Forwards and deletes what is committed, then stops, within `timeout` seconds. What is left is forwarded when
        a broker opens the store again."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._closing.set()
        self._wake.set()
        if thread is not None:
            thread.join(timeout)

    # The thread

    def _run(self) -> None:
        with inside_database():
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
                    self._is_sqlite = await handle.dialect() == "sqlite"
                    self._deletes_itself = self._log.is_remote or not self._is_sqlite
                    await handle.rollback()
                    if not self._log.is_remote:
                        await self._take_over(handle)
                    pause = _RETRY_SECONDS[0]
                    await self._forward(handle)
                    return
                finally:
                    await handle.close()
            except Exception as error:
                self.failure = error if isinstance(error, TxStoreError) else TxStoreError(error_text(error))
                if self._closed:
                    _log.warning("rows of the outbox are left for the next opening: %s", error_text(error))
                    return
                if self._log.is_remote and isinstance(error, StoreClosedError):
                    return  # The program ends, and has not closed the broker.
                _log.warning("the outbox could not be forwarded, and is tried again: %s", error_text(error))
            self._rest(pause)
            pause = min(pause * 2, _RETRY_SECONDS[1])

    async def _forward(self, handle: Handle) -> None:
        pause, retry = _POLL_SECONDS[0], _RETRY_SECONDS[0]
        while True:
            is_last, start = self._closed, self._start()
            forwarded = await self._forward_own(handle, everything=is_last or start >= self._next_search)
            if start >= self._next_watch and not is_last:
                await self._forward_unattended(handle)
            self.failure = self._appending.away
            if is_last:
                with outside_database():
                    self._log.make_durable()
            await self._delete_if_due(handle, is_last=is_last)
            if is_last:
                return
            if self._appending.away is not None:
                self._unattended.forget()
                _log.info("the outbox waits for the broker: %s", error_text(self._appending.away))
                await self._warn_if_old(handle, self._appending.away)
                self._rest(retry)
                retry, self._next_search = min(retry * 2, _RETRY_SECONDS[1]), 0.0
                continue
            retry = _RETRY_SECONDS[0]
            pause = _next_pause(pause, forwarded)
            if not self._wait(min(max(pause, (time.monotonic() - start) / _LOOKING_SHARE), _POLL_SECONDS[1])):
                pause = _POLL_SECONDS[0]

    def _start(self) -> float:
        self._appending.away = None
        return time.monotonic()

    def _rest(self, pause: float) -> None:
        """Waits before the next attempt; not when the forwarder closes."""
        if not self._closed:
            with outside_database():
                self._wake.wait(pause)
            self._wake.clear()

    def _wait(self, pause: float) -> bool:
        """Waits for the next look. While rows are expected, `pause` collects commits for one step. Returns whether they
        were."""
        with self._lock:
            self._is_idle = not self._closed and not self._inserted
            waits = self._deletes_itself and bool(self._appended)
        if not self._is_idle:
            with outside_database():
                self._closing.wait(pause)
            return True
        self._is_asleep = not waits and time.monotonic() - self._last_insert > _RECENT_SECONDS
        with outside_database():
            self._wake.wait(min(_IDLE_SECONDS, self._watch_seconds) if self._is_asleep else _POLL_SECONDS[1])
        self._wake.clear()
        self._is_idle = self._is_asleep = False
        return False

    async def _forward_own(self, handle: Handle, *, everything: bool) -> int:
        """Appends the messages of this process's committed rows; returns how many."""
        first, forwarded = await self._first_new(handle, everything=everything), 0
        if first is None:
            return 0
        while True:
            ids = await self._ids(handle, first, _ROWS)
            new = await self._claim(handle, ids)
            try:
                fates = await self._appending.append(handle, new, once=False)
            except BaseException:
                self._again(new)
                raise
            in_log = [row_id for row_id, fate in fates.items() if fate is Fate.IN_LOG]
            self._note_appended(in_log)
            forwarded += len(in_log)
            if len(in_log) < len(new):
                self._again(one for one in new if fates[one.id] is Fate.LATER)
                # The next search finds these.
                self._drop(one.id for one in new if fates[one.id] in (Fate.FAILED, Fate.PARKED))
                forwarded += sum(fate in (Fate.LATER, Fate.PARKED) for fate in fates.values())
            if len(ids) < _ROWS or self._appending.away is not None:
                return forwarded
            # Not only after the last row, because other processes take over the rows of one that deletes none.
            await self._delete_if_due(handle, is_last=False)
            first = ids[-1] + 1

    async def _first_new(self, handle: Handle, *, everything: bool) -> int | None:
        """Returns the id from which rows may be new; None if none is expected."""
        if everything:
            return await self._search(handle)
        with self._lock:
            return self._inserted.first()

    async def _search(self, handle: Handle) -> int | None:
        """Searches through all rows; returns the first one that is not claimed."""
        began, first, found = time.monotonic(), self._own[0], None
        with self._lock:
            deleting = sorted(self._deleting, reverse=True)
        gone: list[int] = []
        while found is None or deleting:
            ids = await self._ids(handle, first, _SEARCHED_ROWS)
            is_end = len(ids) < _SEARCHED_ROWS
            committed = set(ids)
            while deleting and (is_end or deleting[-1] <= ids[-1]):
                row_id = deleting.pop()
                gone.extend([] if row_id in committed else [row_id])
            if found is None:
                with self._lock:
                    found = next((row_id for row_id in ids if row_id not in self._claimed), None)
            if is_end:
                break
            first = ids[-1] + 1
        now = time.monotonic()
        self._next_search = now + max(_SEARCH_SECONDS, (now - began) / _SEARCHING_SHARE)
        with self._lock:
            # On SQLite, a transaction of the service deletes finished rows. It may last long, or roll back. On others,
            # a transaction may have locked them.
            self._forget(gone)
            left = [row_id for row_id, since in self._deleting.items() if now - since > _RECENT_SECONDS]
            for row_id in left:
                del self._deleting[row_id]
            self._appended.add_finished(left)
            for row_id in self._inserted.before(now - _RECENT_SECONDS):
                self._inserted.pop(row_id)
        return found

    async def _claim(self, handle: Handle, ids: Sequence[int]) -> list[Row]:
        """Returns the rows that no other thread appends, in their order."""
        with self._lock:
            new = [self._inserted.pop(row_id) for row_id in ids if row_id not in self._claimed]
            self._claimed.update([one.id for one in new])
        missing = [one.id for one in new if one.row is None]
        if not missing:
            return new
        try:
            read = {one.id: one for one in await self._read(handle, missing[0], self._own)}
        except BaseException:
            self._again(new)
            raise
        gone = [one.id for one in new if one.row is None and one.id not in read]
        with self._lock:
            self._claimed.difference_update(gone)
            self._settled.notify_all()
        return [one if one.row is not None else read[one.id] for one in new if one.row is not None or one.id in read]

    def _note_appended(self, ids: list[int]) -> None:
        end = self._log.appended_end()
        with self._lock:
            self._in_log.update(ids)
            self._appended.add(ids, end)
            self._settled.notify_all()

    def _again(self, rows: Iterable[Row]) -> None:
        """Makes rows wait for the next look."""
        now = time.monotonic()
        with self._lock:
            for row in rows:
                self._claimed.discard(row.id)
                self._inserted.add(row.id, row.row, row.queue_id, now, group_seq=row.group_seq)
            self._settled.notify_all()

    def _drop(self, ids: Iterable[int]) -> None:
        with self._lock:
            self._claimed.difference_update(ids)
            self._settled.notify_all()

    async def _warn_if_old(self, handle: Handle, error: TxStoreError) -> None:
        """Warns if the oldest row of this process has waited for long."""
        now = time.monotonic()
        if now < self._next_warning:
            return
        rows = await handle.fetch(SELECT_OUTBOX, first=self._own[0], last=self._own[-1], rows=1)
        await handle.rollback()
        oldest = decoded(*rows[0]).row if rows else None
        seconds = 0.0 if oldest is None else time.time() - oldest.born_timestamp.timestamp()
        if seconds >= _OLD_SECONDS:
            self._next_warning = now + _OLD_SECONDS
            _log.warning("messages wait in the outbox for %d s: %s", seconds, error_text(error))
        else:
            self._next_warning = now + _OLD_SECONDS / 10

    def _those_in_log(self, ids: Iterable[int]) -> set[int]:
        with self._lock:
            return self._in_log.intersection(ids)

    async def _fetch(
        self, handle: Handle, select: Statement, first: int, ids: range, limit: int | None = None
    ) -> Sequence[Sequence[Any]]:
        rows = await handle.fetch(select, first=first, last=ids[-1], rows=limit or _ROWS)
        await handle.rollback()
        return rows

    async def _ids(self, handle: Handle, first: int, limit: int) -> list[int]:
        """Returns the ids of own rows that are committed and not parked, in their order."""
        if not self._is_sqlite:
            return [row_id for (row_id,) in await self._fetch(handle, SELECT_IDS, first, self._own, limit)]
        # Python's lock changes hands at each row of a result, so there is one row.
        [(found,)] = await self._fetch(handle, SELECT_IDS_SQLITE, first, self._own, limit)
        return [] if found is None else sorted(map(int, found.split(b",")))

    async def _read(self, handle: Handle, first: int, ids: range) -> list[Row]:
        return [decoded(*row) for row in await self._fetch(handle, SELECT_OUTBOX, first, ids)]

    # Deletion

    def _finished(self, most: int) -> list[int]:
        """Takes rows whose messages are durable."""
        durable = self._log.durable_end()
        with self._lock:
            finished = self._appended.take(most, durable)
            if finished:
                self._deleting.update(dict.fromkeys(finished, time.monotonic()))
        return finished

    async def _delete_if_due(self, handle: Handle, *, is_last: bool) -> None:
        """Deletes finished rows if it is time. A transaction on SQLite that has read fails if another one writes."""
        now = time.monotonic()
        is_due = self._deletes_itself and now >= self._next_delete
        if is_last or (is_due and (not self._is_sqlite or now - self._last_insert >= _QUIET_SECONDS)):
            self._next_delete = now + (_DELETE_SOON_SECONDS if self._is_sqlite else _DELETE_SECONDS)
            has_written = await self._delete_finished(handle)
            if has_written or is_last or not self._is_sqlite:  # On SQLite, never when it would not write anyway.
                await self._remember_log(handle)

    async def _remember_log(self, handle: Handle) -> None:
        """Makes the database remember the log, so that the next process can start while the broker is away."""
        if self._remembers or self._log.remembered_as is None or self._appending.away is not None:
            return
        name, log = self._log.remembered_as
        _, known = await handle.run(SELECT_OUTCOME, transaction_id=name)
        await handle.rollback()
        if known != log:
            await handle.begin()
            await handle.run(FORGET_LOG, name=name)
            await handle.run(REMEMBER_LOG, name=name, log=log)
            await handle.commit()
        self._remembers = True

    async def _delete_finished(self, handle: Handle) -> bool:
        """Deletes all finished rows; returns whether there were any."""
        has_written, steps = False, _DELETE_STEPS if self._is_sqlite else 1
        while finished := [ids for _ in range(steps) if (ids := self._finished(_ROWS))]:
            has_written = True
            deleted = await self._delete(handle, *finished)
            with self._lock:
                self._forget(deleted)  # A search finds the others.
        return has_written

    def _forget(self, ids: Iterable[int]) -> None:
        gone = set(ids)
        self._claimed -= gone
        self._in_log -= gone
        for row_id in gone:
            self._deleting.pop(row_id, None)

    async def _delete(self, handle: Handle, *steps: Sequence[int]) -> set[int]:
        """Deletes rows in one transaction, with a statement for each step; returns which. It waits for no other
        transaction: the process that has locked a row may be stopped."""
        deleted: set[int] = set()
        await handle.begin()
        dialect = await handle.dialect()
        if dialect == "postgresql":
            await handle.execute(NOT_DURABLE.named)
        for ids in steps:
            free = await self._lock_free(handle, ids)
            for statement in finish(free, dialect, self.database.keep_sent_ms) if free else ():
                await handle.execute(statement)
            deleted |= free
        await handle.commit()
        await self._expire(handle, dialect)
        return deleted

    async def _lock_free(self, handle: Handle, ids: Iterable[int]) -> set[int]:
        """Locks rows, except those that another transaction has locked or deleted. On SQLite, all are free: the whole
        database is locked, or nothing."""
        if self._is_sqlite:
            return set(ids)
        return {row_id for (row_id,) in await handle.fetch(LOCK_FREE, ids=f"[{','.join(map(str, ids))}]")}

    async def _expire(self, handle: Handle, dialect: str) -> None:
        """Removes rows that were kept for long enough. On SQLite, each deletion of finished rows does."""
        keep_ms, now = self.database.keep_sent_ms, time.monotonic()
        if keep_ms is not None and dialect != "sqlite" and now >= self._next_expiry:
            self._next_expiry = now + _EXPIRE_SECONDS
            await expire_sent(handle, keep_ms)

    # Rows of other processes

    async def _forward_unattended(self, handle: Handle) -> None:
        """Forwards the rows that other processes have left for long."""
        began, waiting = time.monotonic(), dict[int, list[int]]()
        for ids in await self._others(handle):
            rows = await handle.fetch(SELECT_IDS, first=ids[0], last=ids[-1], rows=_WATCHED_ROWS)
            await handle.rollback()
            waiting[ids.start] = [row_id for (row_id,) in rows]
        now = time.monotonic()
        pause = min(_WATCH_SECONDS, self._watch_seconds)
        self._next_watch = now + max(pause, (now - began) / _SEARCHING_SHARE)
        due = self._unattended.look(waiting, now)
        taken = 1
        while due and taken and self._appending.away is None and not self._closed:
            # Again, because rows of a message group may have waited for those of another owner.
            taken = 0
            for owner, left in due.items():
                taken += await self._take_over_from(handle, ids_of(owner), left)

    async def _others(self, handle: Handle) -> list[range]:
        """Returns the ids of each other owner that has rows for this log."""
        others: list[range] = []
        # Not the own ids, because PostgreSQL passes each row that was deleted but cannot be vacuumed.
        for after, last in ((-1, self._own[0] - 1), (self._own[-1], ROW_ID_MAX)):
            while found := await handle.fetch(NEXT_ROW, after=after, last=last):
                [(row_id, destination)] = found
                ids = ids_of(row_id)
                if destination == self.destination:
                    others.append(ids)
                after = ids[-1]
        await handle.rollback()
        return others

    async def _take_over(self, handle: Handle) -> None:
        """Forwards all rows that other processes left for this log, until none is left that can be forwarded."""
        taken = 1
        while taken:
            taken = 0
            for ids in await self._others(handle):
                taken += await self._take_over_from(handle, ids)

    async def _take_over_from(self, handle: Handle, ids: range, due: set[int] | None = None) -> int:
        """Forwards the rows of another owner, or those of them that are due."""
        if due is not None:
            ids = range(min(due), max(due) + 1)
        first, taken = ids[0], 0
        while first in ids and (found := await self._read(handle, first, ids)):
            # A locked row is being deleted, so its message is in the log; its owner may have been stopped meanwhile.
            free = await self._lock_free(handle, [one.id for one in found if due is None or one.id in due])
            await handle.rollback()
            rows = [one for one in found if one.id in free]
            fates = await self._appending.append(handle, rows, once=True)
            with outside_database():
                self._log.make_durable()
            done = [row_id for row_id, fate in fates.items() if fate is Fate.IN_LOG]
            if done:
                taken += len(await self._delete(handle, done))
            self._unattended.taken(ids_of(ids[0]).start, done)
            first = found[-1].id + 1
            if self._appending.away is not None or self._closed:
                break
        self.taken_over += taken
        if taken:
            _log.info("%d messages that a process left in the outbox are in the log", taken)
        return taken


def _next_pause(pause: float, forwarded: int) -> float:
    """Returns how long the next look should wait after one that has forwarded so many rows."""
    if forwarded > 2 * _FEW_ROWS:
        return max(pause / 2, _POLL_SECONDS[0])
    if forwarded >= _FEW_ROWS:
        return min(pause, _STEADY_SECONDS)
    return min(2 * pause, _STEADY_SECONDS if forwarded else _POLL_SECONDS[1])


_forwarders: "weakref.WeakSet[Forwarder]" = weakref.WeakSet()


def _begin_in_child() -> None:
    """Gives a forked process forwarders of its own: the parent forwards the rows that it has inserted."""
    for forwarder in _forwarders:
        forwarder._begin()


at_fork(after_in_child=_begin_in_child)
