"""Stream: the queues of brokers as a streaming source.

In:     offsets that Spark keeps in its checkpoint.
Out:    the next offset, and parts of queues for tasks.
Always: an offset has the queue offset where each queue's next message begins,
        `{"v": 4, "queues": {"orders": {"broker-a": {"0": 17}}}}`. The rows between two offsets are the same whenever
        they are pulled. A queue that appears while the query runs is first added with its first offset and no row.
        Queues without a route keep their offsets, because their broker may return.
Not here: pulling (`pull.py`), which queues there are (`queues.py`).
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from txstore._native import unique_id
from txstore.client.cluster import Cluster, MessageQueue
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    StoreCorruptError,
    TxStoreError,
)
from txstore.spark.network.partitions import NetworkPart, QueueRange, plan
from txstore.spark.network.pull import read_part
from txstore.spark.network.queues import QueueReads, cluster_of, reached
from txstore.spark.options import ReadOptions
from txstore.spark.schema import arrow_schema, warn_of_all_columns
from txstore.spark.triggers import check_stream, default_limit
from txstore.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

__all__ = ["NetworkStreamReader"]

_log = logging.getLogger("txstore.spark")

_VERSION = 4
_ROUTES_SECONDS = 1.0
_HEARTBEAT_SECONDS = 20.0  # RocketMQ's broker forgets a member after two minutes without one.
Offset = dict[str, Any]
Offsets = dict[MessageQueue, int]


class NetworkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the queues of brokers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        check_stream(options)
        # Opened at the first use, because Spark pickles the reader for its tasks before.
        self._opened: tuple[Cluster, QueueReads] | None = None
        self._known: list[MessageQueue] = []
        self._known_until = float("-inf")
        # The ends that the brokers stated last.
        self._ends: Offsets = {}
        # The ends when the query began, under Trigger.AvailableNow.
        self._targets: Offsets | None = None
        self._triggered: float | None = None
        # The group's offsets, as far as this query has stored them.
        self._stored: Offsets = {}
        self._client_id = f"{socket.gethostname()}@{unique_id()[-16:]}"
        self._member_until = float("-inf")
        self._warned: set[str] = set()
        self._batch: tuple[Offsets, Offsets] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    # What Spark calls

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where a new query begins. A restarted query continues from its checkpoint."""
        warn_of_all_columns(self._options, self._schema)
        try:
            with cluster_of(self._options, 0) as cluster:
                reads = QueueReads(self._options, cluster)
                queues = reads.queues(must_exist=True)
                return _to_json({queue: reads.start_of(queue, reads.span(queue)) for queue in queues})
        except (BrokerUnreachableError, BrokerTimeoutError) as error:
            raise reached(self._options, error) from error

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Returns where the next micro-batch ends. Spark 4.0 and 4.1 pass no arguments: it ends at the queues' ends."""
        ends = self._latest()
        if self._options.group is not None:
            self._be_member(self._options.group)
        if start is None:
            return _to_json(ends)
        begins = _from_json(start)
        # What a queue's broker says is never before what was read: a replica may be late.
        until = {queue: max(ends.get(queue, begin), begin) for queue, begin in begins.items()}
        if self._waits(begins, until, limit):
            return start
        until = self._limited(begins, until, limit)
        until |= {queue: self._reads.span(queue)[0] for queue in ends if queue not in begins}
        self._batch = begins, until
        # Unchanged, because Spark would treat an equal offset with other texts as a new batch.
        return start if until == begins else _to_json(until)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit of a micro-batch from the options. Of several, Spark passes on one."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where the queues end and how many messages the query has not read, for its progress."""
        latest = _to_json(self._ends)
        if self._batch is None:
            return latest
        rows = sum(max(0, end - self._batch[1].get(queue, 0)) for queue, end in self._ends.items())
        return {**latest, "lag": {"rows": rows}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the ends of the queues for this query."""
        self._targets = dict(self._latest())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Returns parts of the queues between two offsets."""
        begins, ends = _from_json(start), _from_json(end)
        ranges = [QueueRange(queue, begins.get(queue, until), until) for queue, until in sorted(ends.items())]
        for one in ranges:
            self._check(one)
        return plan(self._options, ranges, self._reads.row_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a part."""
        assert isinstance(partition, NetworkPart)
        return read_part(self._options, self._schema, partition)

    def commit(self, end: Offset) -> None:
        """Stores the group's offsets, if the options name a group. A failure is logged: the checkpoint has them."""
        if self._options.group is None:
            return
        self._be_member(self._options.group)
        for queue, queue_offset in _from_json(end).items():
            if self._stored.get(queue) == queue_offset:
                continue
            try:
                self._reads.store_offset(queue, self._options.group, queue_offset)
            except TxStoreError as error:
                self._warn(f"the offset of group {self._options.group} in {queue} could not be stored: {error}")
            else:
                self._stored[queue] = queue_offset

    def _be_member(self, group: str) -> None:
        """Sends a heartbeat to the brokers, unless they had one lately. The group exists then, and has this member."""
        now = time.monotonic()
        if now < self._member_until:
            return
        try:
            self._reads.join(list(self._ends), group, self._client_id)
        except TxStoreError as error:
            self._warn(f"this query could not register in group {group}: {error}")
        else:
            self._member_until = now + _HEARTBEAT_SECONDS

    def stop(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    # The brokers

    @property
    def _reads(self) -> QueueReads:
        if self._opened is None:
            cluster = cluster_of(self._options, self._options.fetch_timeout_ms / 1000)
            self._opened = cluster, QueueReads(self._options, cluster)
        return self._opened[1]

    def _latest(self) -> Offsets:
        """Returns the ends of all queues, at most the targets. Queues of a broker that is away keep their last end."""
        try:
            queues = self._queues()
        except (BrokerUnreachableError, BrokerTimeoutError) as error:
            raise reached(self._options, error) from error
        away: set[str] = set()
        for queue in queues:
            if queue.broker in away:
                continue
            try:
                self._ends[queue] = self._reads.end(queue)
            except (BrokerUnreachableError, BrokerTimeoutError) as error:
                away.add(queue.broker)
                self._warn(f"broker {queue.broker} is away, its queues wait: {error}")
        if away and away == {queue.broker for queue in queues}:
            text = f"option brokers: no broker of {self._options.brokers!r} answers: {', '.join(sorted(away))}"
            raise BrokerUnreachableError(f"{text}\nhint: start them", address=self._options.brokers)
        if self._targets is None:
            return self._ends
        return {queue: min(end, self._ends.get(queue, end)) for queue, end in self._targets.items()}

    def _queues(self) -> list[MessageQueue]:
        """Returns the queues to read, at most a second old."""
        now = time.monotonic()
        if now >= self._known_until:
            self._known = self._reads.queues(must_exist=False)
            self._known_until = now + _ROUTES_SECONDS
        return self._known

    def _check(self, one: QueueRange) -> None:
        """Raises StoreCorruptError if a queue ends before a batch that the checkpoint has."""
        if one.start > one.end:
            raise StoreCorruptError(
                f"{one.queue} ends at {one.end}, before the stream's offset {one.start}: the checkpoint is one of "
                "other brokers, or they lost messages\nhint: start with a new checkpoint and output",
                file=one.queue.broker,
                offset=one.end,
            )

    def _warn(self, text: str) -> None:
        """Logs a warning once."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    # Limits

    def _waits(self, begins: Offsets, until: Offsets, limit: ReadLimit | None) -> bool:
        """Returns whether a micro-batch waits for more rows, as `minOffsetsPerTrigger` and `maxTriggerDelay` say."""
        least = self._options.trigger_rows_min
        # With these triggers there is no later micro-batch that could have the rows.
        if least is None or self._targets is not None or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        is_late = self._triggered is None or (now - self._triggered) * 1000 >= self._options.trigger_delay_ms
        if _rows(begins, until) < (1 if is_late else least):
            return True
        self._triggered = now
        return False

    def _limited(self, begins: Offsets, until: Offsets, limit: ReadLimit | None) -> Offsets:
        """Returns ends with at most so many rows, or about so many bytes. Each queue has its share of them."""
        rows = _rows(begins, until)
        share = 1.0
        if isinstance(limit, ReadMaxRows):
            share = limit.max_rows / max(rows, 1)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            bytes_max = self._options.trigger_bytes_max
        if bytes_max is not None:
            sized = (
                (end - begins[queue]) * self._reads.row_bytes(queue, begins[queue])
                for queue, end in until.items()
                if end > begins[queue]
            )
            share = min(share, bytes_max / max(sum(sized), 1.0))
        if share >= 1 or not rows:
            return until
        return _shared(begins, until, max(1, int(rows * share)))


def _shared(begins: Offsets, until: Offsets, most: int) -> Offsets:
    """Divides `most` rows among the queues by what they have. Those that rounding cut most get what it left."""
    rows = _rows(begins, until)
    exact = {queue: (end - begins[queue]) * most / rows for queue, end in until.items()}
    found = {queue: begins[queue] + int(part) for queue, part in exact.items()}
    left = most - _rows(begins, found)
    for queue in sorted(exact, key=lambda one: (int(exact[one]) - exact[one], one))[:left]:
        found[queue] = min(found[queue] + 1, until[queue])
    return found


def _rows(begins: Offsets, until: Offsets) -> int:
    return sum(end - begins[queue] for queue, end in until.items() if queue in begins)


def _to_json(offsets: Mapping[MessageQueue, int]) -> Offset:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return {"v": _VERSION, "queues": found}


def _from_json(offset: Offset) -> Offsets:
    """Parses an offset. Raises InvalidOptionError for one of files, or of another version."""
    try:
        if offset["v"] != _VERSION:
            raise ValueError
        return {
            MessageQueue(topic, broker, int(queue)): int(at)
            for topic, brokers in offset["queues"].items()
            for broker, queues in brokers.items()
            for queue, at in queues.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidOptionError(
            f"option checkpointLocation: {offset!r} is not an offset of queues: the checkpoint is one of a stream of "
            "files, or of another version of txstore\nhint: start with a new checkpoint and output",
            option="checkpointLocation",
        ) from None
