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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txstore import LocalTransactionState, Message
from txstore.broker.batch_records import BATCH_LABEL
from txstore.spark.sink.options import WriteOptions
from txstore.spark.sink.record import BatchRecord
from txstore.spark.sink.rows import RowMessage, check_columns, messages_of
from txstore.spark.sink.target import Target, Waiting

__all__ = ["MessageWriter", "Written", "publish", "roll_back", "written"]

_MESSAGES_MAX = 1_000  # Of one transaction.
_BYTES_MAX = 4 << 20
_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_TEN_YEARS = str(10 * 365 * 86_400)  # No producer is asked: the record of the batch decides.


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
            # The next rows are read while these are stored. Leaving the block waits for them.
            with ThreadPoolExecutor(1) as thread:
                under_way: Future[None] | None = None
                for rows in _groups(row for one in batches for row in messages_of(one, options.topic)):
                    if under_way is not None:
                        under_way.result()
                    under_way = thread.submit(_store, target, rows, label, stored)
                if under_way is not None:
                    under_way.result()
        except BaseException:
            target.end(stored, LocalTransactionState.ROLLBACK)
            raise
    return Written(tuple(stored))


def _store(target: Target, rows: list[RowMessage], label: str, stored: list[Waiting]) -> None:
    """Stores rows, and adds their transaction to those that are stored."""
    if target.is_transactional:
        stored.append(target.prepare(_labelled(rows, label)))
    else:
        target.send(rows)


def _groups(rows: Iterable[RowMessage]) -> Iterator[list[RowMessage]]:
    """Yields rows that are stored together, within the limits of a transaction."""
    group: list[RowMessage] = []
    size = 0
    for row in rows:
        length = len(row.message.body)
        if group and (len(group) >= _MESSAGES_MAX or size + length > _BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(row)
        size += length
    if group:
        yield group


def _labelled(rows: list[RowMessage], label: str) -> list[RowMessage]:
    """Adds to the first message, whose transaction it is, which batch it is of."""
    first = rows[0].message
    message = Message(
        first.topic,
        first.body,
        tags=first.tags,
        keys=first.keys,
        properties={**first.properties, BATCH_LABEL: label, _IMMUNITY: _TEN_YEARS},
        message_group=first.message_group,
    )
    return [RowMessage(message, rows[0].queue_id), *rows[1:]]


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
