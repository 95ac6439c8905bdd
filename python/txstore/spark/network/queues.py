"""Queues: which queues of the brokers a read has, and where it begins and ends in each.

In:     options, the brokers' answers.
Out:    ranges of queue offsets, and how many bytes their messages may have.
Always: only the requests that every consumer makes, so an account that may consume a topic may read it here. A time is
        found by binary search, whatever the broker: RocketMQ's versions answer differently for times outside a queue.
Not here: tasks (`partitions.py`), pulling ranges (`pull.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from txstore._native import RequestCode, ResponseCode, StoredMessage, decode_records
from txstore.arrow import unknown_topic
from txstore.client.cluster import Cluster, MessageQueue
from txstore.client.heartbeat import reader_heartbeat
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, InvalidOptionError, ProtocolError, TxStoreError
from txstore.remoting.refusals import refusal
from txstore.spark.connection import connect_config
from txstore.spark.offsets import LATEST, Limit, QueueName, shown
from txstore.spark.options import ReadOptions

__all__ = ["QueueReads", "Span", "cluster_of", "pull_fields", "reached"]

_log = logging.getLogger("txstore.spark")

_GROUP = "TOOLS_CONSUMER"  # The group in whose name RocketMQ's tools read.
_SUBSCRIPTION = 4  # RocketMQ's PullSysFlag: the request has the subscription.
_MESSAGES_MAX: Final = 1024
_SAMPLE = 16
_EARLIEST, _LATEST = -2, -1
_SAMPLE_AGAIN_ROWS = 100_000

Span = tuple[int, int]
"""The first queue offset of a queue, and its end."""


def cluster_of(options: ReadOptions, patience: float) -> Cluster:
    """Returns the brokers that the options name. Opens nothing. `patience` is in seconds."""
    assert options.brokers is not None
    return Cluster(options.brokers, connect_config(options.tls, options.access_key, options.secret_key), patience)


def pull_fields(
    options: ReadOptions, queue: MessageQueue, queue_offset: int, most: int = _MESSAGES_MAX
) -> dict[str, str]:
    """Returns the fields of a pull that is answered at once."""
    return {
        "consumerGroup": options.group or _GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(most),
        "sysFlag": str(_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def reached(options: ReadOptions, error: BrokerUnreachableError | BrokerTimeoutError) -> TxStoreError:
    """Returns an error that names the option, for one of a broker that is away."""
    what, _, hint = str(error).partition("\nhint: ")
    usual = "start it, or correct the address; fetchTimeout is how long a running query waits for it"
    text = f"option brokers: {options.brokers!r}: {what}\nhint: {hint or usual}"
    return type(error)(text, address=error.address)


class QueueReads:
    """The queues of one read."""

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options, self._cluster = options, cluster
        # The bytes of a message, by queue, with the queue offset where they were sampled.
        self._sampled: dict[MessageQueue, tuple[int, float]] = {}

    # Which queues

    def topics(self) -> list[str]:
        """Returns the topics that the options choose. Raises what `Cluster.topics` does, InvalidOptionError."""
        options = self._options
        if options.limits.assigned is not None:
            return sorted({name.topic for name in options.limits.assigned})
        if options.topics is not None:
            return list(options.topics)
        found = self._cluster.topics()
        if options.topic_pattern is None:
            return found
        try:
            pattern = re.compile(options.topic_pattern)
        except re.error as error:
            text = f"option subscribePattern: {options.topic_pattern!r} is not a valid regular expression: {error}"
            raise InvalidOptionError(text, option="subscribePattern") from None
        return [topic for topic in found if pattern.fullmatch(topic)]

    def queues(self, *, must_exist: bool) -> list[MessageQueue]:
        """Returns the queues that the options choose, sorted.

        Raises InvalidOptionError for a topic or a queue that does not exist, if it must.
        """
        found: list[MessageQueue] = []
        for topic in self.topics():
            route = self._cluster.route(topic)
            if route is None and must_exist:
                self._unknown(topic)
            found += (MessageQueue(topic, *queue) for queue in (route.read if route is not None else ()))
        if must_exist:
            self._check(found)
        assigned = self._options.limits.assigned
        if assigned is None:
            return sorted(found)
        return sorted(queue for queue in found if any(_is(name, queue) for name in assigned))

    def _unknown(self, topic: str) -> None:
        """Raises InvalidOptionError for a topic that an option names; ignores one that was deleted meanwhile."""
        options = self._options
        named = dict.fromkeys(options.topics or (), "subscribe") | options.limits.topics()
        if topic not in named:
            return
        try:
            known = self._cluster.topics()
        except TxStoreError:
            known = []
        text = unknown_topic(topic, known).replace("the store has", "the brokers have", 1)
        raise InvalidOptionError(f"option {named[topic]}: {text}", option=named[topic])

    def _check(self, found: list[MessageQueue]) -> None:
        """Raises InvalidOptionError if an option names a queue that no broker has."""
        limits = self._options.limits
        named = {limit.name: limit.option for limit in (*limits.starting, *limits.ending)}
        named |= dict.fromkeys(limits.assigned or (), "assign")
        for name, option in named.items():
            if any(_is(name, queue) for queue in found):
                continue
            of_topic = [queue for queue in found if queue.topic == name.topic]
            by_broker: dict[str, list[int]] = {}
            for queue in of_topic:
                by_broker.setdefault(queue.broker, []).append(queue.queue_id)
            has = "; ".join(f"{shown(sorted(ids))} on broker {broker}" for broker, ids in sorted(by_broker.items()))
            text = f"option {option}: there is no {name} to read\nhint: its queues are {has or 'none yet'}"
            raise InvalidOptionError(text, option=option)

    # Where they begin and end

    def span(self, queue: MessageQueue) -> Span:
        """Returns the first queue offset that the broker still has, and the end."""
        return self._offset(queue, RequestCode.GET_MIN_OFFSET), self.end(queue)

    def end(self, queue: MessageQueue) -> int:
        """Returns the queue offset after the last message."""
        return self._offset(queue, RequestCode.GET_MAX_OFFSET)

    def start_of(self, queue: MessageQueue, span: Span) -> int:
        """Returns where a read of a queue begins, as the options say. Raises InvalidOptionError."""
        options = self._options
        limit = self._limit(options.limits.starting, queue)
        if limit is not None:
            return self._resolved(limit, queue, span)
        if options.starting == LATEST:
            return span[1]
        return span[0] if options.start_store_ms is None else self._since(queue, span, options.start_store_ms)

    def end_of(self, queue: MessageQueue, span: Span) -> int:
        """Returns where a batch of a queue ends, as the options say. Raises InvalidOptionError."""
        limit = self._limit(self._options.limits.ending, queue)
        if limit is not None:
            return self._resolved(limit, queue, span)
        end_ms = self._options.end_store_ms
        return span[1] if end_ms is None else self._since(queue, span, end_ms)

    def join(self, queues: Sequence[MessageQueue], group: str, client_id: str) -> None:
        """Registers a client as a member of a group at the brokers of some queues. Raises as `Cluster.demand` does."""
        by_broker = {queue.broker: queue for queue in queues}
        body = reader_heartbeat(client_id, group, sorted({queue.topic for queue in queues}))
        for broker, queue in by_broker.items():
            what = f"the heartbeat of group {group} at broker {broker}"
            self._cluster.demand(queue, RequestCode.HEART_BEAT, {}, what, body)

    def store_offset(self, queue: MessageQueue, group: str, queue_offset: int) -> None:
        """Stores a group's offset at the broker. Raises what `Cluster.demand` does."""
        fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(queue_offset),
        }
        what = f"the offset of group {group} in {queue}"
        self._cluster.demand(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields, what)

    def limits_of(self, queue: MessageQueue) -> Iterator[Limit]:
        """Yields the limits of a queue that options name, first where it begins."""
        limits = self._options.limits
        yield from filter(None, (self._limit(limits.starting, queue), self._limit(limits.ending, queue)))

    def row_bytes(self, queue: MessageQueue, queue_offset: int) -> float:
        """Estimates the bytes of a message from some messages at a queue offset, or near it."""
        known = self._sampled.get(queue)
        if known is None or abs(known[0] - queue_offset) >= _SAMPLE_AGAIN_ROWS:
            messages = self._messages(queue, queue_offset, _SAMPLE)
            sizes = [message.size for message in messages] or [1024]
            known = self._sampled[queue] = (queue_offset, sum(sizes) / len(sizes))
        return known[1]

    def _limit(self, limits: tuple[Limit, ...], queue: MessageQueue) -> Limit | None:
        """Returns the limit of a queue. One that names the broker comes before one for every broker."""
        found = [limit for limit in limits if _is(limit.name, queue)]
        return next((limit for limit in found if limit.broker is not None), found[0] if found else None)

    def _resolved(self, limit: Limit, queue: MessageQueue, span: Span) -> int:
        options, (first, end) = self._options, span
        is_start = limit.option.startswith("starting")
        if limit.is_time:
            since = self._since(queue, span, limit.value)
            if since == end and is_start and not options.limits.is_late_start_latest:
                raise InvalidOptionError(
                    f"option {limit.option}: {queue} has no message stored at or after {limit.value}\n"
                    "hint: startingOffsetsByTimestampStrategy=latest begins such a queue at its end",
                    option=limit.option,
                )
            return since
        if limit.value in (_EARLIEST, _LATEST):
            return first if limit.value == _EARLIEST else end
        if not first <= limit.value <= end and (is_start or limit.value > end):
            what = f"option {limit.option}: {queue} has the offsets {first} to {end}, and not {limit.value}"
            if options.fail_on_data_loss:
                hint = "failOnDataLoss=false reads what there is; -2 is the earliest offset, -1 the latest"
                raise InvalidOptionError(f"{what}\nhint: {hint}", option=limit.option)
            _log.warning("%s; the read has the messages that there are", what)
        return min(max(limit.value, first), end)

    def _since(self, queue: MessageQueue, span: Span, store_ms: int) -> int:
        """Returns the first queue offset whose message was stored at or after a time; the end if all are older."""
        low, high = span
        while low < high:
            middle = (low + high) // 2
            messages = self._messages(queue, middle, 1)
            # Without an answer the message is gone: retention has removed it and what is before it.
            if not messages or messages[0].store_timestamp_ms < store_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _messages(self, queue: MessageQueue, queue_offset: int, most: int) -> list[StoredMessage]:
        """Returns some messages from a queue offset on; none if the broker has none there."""
        answer = self._cluster.ask(
            queue, RequestCode.PULL_MESSAGE, pull_fields(self._options, queue, queue_offset, most)
        )
        if answer.code == ResponseCode.SUCCESS:
            return decode_records(answer.body)
        if answer.code in _NOTHING:
            return []
        raise refusal(answer, f"a pull of {queue.topic}", f"broker {queue.broker}")

    def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        fields: Mapping[str, str] = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        answer = self._cluster.demand(queue, code, fields, f"the offsets of {queue}")
        try:
            return int(answer.ext_fields["offset"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"broker {queue.broker} returned no offset of {queue}: {error!r}") from error


_NOTHING = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.MESSAGE_ILLEGAL,
)


def _is(name: QueueName, queue: MessageQueue) -> bool:
    return (name.topic, name.queue) == (queue.topic, queue.queue_id) and name.broker in (None, queue.broker)
