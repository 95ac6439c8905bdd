"""Rebalances: decides which queues of a topic each consumer of this client reads.

In:     the group's client ids from a broker (Java clients included), and the consumers of this client.
Out:    queue numbers; queue locks for orderly consumers.
Always: queues are allocated as RocketMQ's clients do it, evenly by sorted client ids and queues. This client's queues
        are then divided among its consumers.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from txstore._native import RemotingCommand, RequestCode, ResponseCode
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.route import Queue
from txstore.consumer.allocation import allocate_averagely
from txstore.errors import TxStoreError
from txstore.interface import ConsumerMember
from txstore.message import MessageModel

__all__ = ["Rebalance", "is_clustering"]

_log = logging.getLogger("txstore.remoting")
_SETTLE_SECONDS = 0.5


class Rebalance:
    """The rebalance of one client. Used on its loop, unless a method says otherwise."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ids: dict[str, tuple[str, ...]] = {}
        self._locked: dict[tuple[str, str, int], ConsumerMember] = {}
        client.listeners[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._handle
        client.background_tasks += [self._rebalance_periodically, self._renew_locks]
        client.on_routes_changed.append(self._refresh_all)
        client.on_reconnected += [self._wait_for_members, self._renew]
        self._settled = asyncio.Event()
        self._settled.set()

    def share_of(self, consumer: ConsumerMember, topic: str) -> Sequence[int]:
        """Returns the numbers of the queues that a consumer reads. Thread-safe."""
        route = self._client.routes.get(topic)
        if route is None:
            return ()
        ids = self._ids.get(consumer.group, ())
        mine = allocate_averagely(route.read, ids, self._client.client_id)
        here = self._client.members.of(consumer.group, consumer.topic)
        return [self._client.numbers.number(queue) for queue in allocate_averagely(mine, here, consumer.number)]

    async def refresh(self, group: str) -> None:
        """Asks a broker for the group's client ids and notifies the group's consumers here of a change."""
        members = [member for member in self._client.members.all() if member.group == group]
        topics = sorted({member.topic for member in members})
        route = next((found for topic in topics if (found := self._client.routes.get(topic)) is not None), None)
        brokers = sorted(route.brokers) if route is not None else self._client.brokers()
        if not members or not brokers:
            return
        answer = await self._client.ask(brokers[0], RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        # While a client reconnects, the broker may list its id twice.
        ids = tuple(sorted(set(_consumer_ids(answer)))) if answer.code == ResponseCode.SUCCESS else ()
        if ids != self._ids.get(group):
            self._ids = self._ids | {group: ids}
            for member in members:
                member.members_changed()
            self._client.arrivals.bump()

    async def _rebalance_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._client.options.seconds("rebalance_interval"))
            await self._refresh_all()

    async def _refresh_all(self) -> None:
        for group in {member.group for member in self._client.members.all()}:
            await self._try_refresh(group)

    async def _wait_for_members(self, connection: Connection) -> None:
        """Keeps all queues for a moment in which the group's members come to the store's new holder, one by one."""
        self._settled.clear()
        await asyncio.sleep(_SETTLE_SECONDS)
        self._settled.set()

    async def _try_refresh(self, group: str) -> None:
        await self._settled.wait()
        try:
            await self.refresh(group)
        except TxStoreError as error:
            _log.info("group %s could not be rebalanced: %s", group, error, extra={"group": group})

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        group = request.ext_fields.get("consumerGroup", "")
        self._client.spawn(self._try_refresh(group))

    # Locks

    async def lock(self, consumer: ConsumerMember, topic: str, number: int) -> bool:
        """Locks a queue for an orderly consumer. Returns False if another client holds the lock.

        Raises BrokerUnreachableError, BrokerTimeoutError.
        """
        queue = self._client.numbers.queue(number)
        if number not in await self._lock(consumer.group, queue.broker, [(topic, number)]):
            return False
        self._locked[consumer.group, topic, number] = consumer
        return True

    async def unlock(self, consumer: ConsumerMember, topic: str, number: int) -> None:
        """Unlocks a queue. If the request does not arrive, the broker's lock expires after 60 s."""
        if self._locked.pop((consumer.group, topic, number), None) is None:
            return
        queue = self._client.numbers.queue(number)
        body = self._lock_body(consumer.group, [(topic, queue)])
        await self._client.ask(queue.broker, RequestCode.UNLOCK_BATCH_MQ, {}, body)

    async def unlock_all(self, consumer: ConsumerMember) -> None:
        """Unlocks all queues of a consumer. Ignores failures, since the locks expire."""
        held = [(topic, number) for (_, topic, number), holder in self._locked.items() if holder is consumer]
        unlocks = [self.unlock(consumer, topic, number) for topic, number in held]
        await asyncio.gather(*unlocks, return_exceptions=True)

    async def _renew_locks(self) -> None:
        while True:
            await asyncio.sleep(self._client.options.seconds("lock_interval"))
            await self._renew()

    async def _renew(self, connection: Connection | None = None) -> None:
        held: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for group, topic, number in self._locked:
            held[group, self._client.numbers.queue(number).broker].append((topic, number))
        for (group, broker), queues in held.items():
            try:
                still = await self._lock(group, broker, queues)
            except TxStoreError as error:
                _log.warning(
                    "the queue locks of group %s could not be renewed: %s", group, error, extra={"group": group}
                )
                continue
            for topic, number in queues:
                consumer = self._locked.get((group, topic, number))
                if number not in still and consumer is not None:
                    del self._locked[group, topic, number]
                    # In a thread: the consumer waits for its messages in flight and calls this loop meanwhile.
                    self._client.loop.run_in_executor(None, consumer.offsets_reset, topic, [number])

    async def _lock(self, group: str, broker: str, queues: Sequence[tuple[str, int]]) -> set[int]:
        """Returns the numbers of the queues that are now locked for this client."""
        named = [(topic, self._client.numbers.queue(number)) for topic, number in queues]
        answer = await self._client.ask(broker, RequestCode.LOCK_BATCH_MQ, {}, self._lock_body(group, named))
        if answer.code != ResponseCode.SUCCESS:
            return set()
        rows = _json(answer.body).get("lockOKMQSet") or ()
        return {self._client.numbers.number(Queue(row["brokerName"], int(row["queueId"]))) for row in rows}

    def _lock_body(self, group: str, queues: Sequence[tuple[str, Queue]]) -> bytes:
        rows = [{"topic": topic, "brokerName": queue.broker, "queueId": queue.queue_id} for topic, queue in queues]
        facts = {"consumerGroup": group, "clientId": self._client.client_id, "mqSet": rows, "onlyThisBroker": False}
        return json.dumps(facts).encode()


def is_clustering(consumer: ConsumerMember) -> bool:
    """Returns whether a consumer shares queues with its group (CLUSTERING) instead of reading all (BROADCASTING)."""
    return consumer.message_model is MessageModel.CLUSTERING


def _consumer_ids(answer: RemotingCommand) -> list[str]:
    return [str(name) for name in _json(answer.body).get("consumerIdList") or ()]


def _json(body: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(body)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
