"""Queries queue offsets, reports acknowledged offsets to brokers and sends messages back for a retry.

In:     a topic, a queue number, a group.
Out:    queue offsets; UPDATE_CONSUMER_OFFSET and CONSUMER_SEND_MSG_BACK.
Always: within this client, an acknowledged offset is valid before the broker knows it. What a shared store's last
        writer knew is reported to the next one before anything else about offsets.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from txstore._native import RequestCode, ResponseCode, StoredMessage
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.offsets import Acknowledged, Offsets
from txstore.client.reset_offset import ResetOffset
from txstore.errors import BrokerRefusedError, TxStoreError
from txstore.message import ReceivedMessage
from txstore.remoting.refusals import refusal

__all__ = ["OffsetStore"]

_log = logging.getLogger("txstore.remoting")
_NOT_THERE = (
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)


class OffsetStore:
    """The queue offsets of one client. Used on its loop only."""

    def __init__(self, client: Client, offsets: Offsets, reset_offset: ResetOffset) -> None:
        self._client = client
        self._offsets = offsets
        self._reset_offset = reset_offset
        self._known: Connection | None = None
        """The connection to a store's writer that knows what was reported."""
        client.background_tasks.append(self._report_periodically)
        client.on_reconnected.append(self._report_again)

    async def queue_range(self, topic: str, number: int) -> tuple[int, int]:
        """Returns the first queue offset that is left, and one past the last."""
        first, end = await asyncio.gather(
            self._offset(RequestCode.GET_MIN_OFFSET, topic, number),
            self._offset(RequestCode.GET_MAX_OFFSET, topic, number),
        )
        return first, end

    async def search(self, topic: str, number: int, timestamp_ms: int) -> int:
        return await self._offset(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, number, timestamp=str(timestamp_ms), boundaryType="lower"
        )

    async def _offset(self, code: RequestCode, topic: str, number: int, **more: str) -> int:
        queue = self._client.numbers.queue(number)
        fields = {"topic": topic, "queueId": str(queue.queue_id), "committed": "true", **more}
        answer = await self._client.demand(queue.broker, code, fields, f"an offset of {topic}/{queue.queue_id}")
        # A queue that was never written to has no offsets.
        return max(0, int(answer.ext_fields.get("offset", "0")))

    async def consumer_offset(self, topic: str, name: str, number: int) -> int | None:
        """Returns the queue offset at which a group continues, or None if it has none. Raises what a refusal means."""
        known = self._offsets.get(topic, name, number)
        if known is not None:
            return known
        queue = self._client.numbers.queue(number)
        await self._must_know(queue.broker)
        fields = {
            "consumerGroup": self._offsets.reported_as(topic, name),
            "topic": topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "false",
        }
        answer = await self._client.ask(queue.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code in _NOT_THERE:
            self._offsets.begin(topic, name, number, 0)
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, f"group {name}'s offset in {topic}/{queue.queue_id}", f"broker {queue.broker}")
        offset = int(answer.ext_fields.get("offset", "0"))
        self._offsets.begin(topic, name, number, offset)
        return offset

    async def report(self, rows: Sequence[Acknowledged]) -> None:
        """Reports acknowledged offsets to brokers. Tries all, then raises the first failure."""
        reported = await asyncio.gather(*(self._report(row) for row in rows), return_exceptions=True)
        for failed in reported:
            if isinstance(failed, BaseException):
                raise failed

    async def _report(self, row: Acknowledged) -> None:
        queue = self._client.numbers.queue(row.number)
        fields = {
            "consumerGroup": row.group,
            "topic": row.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(row.queue_offset),
        }
        what = f"group {row.group}'s offset in {row.topic}/{queue.queue_id}"
        await self._must_know(queue.broker)
        if self._offsets.only_raises(row):
            fields["increaseOnly"] = "true"
        answer = await self._client.demand(queue.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, what)
        self._offsets.mark_reported(row)
        reset = answer.ext_fields.get("resetOffset")
        if reset is not None:
            self._reset_offset.apply(row.group, row.topic, {row.number: int(reset)})

    async def _must_know(self, broker: str) -> None:
        """Lets all offsets be reported again if the store has another writer now, which has only those on disk."""
        if self._client.is_store:
            connection = await self._client.connection(broker)
            if connection is not self._known:
                if self._known is not None:
                    self._offsets.report_again()
                self._known = connection

    async def _report_again(self, connection: Connection) -> None:
        """Reports to the next writer of a store."""
        try:
            for broker in self._client.brokers():
                await self._must_know(broker)
            await self.report(self._offsets.unreported())
        except TxStoreError as error:
            _log.info("acknowledged offsets could not be reported yet: %s", error)

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._client.options.seconds("persist_consumer_offset_interval"))
            # In a thread: sending a message back calls this loop.
            await asyncio.to_thread(self._client.members.apply_decisions)
            try:
                await self.report(self._offsets.unreported())
            except TxStoreError as error:
                _log.warning(
                    "acknowledged offsets could not be reported yet: %s", error, extra={"address": self._client.address}
                )

    async def release(self, topic: str, name: str, number: int) -> None:
        """Reports the offset of a queue that another client reads from now on.

        If that fails, the offset is dropped and the other client receives the last messages again: a later report of
        ours would overwrite its offset.
        """
        with contextlib.suppress(TxStoreError):
            await self._must_know(self._client.numbers.queue(number).broker)
        for row in self._offsets.unreported(topic, self._offsets.reported_as(topic, name), number):
            try:
                await self._report(row)
            except TxStoreError as error:
                _log.warning(
                    "the last offset of a released queue could not be reported: %s", error, extra={"group": row.group}
                )
                self._offsets.mark_reported(row)
        self._offsets.leave(topic, name, number)

    async def send_back(self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int) -> None:
        """Asks the broker that stored a message to deliver it to a group again after a delay.

        `delay_level` and `max_reconsume_times` are RocketMQ's. Raises BrokerRefusedError if the broker is unknown.
        """
        host = message.store_host if isinstance(message, StoredMessage) else ""
        broker = self._client.broker_at(host)
        if broker is None:
            raise BrokerRefusedError(
                f"message {message.message_id} cannot be retried: it was stored at {host}, and no broker is known there"
            )
        fields = {
            "offset": str(message.physical_offset),
            "group": group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(max_reconsume_times),
        }
        what = f"the retry of message {message.message_id} for group {group}"
        await self._client.demand(broker, RequestCode.CONSUMER_SEND_MSG_BACK, fields, what)
