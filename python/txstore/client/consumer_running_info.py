"""Reports the state of this client's consumers to operators, through a broker.

In:     GET_CONSUMER_RUNNING_INFO and GET_CONSUMER_STATUS_FROM_CLIENT, for mqadmin's consumerStatus.
Out:    subscriptions, queues and queue offsets.
Always: changes nothing. CONSUME_MESSAGE_DIRECTLY, which handles one message out of order, is answered as not
        supported: a consumer that polls cannot be made to do it.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from txstore._native import RemotingCommand, RequestCode, ResponseCode
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.heartbeat import offset_group, offset_name, subscription
from txstore.client.offset_store import OffsetStore
from txstore.client.offsets import Offsets
from txstore.client.rebalance import Rebalance, is_clustering
from txstore.client.route import Queue
from txstore.errors import TxStoreError
from txstore.interface import ConsumerMember
from txstore.message import retry_topic

__all__ = ["ConsumerRunningInfo"]

_VERSION = "V5_3_3"  # The protocol's version.
_NO_OFFSET = -1  # RocketMQ's clients report this for a queue without an offset.


class ConsumerRunningInfo:
    """Answers requests about the consumers of one client. Used on its loop only."""

    def __init__(self, client: Client, rebalance: Rebalance, offset_store: OffsetStore, offsets: Offsets) -> None:
        self._client = client
        self._rebalance = rebalance
        self._offset_store = offset_store
        self._offsets = offsets
        self._began_ms = time.time_ns() // 1_000_000
        client.listeners[RequestCode.GET_CONSUMER_RUNNING_INFO] = self._handle
        client.listeners[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = self._handle

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        self._client.spawn(self._answer(connection, request))

    async def _answer(self, connection: Connection, request: RemotingCommand) -> None:
        fields = request.ext_fields
        is_status = request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        group = fields.get("group" if is_status else "consumerGroup", "")
        members = [member for member in self._client.members.all() if offset_group(member) == group]
        try:
            if not members:
                connection.answer(request, ResponseCode.SYSTEM_ERROR, f"this client has no consumer of group {group}")
            elif is_status:
                offsets = await self._offsets_of(members, fields.get("topic", ""))
                connection.answer(request, ResponseCode.SUCCESS, body=_table("messageQueueTable", offsets))
            else:
                connection.answer(request, ResponseCode.SUCCESS, body=await self._info(members))
        except TxStoreError as error:
            connection.answer(request, ResponseCode.SYSTEM_ERROR, str(error))

    async def _info(self, members: Sequence[ConsumerMember]) -> bytes:
        topics = {member.topic: member.tags for member in members}
        topics |= {retry_topic(member.group): None for member in members if is_clustering(member)}
        queues: dict[tuple[str, Queue], int] = {}
        for topic in topics:
            queues |= await self._offsets_of(members, topic)
        facts = {
            "properties": {
                "PROP_CLIENT_VERSION": _VERSION,
                "PROP_CONSUMEORDERLY": "true" if any(member.orderly for member in members) else "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._began_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": self._client.address,
                "PROP_THREADPOOL_CORE_SIZE": str(len({member.reader for member in members})),
            },
            "statusTable": {},
            "subscriptionSet": [subscription(topic, tags) for topic, tags in topics.items()],
        }
        rows = {key: {"commitOffset": offset, "droped": False} for key, offset in queues.items()}
        return json.dumps(facts).encode()[:-1] + b"," + _table("mqTable", rows)[1:]

    async def _offsets_of(self, members: Sequence[ConsumerMember], topic: str) -> dict[tuple[str, Queue], int]:
        """Returns the queue offset of each queue of a topic that these consumers read; -1 without an offset."""
        found: dict[tuple[str, Queue], int] = {}
        for member in members:
            if topic not in (member.topic, retry_topic(member.group)):
                continue
            for number in self._queues(member, topic):
                found[topic, self._client.numbers.queue(number)] = await self._offset(member, topic, number)
        return found

    def _queues(self, member: ConsumerMember, topic: str) -> Sequence[int]:
        if is_clustering(member):
            return self._rebalance.share_of(member, topic)
        route = self._client.routes.get(topic)
        return [] if route is None else [self._client.numbers.number(queue) for queue in route.read]

    async def _offset(self, member: ConsumerMember, topic: str, number: int) -> int:
        name = offset_name(member, topic)
        if topic == member.topic:
            offset = await self._offset_store.consumer_offset(topic, name, number)
        else:
            # Asking the broker would record its answer as the offset where this consumer begins in the retry topic.
            offset = self._offsets.get(topic, name, number)
        return _NO_OFFSET if offset is None else offset


def _table(name: str, rows: Mapping[tuple[str, Queue], Any]) -> bytes:
    """Returns `{"NAME":{…}}` with one entry per queue. As in RocketMQ, keys are objects, which is not valid JSON."""
    entries = (
        json.dumps({"brokerName": queue.broker, "queueId": queue.queue_id, "topic": topic}) + ":" + json.dumps(row)
        for (topic, queue), row in rows.items()
    )
    return f'{{"{name}":{{{",".join(entries)}}}}}'.encode()
