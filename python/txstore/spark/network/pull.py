"""Pull: what a task does with its ranges of queues.

In:     ranges of queue offsets.
Out:    Arrow batches, in the order of the queues.
Always: the next pull is on its way while an answer is decoded. The bytes of an answer are decoded by the engine; Python
        has no object per message. A broker that is away is asked at its replicas, then again until `fetchTimeout`;
        each message of a range is read once, whatever happened meanwhile.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import pyarrow as pa

from txstore._native import Frame, PulledRecords, RemotingCommand, RequestCode, ResponseCode
from txstore.client.cluster import Cluster, PullAhead
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    OffsetTooOldError,
    ProtocolError,
    StoreCorruptError,
    TxStoreError,
)
from txstore.remoting.refusals import refusal
from txstore.spark.network.partitions import NetworkPart, QueueRange
from txstore.spark.network.queues import cluster_of, pull_fields, reached
from txstore.spark.options import ReadOptions
from txstore.spark.schema import OF_SOURCE, with_source

__all__ = ["read_part"]

_log = logging.getLogger("txstore.spark")

_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
_WAITS = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


def read_part(options: ReadOptions, schema: pa.Schema, part: NetworkPart) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a part, with exactly Spark's schema. An error names the host."""
    try:
        with cluster_of(options, options.fetch_timeout_ms / 1000) as cluster:
            yield from _Pulls(options, schema, cluster).batches(part)
    except (BrokerUnreachableError, BrokerTimeoutError) as error:
        failed = reached(options, error)
        failed.add_note(_task(part))
        raise failed from error
    except TxStoreError as error:
        error.add_note(_task(part))
        raise


def _task(part: NetworkPart) -> str:
    each = ", ".join(f"{one.queue} from {one.start} to {one.end}" for one in part.ranges[:5])
    return f"in a task on host {socket.gethostname()}: {each}{', …' if len(part.ranges) > 5 else ''}"


class _Pulls:
    """The pulls of one task."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, cluster: Cluster) -> None:
        self._options, self._schema, self._cluster = options, schema, cluster
        columns = [name for name in schema.names if name not in OF_SOURCE]
        self._records = PulledRecords(
            # Without any column there would be no rows, and size is the cheapest.
            columns or ["size"],
            transaction_types=None if options.transaction_types is None else list(options.transaction_types),
            start_store_ms=options.start_store_ms,
            end_store_ms=options.end_store_ms,
            batch_rows=options.batch_rows,
            batch_bytes=options.batch_bytes,
            skip_bad_records=options.skip_bad_records,
        )
        self._lost = 0

    def batches(self, part: NetworkPart) -> Iterator[pa.RecordBatch]:
        broker: str | None = None
        for one in part.ranges:
            # A batch has the rows of one broker, because its name is a column.
            if broker not in (None, one.queue.broker):
                yield from self._rest(broker)
            broker = one.queue.broker
            for frame in self._frames(one):
                yield self._batch(frame, broker)
        yield from self._rest(broker)
        if self._lost or self._records.bad_records:
            text = "%s: skipped %d bad records, and %d messages that the brokers no longer have"
            _log.warning(text, _task(part), self._records.bad_records, self._lost)

    def _frames(self, one: QueueRange) -> Iterator[Frame]:
        """Yields full batches while a range is pulled."""
        at = one.start
        ahead: PullAhead | None = None
        while at < one.end:
            answer = None if ahead is None else self._cluster.finish(ahead)
            answer, following = self._pulled(one, at, answer)
            ahead = self._ahead(one, following) if following < one.end else None
            if answer is not None:
                self._records.add(answer, at, one.end)
                while (frame := self._records.full()) is not None:
                    yield frame
            at = following

    def _ahead(self, one: QueueRange, at: int) -> PullAhead | None:
        fields = pull_fields(self._options, one.queue, at, self._most(one, at))
        return self._cluster.begin(one.queue, RequestCode.PULL_MESSAGE, fields)

    def _most(self, one: QueueRange, at: int) -> int:
        return min(1024, one.end - at)

    def _pulled(self, one: QueueRange, at: int, answer: RemotingCommand | None) -> tuple[RemotingCommand | None, int]:
        """Returns an answer with messages, or None if they are lost, and the queue offset to continue at.

        `answer` is that to a pull sent ahead, if there is one. Waits for messages that a replica does not have yet.
        """
        until = time.monotonic() + self._options.fetch_timeout_ms / 1000
        pause = _PAUSE_SECONDS
        while True:
            if answer is None:
                fields = pull_fields(self._options, one.queue, at, self._most(one, at))
                answer = self._cluster.ask(one.queue, RequestCode.PULL_MESSAGE, fields)
            if answer.code == ResponseCode.SUCCESS:
                return answer, self._following(one, at, answer)
            found = self._without_messages(one, at, answer)
            if found is not None:
                return None, found
            if time.monotonic() + pause > until:
                return None, self._missing(one, at, answer)
            answer = None
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _following(self, one: QueueRange, at: int, answer: RemotingCommand) -> int:
        following = _number(answer, "nextBeginOffset")
        if following is None or following <= at:
            text = f"broker {one.queue.broker} answered a pull of {one.queue} at {at} with the next offset {following}"
            raise ProtocolError(text)
        return following

    def _without_messages(self, one: QueueRange, at: int, answer: RemotingCommand) -> int | None:
        """Returns the queue offset to continue at after an answer without messages; None: the pull must be repeated."""
        following, first = _number(answer, "nextBeginOffset"), _number(answer, "minOffset")
        if answer.code == ResponseCode.MESSAGE_ILLEGAL and following is not None and following > at:
            # A txstore server says that the message is damaged.
            if not self._options.skip_bad_records:
                raise StoreCorruptError(
                    f"{one.queue}: the message at {at} is damaged: {answer.remark}\n"
                    "hint: badRecords=skip reads on after it; `txstore store check` names all damage",
                    file=one.queue.broker,
                    offset=at,
                )
            self._lost += 1
            return following
        if answer.code not in _WAITS:
            raise refusal(answer, f"a pull of {one.queue.topic}", f"broker {one.queue.broker}")
        gone = following if answer.code == ResponseCode.PULL_OFFSET_MOVED else first
        return None if gone is None or gone <= at else self._skipped(one, at, gone)

    def _skipped(self, one: QueueRange, at: int, following: int) -> int:
        """Returns the queue offset after messages that retention removed."""
        following = min(following, one.end)
        if self._options.fail_on_data_loss:
            raise OffsetTooOldError(
                f"{one.queue}: retention removed the messages from {at} to {following} before they were read\n"
                "hint: failOnDataLoss=false reads on after them",
                minimum=following,
            )
        self._lost += following - at
        return following

    def _missing(self, one: QueueRange, at: int, answer: RemotingCommand) -> int:
        """Returns the end of a range that the broker does not have any more, or not yet."""
        end = _number(answer, "maxOffset")
        if self._options.fail_on_data_loss:
            raise OffsetTooOldError(
                f"{one.queue} ended at {end} for {self._options.fetch_timeout_ms} ms, and the read needs {at} to "
                f"{one.end}: the broker lost messages, or another one has its name, or a replica is late\n"
                "hint: failOnDataLoss=false reads what there is; a larger fetchTimeout waits longer",
                minimum=at,
            )
        self._lost += one.end - at
        return one.end

    def _rest(self, broker: str | None) -> Iterator[pa.RecordBatch]:
        frame = self._records.rest()
        if frame is not None:
            yield self._batch(frame, broker)

    def _batch(self, frame: Frame, broker: str | None) -> pa.RecordBatch:
        with pa.RecordBatchReader.from_stream(frame) as stream:
            return with_source(stream.read_next_batch(), self._schema, None, broker)


def _number(answer: RemotingCommand, field: str) -> int | None:
    try:
        return int(answer.ext_fields[field])
    except (KeyError, ValueError):
        return None
