"""Answers requests about consumer offsets, queue ranges and queue locks.

Always: the offsets are those that embedded consumers use. A lock expires after 60 s unless it is renewed.
"""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from txstore._native import RETRY_PREFIX, RequestCode, ResponseCode, is_system_topic, validate_group
from txstore.broker import EmbeddedBroker
from txstore.message import ConsumeFromWhere, is_retry_progress, utc
from txstore.server.clients import Clients
from txstore.server.offset_table import reset_table
from txstore.server.request import (
    OK,
    Refused,
    Reply,
    Request,
    json_body,
    json_of,
    must_be_short,
    number,
    text,
)

__all__ = ["Locks", "Offsets"]

_LOCK_SECONDS = 60.0
_QUEUES_MAX = 4_096  # In one request.
_SHOWN = 100  # Characters of an invalid name that a remark shows.


class Offsets:
    """Answers requests about offsets."""

    def __init__(self, broker: EmbeddedBroker, clients: Clients) -> None:
        self._broker = broker
        self._clients = clients
        self._lock = threading.Lock()
        self._reset: set[tuple[str, str, int]] = set()
        """What operators have reset here: topic, group, queue id."""

    def query(self, request: Request) -> Reply:
        fields = request.ext_fields
        topic, group = text(fields, "topic"), text(fields, "consumerGroup")
        # Querying a progress in a retry topic records it, so its name must be checked as in `update`.
        notes = is_retry_progress(topic, group)
        if notes:
            self._must_be_there(topic, group, _queue(fields))
        found = self._broker.consumer_offset(topic, group, _queue(fields))
        if found is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"group {group} has no offset in {topic} yet")
        return _offset(found)

    def update(self, request: Request) -> Reply:
        fields = request.ext_fields
        topic, group, queue_id = text(fields, "topic"), text(fields, "consumerGroup"), _queue(fields)
        self._must_be_there(topic, group, queue_id)
        if fields.get("increaseOnly") == "true":
            return self._raise(topic, group, queue_id, number(fields, "commitOffset"))
        self._broker.set_consumer_offset(topic, group, queue_id, number(fields, "commitOffset"))
        return OK

    def _raise(self, topic: str, group: str, queue_id: int, queue_offset: int) -> Reply:
        """Raises an offset, unless it was reset here: the client has missed that, and is told."""
        with self._lock:
            now = self._broker.consumer_offset(topic, group, queue_id)
            if (topic, group, queue_id) in self._reset and now is not None:
                return Reply(fields={"resetOffset": str(now)})
            if now is None or now < queue_offset:
                self._broker.set_consumer_offset(topic, group, queue_id, queue_offset)
        return OK

    def _must_be_there(self, topic: str, name: str, queue_id: int) -> None:
        """Raises Refused if the topic, queue or group does not exist."""
        if is_system_topic(topic):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{topic} is a system topic: no group has offsets in it")
        if not self._broker.has_topic(topic):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic[:_SHOWN]}")
        if queue_id not in self._broker.read_queues(topic):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id} to read")
        if is_retry_progress(topic, name):
            self._must_be_progress(topic, name, queue_id)
        elif not self._broker.has_group(name):
            remark = f"there is no consumer group {name[:_SHOWN]}"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)

    def _must_be_progress(self, retries: str, name: str, queue_id: int) -> None:
        """Raises Refused if `name` is not GROUP%TOPIC, a group's progress in its retries of one topic."""
        group = retries.removeprefix(RETRY_PREFIX)
        if not self._broker.has_group(group):
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group[:_SHOWN]}")
        of = name.removeprefix(f"{group}%")
        # A progress that is stored stays valid after its topic was deleted.
        known = self._broker.store.consumer_offset(retries, name, queue_id) is not None
        if not of or not (known or self._broker.has_topic(of)):
            remark = f"{name[:_SHOWN]} is not a progress of group {group[:_SHOWN]} in {retries}, expected GROUP%TOPIC"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)

    def search(self, request: Request) -> Reply:
        fields = request.ext_fields
        topic, queue_id, moment = text(fields, "topic"), _queue(fields), number(fields, "timestamp")
        first, end = self._broker.queue_range(topic, queue_id)
        found = self._broker.search_offset(topic, queue_id, moment)
        if fields.get("boundaryType", "").lower() == "upper":  # The last one stored at that time, not the first.
            found = max(first, self._broker.search_offset(topic, queue_id, moment + 1) - 1)
        return _offset(min(found, end))

    def maximum(self, request: Request) -> Reply:
        return _offset(self._range(request)[1])

    def minimum(self, request: Request) -> Reply:
        return _offset(self._range(request)[0])

    def earliest(self, request: Request) -> Reply:
        topic, queue_id = text(request.ext_fields, "topic"), _queue(request.ext_fields)
        first, end = self._broker.queue_range(topic, queue_id)
        messages = self._broker.read(topic, queue_id, first, 1)[0] if end > first else []
        return Reply(fields={"timestamp": str(messages[0].store_timestamp_ms if messages else -1)})

    def reset(self, request: Request) -> Reply:
        """Resets a group's offsets to a time in ms since the epoch, or to the end for -1. Tells connected consumers.

        With `queueId`, only that queue is reset, to `offset` if it is given.
        """
        fields = request.ext_fields
        topic, group, moment = text(fields, "topic"), text(fields, "group"), number(fields, "timestamp")
        queue_id, offset = number(fields, "queueId", -1), number(fields, "offset", -1)
        to = offset if offset >= 0 else utc(moment) if moment >= 0 else ConsumeFromWhere.LAST
        offsets = self.reset_offsets(group, topic, to, queue_id if queue_id >= 0 else None)
        return Reply(body=reset_table(topic, self._broker.config.broker_name, offsets))

    def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, queue_id: int | None
    ) -> dict[int, int]:
        """Resets a group's offsets as the broker does, and tells connected consumers."""
        with self._lock:
            offsets = self._broker.reset_offsets(group, topic, to, queue_id=queue_id)
            self._reset.update((topic, group, number) for number in offsets)
        moment = round(to.timestamp() * 1000) if isinstance(to, datetime) else -1
        told = {"group": group, "isForce": "true", "timestamp": str(moment), "topic": topic}
        body = reset_table(topic, self._broker.config.broker_name, offsets)
        self._clients.tell(group, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, body)
        return offsets

    def _range(self, request: Request) -> tuple[int, int]:
        return self._broker.queue_range(text(request.ext_fields, "topic"), _queue(request.ext_fields))


class Locks:
    """The locks of orderly consumers on queues, by group. Thread-safe."""

    def __init__(
        self, broker: EmbeddedBroker, monotonic: Callable[[], float], set_orderly: Callable[[str, bool], None]
    ) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._set_orderly = set_orderly
        self._lock = threading.Lock()
        self._holders: dict[str, dict[tuple[str, int], tuple[str, float]]] = {}  # By group, then by queue.

    def lock(self, request: Request) -> Reply:
        group, client_id, queues = _asked(request)
        if not self._broker.has_group(group):
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group}")
        now = self._monotonic()
        locked: list[dict[str, Any]] = []
        there = {topic: set(self._broker.read_queues(topic)) for (topic, _), _ in queues}
        with self._lock:
            held = self._holders.setdefault(group, {})
            for key, queue in queues:
                holder, until = held.get(key, (client_id, now))
                if key[1] in there[key[0]] and (holder == client_id or until < now):
                    held[key] = (client_id, now + _LOCK_SECONDS)
                    locked.append(queue)
            self._note(group)
        return Reply(body=json_of({"lockOKMQSet": locked}))

    def unlock(self, request: Request) -> Reply:
        group, client_id, queues = _asked(request)
        with self._lock:
            held = self._holders.get(group, {})
            for key, _ in queues:
                if held.get(key, ("", 0.0))[0] == client_id:
                    del held[key]
            self._note(group)
        return OK

    @property
    def held(self) -> int:
        """The number of locked queues."""
        with self._lock:
            return sum(map(len, self._holders.values()))

    def expire(self) -> None:
        """Removes expired locks."""
        now = self._monotonic()
        with self._lock:
            for group, held in list(self._holders.items()):
                self._holders[group] = {key: holder for key, holder in held.items() if holder[1] >= now}
                self._note(group)

    def _note(self, group: str) -> None:
        """Tells the engine that a group is orderly while it holds a lock. Removes a group without locks."""
        orderly = bool(self._holders.get(group))
        if not orderly:
            self._holders.pop(group, None)
        self._set_orderly(group, orderly)


def _asked(request: Request) -> tuple[str, str, list[tuple[tuple[str, int], dict[str, Any]]]]:
    said = json_body(request)
    group, client_id, queues = said.get("consumerGroup"), said.get("clientId"), said.get("mqSet")
    if not isinstance(group, str) or not isinstance(client_id, str) or not isinstance(queues, list):
        raise Refused(
            ResponseCode.INVALID_PARAMETER, "consumerGroup, clientId or mqSet is missing or has the wrong type"
        )
    validate_group(group)
    must_be_short(client_id, "clientId")
    if len(queues) > _QUEUES_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"mqSet has {len(queues)} queues, at most {_QUEUES_MAX} are allowed"
        )
    found = []
    for queue in queues:
        queue_id = queue.get("queueId") if isinstance(queue, dict) else None
        if not isinstance(queue_id, int) or not isinstance(queue.get("topic"), str):
            raise Refused(ResponseCode.INVALID_PARAMETER, "mqSet has an entry without topic or queueId")
        found.append(((queue["topic"], queue_id), queue))
    return group, client_id, found


def _queue(fields: dict[str, str]) -> int:
    queue_id = number(fields, "queueId")
    if not 0 <= queue_id < 2**31:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"there is no queue {queue_id}")
    return queue_id


def _offset(offset: int) -> Reply:
    return Reply(fields={"offset": str(offset)})
