"""Creates, lists, describes and deletes topics and groups for operators, and reports the broker's state.

In:     mqadmin's requests; the engine's `UnknownTopic`.
Always: the broker's rules apply. No client creates a system topic. A topic or group in use is not deleted.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from txstore import _native
from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX, ResponseCode, UnknownGroup, UnknownTopic
from txstore.broker import EmbeddedBroker
from txstore.errors import InUseError
from txstore.message import retry_topic
from txstore.server.clients import Clients
from txstore.server.offset_table import queue_table
from txstore.server.request import (
    OK,
    Refused,
    Reply,
    Request,
    json_body,
    json_of,
    number,
    text,
)

__all__ = ["Topics"]

_READ, _WRITE = 4, 2
_MESSAGE_TYPE = "message.type"


class _Tables(Protocol):
    def set_topic(self, topic: str, read_queues: int, write_queues: int, message_type: str | None = None) -> None: ...
    def set_group(self, group: str, orderly: bool, retries: int) -> None: ...
    def forget_topic(self, topic: str) -> None: ...
    def may_read(self, account: str | None, topic: str) -> bool: ...
    def counters(self) -> dict[str, int]: ...


class Topics:
    """Answers requests about topics and groups. `tables` is the engine's copy of the topics."""

    def __init__(
        self, broker: EmbeddedBroker, tables: _Tables, clients: Clients, address: Callable[[], str], topics_max: int
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._tables = tables
        self._address = address
        self._topics_max = topics_max
        self._began_ms = time.time_ns() // 1_000_000

    def known(self, asked: UnknownTopic) -> Reply:
        """Tells the engine a topic that it does not know. Creates it for a client that wants to send."""
        topic = asked.name
        if asked.create:
            self._create(topic)
        elif not self._broker.has_topic(topic):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        reading = len(self._broker.read_queues(topic))
        writing, declared = len(self._broker.write_queues(topic)), self._broker.message_type(topic)
        self._tables.set_topic(topic, reading, writing, declared)
        return OK

    def known_group(self, asked: UnknownGroup) -> Reply:
        """Tells the engine a group that it does not know. Creates it for its first consumer."""
        group = asked.name
        self._clients.create_groups([group])
        settings = self._broker.group_settings(group)
        self._tables.set_group(group, settings.consume_message_orderly, settings.retry_max_times)
        return OK

    def _create(self, topic: str) -> None:
        if self._broker.has_topic(topic):
            return
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            group = topic.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)
            if not self._broker.has_group(group):
                raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group}")
            self._broker.create_topic(topic, 1)
        elif len(self._broker.topics()) >= self._topics_max:
            remark = f"topic {topic} cannot be created: at most {self._topics_max} are allowed (topics_max)"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        else:
            self._broker.write_queues(topic)

    # Topics

    def update(self, request: Request) -> Reply:
        """Creates a topic, or gives it more queues. Refuses settings that are not stored."""
        fields = request.ext_fields
        reading, writing = number(fields, "readQueueNums"), number(fields, "writeQueueNums")
        if reading != writing:
            raise Refused(ResponseCode.INVALID_PARAMETER, "readQueueNums and writeQueueNums must be equal")
        perm = number(fields, "perm", _READ | _WRITE)
        if perm & (_READ | _WRITE) != _READ | _WRITE:
            remark = f"perm must be 6, got {perm}\nhint: use accounts to restrict clients (--accounts)"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        self._broker.create_topic(text(fields, "topic"), reading, message_type=_declared(fields.get("attributes")))
        return OK

    def delete(self, request: Request) -> Reply:
        self.delete_topic(text(request.ext_fields, "topic"))
        return OK

    def delete_topic(self, topic: str) -> int:
        """Deletes a topic by the broker's rules. Raises InUseError also for one that connected clients read."""
        if readers := self._clients.readers(topic):
            raise InUseError(f"topic {topic} is read by {', '.join(readers)}\nhint: stop them first")
        if self._broker.has_topic(topic):
            self._tables.set_topic(topic, 0, 0)  # The engine accepts no sends while the topic is deleted.
        try:
            return self._broker.delete_topic(topic)
        finally:
            self._tables.forget_topic(topic)

    def delete_route(self, request: Request) -> Reply:
        """Deletes the topic from the name server, which shares the broker's table."""
        return OK

    def names(self, request: Request) -> Reply:
        """Returns the topics that the client may read. A consumer of a pattern asks for them."""
        may_read, account = self._tables.may_read, request.account
        names = [topic for topic in self._broker.topics() if may_read(account, topic)]
        return Reply(body=json_of({"topicList": names}))

    def all(self, request: Request) -> Reply:
        """Returns the settings of all topics."""
        table = {topic: self._config(topic) for topic in self._broker.topics()}
        return Reply(body=json_of({"dataVersion": _version(), "topicConfigTable": table}))

    def config(self, request: Request) -> Reply:
        """Returns the settings of one topic."""
        topic = text(request.ext_fields, "topic")
        if not self._broker.has_topic(topic):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        return Reply(body=json_of(self._config(topic)))

    def _config(self, topic: str) -> dict[str, Any]:
        reading, writing = self._broker.read_queues(topic), self._broker.write_queues(topic)
        declared = self._broker.message_type(topic)
        return {
            "attributes": {} if declared is None else {_MESSAGE_TYPE: declared},
            "order": False,
            "perm": (_READ if reading else 0) | (_WRITE if writing else 0),
            "readQueueNums": len(reading),
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": len(writing),
        }

    def status(self, request: Request) -> Reply:
        """Returns the first and last offset of each queue of a topic."""
        described = self._broker.describe_topic(text(request.ext_fields, "topic"))
        rows: dict[tuple[str, int], object] = {}
        for queue in described.queues:
            newest = round(queue.newest.timestamp() * 1000) if queue.newest is not None else 0
            row = {"lastUpdateTimestamp": newest, "maxOffset": queue.end, "minOffset": queue.first}
            rows[described.topic, queue.queue_id] = row
        return Reply(body=b"{" + queue_table("offsetTable", self._broker.config.broker_name, rows) + b"}")

    # Groups

    def update_group(self, request: Request) -> Reply:
        """Creates a consumer group, or changes its settings, which hold for clients of the gRPC protocol."""
        said = json_body(request)
        group = said.get("groupName")
        if not isinstance(group, str) or not group:
            raise Refused(ResponseCode.INVALID_PARAMETER, "groupName is missing")
        if said.get("consumeEnable", True) is not True:
            remark = f"consumeEnable must be True, got {said['consumeEnable']!r}: groups cannot be disabled"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        orderly, retries = said.get("consumeMessageOrderly"), said.get("retryMaxTimes")
        if not isinstance(orderly, bool | None) or not isinstance(retries, int | None) or isinstance(retries, bool):
            remark = f"consumeMessageOrderly must be a bool and retryMaxTimes a number, got {orderly!r} and {retries!r}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        self._broker.create_group(group, consume_message_orderly=orderly, retry_max_times=retries)
        return OK

    def delete_subscription_group(self, request: Request) -> Reply:
        self.delete_group(text(request.ext_fields, "groupName"), force=False)
        return OK

    def delete_group(self, group: str, *, force: bool) -> int:
        """Deletes a group by the broker's rules. Raises InUseError also for one with connected consumers."""
        if self._clients.facts_of(group):
            raise InUseError(f"group {group} has connected consumers\nhint: stop them first")
        return self._broker.delete_group(group, force=force)

    def all_groups(self, request: Request) -> Reply:
        """Returns the settings of all groups."""
        table = {group: self._group_entry(group) for group in self._broker.groups()}
        return Reply(body=json_of({"dataVersion": _version(), "subscriptionGroupTable": table}))

    def group(self, request: Request) -> Reply:
        """Returns the settings of one group."""
        group = text(request.ext_fields, "group")
        if not self._broker.has_group(group):
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group}")
        return Reply(body=json_of(self._group_entry(group)))

    def _group_entry(self, group: str) -> dict[str, Any]:
        settings = self._broker.group_settings(group)
        return {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeMessageOrderly": settings.consume_message_orderly,
            "groupName": group,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": settings.retry_max_times,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }

    def progress(self, request: Request) -> Reply:
        """Returns the progress of a group in each queue."""
        group = text(request.ext_fields, "consumerGroup")
        only = request.ext_fields.get("topic")
        rows: dict[tuple[str, int], object] = {}
        for row in self._broker.lag(group):
            if (only and row.topic != only) or row.group != group:
                continue
            at = row.consumer_offset or 0
            rows[row.topic, row.queue_id] = {
                "brokerOffset": row.end,
                "consumerOffset": at,
                "lastTimestamp": 0,
                "pullOffset": at,
            }
        table = queue_table("offsetTable", self._broker.config.broker_name, rows)
        return Reply(body=b'{"consumeTps":0.0,' + table + b"}")

    def topics_of(self, request: Request) -> Reply:
        """Returns the topics that a group reads."""
        group = text(request.ext_fields, "group")
        names = sorted({row.topic for row in self._broker.lag(group)} - {retry_topic(group)})
        return Reply(body=json_of({"topicList": names}))

    def groups_of(self, request: Request) -> Reply:
        """Returns the groups that read a topic."""
        return Reply(body=json_of({"groupList": self._broker.describe_topic(text(request.ext_fields, "topic")).groups}))

    # The broker

    def runtime(self, request: Request) -> Reply:
        """Returns the broker's statistics, all of them as text."""
        stat, counters = self._broker.stat(), self._tables.counters()
        statistics: dict[str, object] = {
            "bootTimestamp": self._began_ms,
            "brokerVersionDesc": f"txstore {_native.__version__}",
            "brokerVersion": 479,
            "commitLogMaxOffset": stat.max_physical_offset,
            "commitLogMinOffset": stat.min_physical_offset,
            "getTransferredTps": "0.0 0.0 0.0",
            "putTps": "0.0 0.0 0.0",
            "pendingTransactions": stat.pending_transactions,
            "runtime": f"{(time.time_ns() // 1_000_000 - self._began_ms) // 1000} s",
            **counters,
        }
        return Reply(body=json_of({"table": {name: str(value) for name, value in statistics.items()}}))

    def properties(self, request: Request) -> Reply:
        """Returns the settings as a properties file."""
        config = self._broker.config
        settings = {
            "autoCreateTopicEnable": str(config.auto_create_topic_enable).lower(),
            "brokerClusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "defaultTopicQueueNums": config.default_topic_queue_nums,
            "flushDiskType": config.flush_disk_type,
            "maxMessageSize": config.max_message_size,
            "transactionCheckMax": config.transaction_check_max,
            "transactionFlushDiskType": config.transaction_flush_disk_type,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        return Reply(fields={"version": '{"counter":0}'}, body=lines.encode())

    def update_properties(self, request: Request) -> Reply:
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "settings cannot change while the server runs\nhint: pass them when it starts",
        )

    def system_names(self, request: Request) -> Reply:
        """Returns an empty list: system topics are not shown to clients."""
        return Reply(body=json_of({"brokerAddr": self._address(), "topicList": []}))


def _declared(attributes: str | None) -> str | None:
    """Returns the message type in the attributes that a client wants to change. Refuses other attributes."""
    declared: str | None = None
    for change in (attributes or "").split(","):
        name, _, value = change.strip().removeprefix("+").partition("=")
        if name == _MESSAGE_TYPE and value:
            declared = value.upper()
        elif name:
            remark = f"attribute {change.strip()!r} is not stored: only +{_MESSAGE_TYPE}=TYPE is"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    return declared


def _version() -> dict[str, int]:
    return {"counter": 0, "stateVersion": 0, "timestamp": 0}
