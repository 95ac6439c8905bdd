"""Writer: a batch as messages, each row once on a store of txstore.

In:     rows of tasks, in Arrow batches.
Out:    messages. On txstore the tasks store transactions that nobody sees; the driver stores one record that names
        those of the tasks that count, and then commits them.
Always: a batch that was recorded is not published again. After a kill between the record and the last commit, the batch
        is written again, and its record is what is committed. What its tasks stored this time is rolled back.
Not here: requests (`target.py`), micro-batches (`stream_writer.py`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txstore import LocalTransactionState
from txstore._native import SinkRows
from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.record import BatchRecord
from txstore.spark.sink.rows import check_columns, rows_of
from txstore.spark.sink.target import Target, Waiting

__all__ = ["MessageWriter", "Written", "publish", "roll_back", "written"]

_MESSAGES_MAX = 1_000  # Of one transaction.
_BYTES_MAX = 4 << 20
_REQUESTS_MAX = 3  # One is stored, one is synced, one is on its way.


@dataclass
class Written(WriterCommitMessage):
    """What one task stored."""

    transactions: tuple[Waiting, ...]


class MessageWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        # Without a name, the batch is this write alone.
        self._options = options
        self._app = options.app or f"once-{uuid.uuid4().hex}"
        self._batch = options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stores the rows of a task."""
        return written(self._options, self._app, self._batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes the batch."""
        publish(self._options, self._app, self._batch, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Rolls back what the tasks stored."""
        roll_back(self._options, messages)


def written(options: WriteOptions, app: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Written:
    """Stores the rows of a task. If it fails, what it has stored is rolled back."""
    label = f"{app}:{batch}"
    with Target(options) as target:
        stored: list[Waiting] = []
        try:
            _store(target, (target.storing(*group, label) for group in _groups(batches, options.topic)), stored)
        except BaseException:
            target.end(stored, LocalTransactionState.ROLLBACK)
            raise
    return Written(tuple(stored))


def _store(target: Target, calls: Iterator[Callable[[], Waiting | None]], stored: list[Waiting]) -> None:
    """Makes calls, a few at a time, while the next ones are prepared. Adds what is stored, in the order of the calls.

    When it returns or raises, no call is under way.
    """
    # Messages that are visible at once keep their order.
    ahead = _REQUESTS_MAX if target.is_transactional else 1
    under_way: deque[Future[Waiting | None]] = deque()
    with ThreadPoolExecutor(ahead) as threads:
        try:
            for call in calls:
                if len(under_way) >= ahead:
                    _add(stored, under_way.popleft())
                under_way.append(threads.submit(call))
            while under_way:
                _add(stored, under_way.popleft())
        finally:
            # After a failure, those that were under way are stored, too.
            for future in under_way:
                if future.exception() is None:
                    _add(stored, future)


def _add(stored: list[Waiting], future: Future[Waiting | None]) -> None:
    one = future.result()
    if one is not None:
        stored.append(one)


def _groups(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[tuple[SinkRows, int, int]]:
    """Yields rows that are stored together, within the limits of a transaction."""
    for rows in rows_of(batches, topic, _MESSAGES_MAX):
        start = 0
        while start < rows.count:
            end = rows.group_end(start, _MESSAGES_MAX, _BYTES_MAX)
            yield rows, start, end
            start = end


def publish(options: WriteOptions, app: str, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Stores the record of a batch, and then commits its transactions."""
    ours = _transactions(messages)
    with Target(options) as target:
        if not target.is_transactional:
            return
        record = BatchRecord(app, batch, ours)
        decided = BatchRecord.from_json(target.record(app, batch, record.to_json()))
        if decided.transactions != ours:
            target.end(ours, LocalTransactionState.ROLLBACK)
        target.end(decided.transactions, LocalTransactionState.COMMIT)


def roll_back(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Rolls back what tasks stored."""
    ours = _transactions(messages)
    if ours:
        with Target(options) as target:
            target.end(ours, LocalTransactionState.ROLLBACK)


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> tuple[Waiting, ...]:
    return tuple(one for message in messages if isinstance(message, Written) for one in message.transactions)
