"""Operates RocketMQ's own brokers by RocketMQ's administrative requests.

In:     the calls of `Administration`, for all masters of the cluster.
Out:    results of the same classes, as far as RocketMQ tells the facts.
Always: a call that RocketMQ has no request for raises BrokerRefusedError. Reading acknowledges nothing.
Not here: `txstore serve`, which makes these calls on its own broker.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

from txstore._native import (
    DISCARD_TOPIC,
    SYSTEM_GROUP_PREFIX,
    TEMPLATE_TOPIC,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    StoredMessage,
    decode_records,
    is_system_topic,
    validate_group,
    validate_topic,
)
from txstore.broker.queries import QueueExtent, QueueRange, TopicDescription, must_be_positive, must_not_be_system_topic
from txstore.client.client import Client
from txstore.client.reset_offset import parse_offset_table
from txstore.client.route import Queue
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag, dead_letter_of
from txstore.errors import (
    BrokerRefusedError,
    InUseError,
    InvalidNameError,
    InvalidOptionError,
    MessageNotFoundError,
    OffsetTooOldError,
    ProtocolError,
    TransactionNotFoundError,
)
from txstore.message import ConsumeFromWhere, dead_letter_topic, known_names, retry_topic, utc
from txstore.remoting.refusals import refusal
from txstore.selector import Selector, expression, expression_type

__all__ = ["RocketMQAdmin", "not_answered"]

_GROUP = "TOOLS_CONSUMER"  # The group in whose name RocketMQ's tools read. It has no offsets.
_SUBSCRIPTION = 4  # RocketMQ's PullSysFlag: the request has the subscription.
_READ_AND_WRITE = "6"
_LAST = -1
_BATCH = 32
_MOST = 2**63 - 1
_SYSTEM_GROUPS = {
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_SYS_RMQ_TRANS",
}
# A table with objects as keys, which is not valid JSON: {{"brokerName":"b","queueId":0,"topic":"t"}:{…}, …}
_ROW = re.compile(rb"(\{[^{}]*\})\s*:\s*(\{[^{}]*\})")


def not_answered(call: str, broker: str) -> BrokerRefusedError:
    """Returns the error for a call that a RocketMQ broker cannot answer."""
    return BrokerRefusedError(
        f"a RocketMQ broker cannot answer {call}(): its protocol has no such request (broker {broker})\n"
        "hint: `txstore serve` answers it for its store",
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    )


class RocketMQAdmin:
    """RocketMQ's administrative requests over one connection."""

    CALLS: frozenset[str] = frozenset(
        {
            *("topics", "create_topic", "delete_topic", "describe_topic", "queues"),
            *(
                "groups",
                "create_group",
                "create_groups",
                "delete_group",
                "describe_group",
                "lag",
                "lag_by_group",
                "reset_offsets",
            ),
            *("message", "has_messages", "query", "query_by_time", "read", "dead_letters", "resume"),
        }
    )
    """The calls that RocketMQ answers. Each is a method here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # Topics

    async def topics(self) -> list[str]:
        answer = await self._client.ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        system = await self._client.ask_name_servers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {})
        hidden = set(_names(system, "topicList"))
        for broker in self._client.brokers():
            own = await self._client.ask(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {})
            if own.code == ResponseCode.SUCCESS:
                hidden |= set(_names(own, "topicList"))
        found = _names(self._checked(answer, "the list of topics"), "topicList")
        return sorted(topic for topic in found if topic not in hidden and not is_system_topic(topic))

    async def create_topic(self, topic: str, queues: int | None, message_type: str | None = None) -> None:
        validate_topic(topic)
        route = await self._client.refresh_route(topic)
        if route is not None and queues is None and message_type is None:
            return
        there = Counter(queue.broker for queue in route.write) if route is not None else Counter[str]()
        least = max(there.values(), default=1)
        usual = least if there else self._client.options.default_topic_queue_nums
        number = usual if queues is None else queues
        if number < least:
            raise InvalidOptionError(f"topic {topic} has {least} queues already, got {number}", option="queues")
        fields = {
            "topic": topic,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(number),
            "writeQueueNums": str(number),
            "perm": _READ_AND_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        if message_type is not None:
            fields["attributes"] = f"+message.type={message_type}"
        for broker in self._client.brokers():
            await self._client.demand(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, f"topic {topic}")

    async def delete_topic(self, topic: str) -> int:
        messages = (await self.describe_topic(topic)).messages
        await self._delete_topic(topic)
        return messages

    async def _delete_topic(self, topic: str) -> None:
        for broker in self._client.brokers():
            what = f"the deletion of topic {topic}"
            await self._client.demand(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, what)
        await self._client.ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    async def describe_topic(self, topic: str) -> TopicDescription:
        await self._must_know_topic(topic)
        route = await self._client.refresh_route(topic)
        ranges = [one async for one in self._ranges(topic)]
        groups: set[str] = set()
        for broker in self._client.brokers():
            answer = await self._client.ask(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            if answer.code == ResponseCode.SUCCESS:
                groups |= set(_names(answer, "groupList"))
        number = self._client.numbers.number
        return TopicDescription(
            topic,
            tuple(map(number, route.read)) if route is not None else (),
            tuple(map(number, route.write)) if route is not None else (),
            tuple(sorted(ranges, key=lambda one: one.queue_id)),
            sum(one.end - one.first for one in ranges),
            tuple(sorted(groups)),
        )

    async def queues(self, topic: str | None) -> list[QueueExtent]:
        found: list[QueueExtent] = []
        for name in [topic] if topic is not None else await self.topics():
            found += [QueueExtent(name, one.queue_id, one.first, one.end) async for one in self._ranges(name)]
        return sorted(found)

    async def _ranges(self, topic: str) -> AsyncIterator[QueueRange]:
        for broker in self._client.brokers():
            answer = await self._client.ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            if answer.code != ResponseCode.SUCCESS:
                continue  # This broker does not have the topic.
            for queue, facts in _rows(answer.body):
                newest = int(facts.get("lastUpdateTimestamp", 0))
                yield QueueRange(
                    topic,
                    self._client.numbers.number(Queue(broker, queue)),
                    int(facts["minOffset"]),
                    int(facts["maxOffset"]),
                    utc(newest) if newest > 0 else None,
                )

    async def _must_know_topic(self, topic: str) -> None:
        must_not_be_system_topic(topic)
        validate_topic(topic)
        if await self._client.refresh_route(topic) is None:
            raise InvalidNameError(f"there is no topic {topic}\nhint: {known_names('topics', await self.topics())}")

    # Groups

    async def groups(self) -> list[str]:
        found: set[str] = set()
        for broker in self._client.brokers():
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._client.demand(broker, code, {}, "the list of groups")
            found |= _object(answer)["subscriptionGroupTable"].keys()
        return sorted(name for name in found - _SYSTEM_GROUPS if not name.startswith(SYSTEM_GROUP_PREFIX))

    async def create_groups(self, groups: Sequence[str]) -> None:
        for group in groups:
            await self.create_group(group)

    async def create_group(
        self, group: str, *, consume_message_orderly: bool | None = None, retry_max_times: int | None = None
    ) -> None:
        validate_group(group)
        settings = {"consumeMessageOrderly": consume_message_orderly, "retryMaxTimes": retry_max_times}
        given = {name: value for name, value in settings.items() if value is not None}
        body = json.dumps({"groupName": group} | given).encode()
        for broker in self._client.brokers():
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._client.demand(broker, code, {}, f"group {group}", body)

    async def delete_group(self, group: str, *, force: bool) -> int:
        found = await self.describe_group(group)
        if found.members:
            raise InUseError(f"group {group} has {found.members} connected consumers\nhint: stop them first")
        if found.dead_letters and not force:
            raise InUseError(
                f"group {group} has {found.dead_letters} dead letters\n"
                "hint: inspect them, or delete them, too: delete_group(…, force=True), `txstore group delete --yes`"
            )
        fields = {"groupName": group, "cleanOffset": "true"}
        for broker in self._client.brokers():
            what = f"the deletion of group {group}"
            await self._client.demand(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, what)
        for topic in (retry_topic(group), dead_letter_topic(group)):
            if await self._client.refresh_route(topic) is not None:
                await self._delete_topic(topic)
        return found.dead_letters

    async def describe_group(self, group: str) -> GroupDescription:
        rows = await self.lag(group)
        members: set[str] = set()
        for broker in self._client.brokers():
            code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
            answer = await self._client.ask(broker, code, {"consumerGroup": group})
            if answer.code == ResponseCode.SUCCESS:
                members |= set(_names(answer, "consumerIdList"))
        dead = [one async for one in self._ranges(dead_letter_topic(group))]
        return GroupDescription(
            group=group,
            topics=tuple(sorted({row.topic for row in rows} - {retry_topic(group)})),
            queues=tuple(rows),
            lag=sum(row.lag for row in rows),
            dead_letters=sum(one.end - one.first for one in dead),
            members=len(members),
        )

    async def lag(self, group: str) -> list[QueueLag]:
        await self._must_know_group(group)
        return await self._lag(group)

    async def _lag(self, group: str) -> list[QueueLag]:
        found: list[QueueLag] = []
        for broker in self._client.brokers():
            answer = await self._client.ask(broker, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
            if answer.code != ResponseCode.SUCCESS:
                continue  # RocketMQ refuses this for a group that has not read anything there.
            for topic, queue, facts in _topic_rows(answer.body):
                end, offset = int(facts["brokerOffset"]), int(facts["consumerOffset"])
                number = self._client.numbers.number(Queue(broker, queue))
                found.append(QueueLag(group, topic, number, offset, end, max(0, end - offset)))
        return sorted(found, key=lambda row: (row.topic, row.queue_id))

    async def lag_by_group(self) -> dict[str, list[QueueLag]]:
        return {group: await self._lag(group) for group in await self.groups()}

    async def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, queue_id: int | None
    ) -> dict[int, int]:
        await self._must_know_group(group)
        await self._must_know_topic(topic)
        fields = {"topic": topic, "group": group, "isForce": "true", "timestamp": str(_moment(to))}
        brokers = self._client.brokers()
        if queue_id is not None:
            known = await self._queues(topic)
            if queue_id not in known:
                raise InvalidNameError(
                    f"topic {topic} has no queue {queue_id}\nhint: its queues are {', '.join(map(str, known))}"
                )
            queue = known[queue_id]
            offset = await self._reset_target(topic, queue, to)
            fields |= {"queueId": str(queue.queue_id), "offset": str(offset)}
            brokers = [queue.broker]
        elif isinstance(to, int):
            raise InvalidOptionError(
                f"offset {to} applies to one queue only\nhint: name it, for example queue_id=0", option="queue_id"
            )
        found: dict[int, int] = {}
        for broker in brokers:
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._client.demand(broker, code, fields, f"the reset of group {group}")
            for of_topic, queue, offset in parse_offset_table(answer.body):
                if of_topic == topic:
                    found[self._client.numbers.number(Queue(broker, queue.queue_id))] = offset
        return dict(sorted(found.items()))

    async def _reset_target(self, topic: str, queue: Queue, to: ConsumeFromWhere | datetime | int) -> int:
        """Returns the offset to which a single queue is reset."""
        if isinstance(to, datetime):
            return await self._search(topic, queue, _moment(to))
        first, end = await self._range(topic, queue)
        if isinstance(to, ConsumeFromWhere):
            return first if to is ConsumeFromWhere.FIRST else end
        if not first <= to <= end:
            raise InvalidOptionError(
                f"offset {to} is outside {topic}/{queue.queue_id}\nhint: {first} (its first) to {end} (its end)",
                option="to",
            )
        return to

    async def _must_know_group(self, group: str) -> None:
        validate_group(group)
        known = await self.groups()
        if group not in known:
            raise InvalidNameError(f"unknown consumer group {group}\nhint: {known_names('groups', known)}")

    # Messages

    async def message(self, message_id: str, topic: str | None) -> StoredMessage:
        if topic is not None:
            await self._must_know_topic(topic)
        for name in [topic] if topic is not None else await self.topics():
            for found in await self._by_key(name, message_id, 8, by_id=True):
                if found.message_id == message_id:
                    return found
        by_offset = await self._by_offset_id(message_id)
        if by_offset is None or is_system_topic(by_offset.topic) or topic not in (None, by_offset.topic):
            raise MessageNotFoundError(f"there is no message {message_id} in {topic or 'any topic'}")
        return by_offset

    async def _by_offset_id(self, message_id: str) -> StoredMessage | None:
        try:
            physical_offset = int(message_id[-16:], 16) if len(message_id) in (32, 56) else -1
        except ValueError:
            return None
        if not 0 <= physical_offset < 2**63:
            return None
        for broker in self._client.brokers():
            fields = {"offset": str(physical_offset)}
            answer = await self._client.ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, fields)
            if answer.code == ResponseCode.SUCCESS:
                for found in decode_records(answer.body):
                    if found.offset_message_id == message_id.upper():
                        return found
        return None

    async def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]:
        must_not_be_system_topic(topic)
        validate_topic(topic)
        if topic not in await self.topics():
            return [False] * len(message_ids)
        return [bool(await self._by_key(topic, one, 1, by_id=True)) for one in message_ids]

    async def query(self, topic: str, key: str, max_messages: int) -> list[StoredMessage]:
        await self._must_know_topic(topic)
        must_be_positive(max_messages)
        return await self._by_key(topic, key, max_messages)

    async def _by_key(self, topic: str, key: str, most: int, *, by_id: bool = False) -> list[StoredMessage]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(most),
            "beginTimestamp": "0",
            "endTimestamp": str(_MOST),
            "_UNIQUE_KEY_QUERY": "true" if by_id else "false",
        }
        found: list[StoredMessage] = []
        for broker in self._client.brokers():
            answer = await self._client.ask(broker, RequestCode.QUERY_MESSAGE, fields)
            if answer.code == ResponseCode.SUCCESS:
                found += decode_records(answer.body)
            elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise refusal(answer, f"a query in topic {topic}", f"broker {broker}")
        # The broker's index has only hashes.
        found = [one for one in found if one.message_id == key or (not by_id and key in one.keys)]
        return sorted(found, key=lambda one: one.store_timestamp_ms, reverse=True)[:most]

    async def query_by_time(
        self, topic: str, begin: datetime, end: datetime | None, max_messages: int
    ) -> list[StoredMessage]:
        await self._must_know_topic(topic)
        must_be_positive(max_messages)
        found: list[StoredMessage] = []
        async for one in self._ranges(topic):
            queue = self._client.numbers.queue(one.queue_id)
            at = await self._search(topic, queue, _moment(begin))
            until = one.end if end is None else min(one.end, await self._search(topic, queue, _moment(end)))
            found += await self._between(topic, queue, at, until, max_messages)
        return sorted(found, key=lambda one: (one.store_timestamp_ms, one.physical_offset))[:max_messages]

    async def _between(self, topic: str, queue: Queue, at: int, end: int, most: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while at < end and len(found) < most:
            batch, following = await self._pull(topic, queue, at, min(_BATCH, end - at, most - len(found)), None)
            if following <= at:
                break
            found += [message for message in batch if message.queue_offset < end]
            at = following
        return found[:most]

    async def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int, tags: Selector
    ) -> tuple[list[StoredMessage], int]:
        must_not_be_system_topic(topic)
        must_be_positive(max_messages)
        queue = (await self._queues(topic)).get(queue_id)
        return ([], queue_offset) if queue is None else await self._pull(topic, queue, queue_offset, max_messages, tags)

    async def dead_letters(self, group: str, limit: int | None) -> list[DeadLetter]:
        await self._must_know_group(group)
        topic = dead_letter_topic(group)
        found: list[DeadLetter] = []
        async for one in self._ranges(topic):
            queue = self._client.numbers.queue(one.queue_id)
            most = one.end - one.first if limit is None else limit - len(found)
            letters = await self._between(topic, queue, one.first, one.end, most)
            found += [dead_letter_of(group, letter) for letter in letters]
        return found

    async def _pull(
        self, topic: str, queue: Queue, queue_offset: int, most: int, tags: Selector
    ) -> tuple[list[StoredMessage], int]:
        fields = {
            "consumerGroup": _GROUP,
            "topic": topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(most),
            "sysFlag": str(_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": expression(tags),
            "subVersion": "0",
            "expressionType": expression_type(tags),
        }
        answer = await self._client.ask(queue.broker, RequestCode.PULL_MESSAGE, fields)
        following = int(answer.ext_fields.get("nextBeginOffset", queue_offset))
        if answer.code == ResponseCode.SUCCESS:
            return decode_records(answer.body), following
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and following > queue_offset:
            what = f"{topic}/{queue.queue_id} begins at {following}, after {queue_offset}"
            raise OffsetTooOldError(what, minimum=following)
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return [], queue_offset
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return [], following
        raise refusal(answer, f"a pull of {topic}", f"broker {queue.broker}")

    async def _queues(self, topic: str) -> dict[int, Queue]:
        """Returns the readable queues of a topic by their numbers."""
        route = await self._client.refresh_route(topic)
        return {} if route is None else {self._client.numbers.number(queue): queue for queue in route.read}

    async def _search(self, topic: str, queue: Queue, timestamp_ms: int) -> int:
        fields = {"topic": topic, "queueId": str(queue.queue_id), "timestamp": str(timestamp_ms)}
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def _range(self, topic: str, queue: Queue) -> tuple[int, int]:
        fields = {"topic": topic, "queueId": str(queue.queue_id)}
        first = await self._offset(queue, RequestCode.GET_MIN_OFFSET, fields)
        return first, await self._offset(queue, RequestCode.GET_MAX_OFFSET, fields)

    async def _offset(self, queue: Queue, code: RequestCode, fields: dict[str, str]) -> int:
        answer = await self._client.demand(queue.broker, code, fields, f"an offset of {fields['topic']}")
        return int(answer.ext_fields["offset"])

    # Transactions

    async def resume(self, transaction_id: str) -> None:
        """Resumes a discarded transaction. RocketMQ does not tell where its half message is."""
        found = await self._by_key(DISCARD_TOPIC, transaction_id, 8, by_id=True)
        if not found:
            raise TransactionNotFoundError(f"transaction {transaction_id} is not in {DISCARD_TOPIC}")
        fields = {"topic": DISCARD_TOPIC, "msgId": found[0].offset_message_id}
        for broker in self._client.brokers():
            answer = await self._client.ask(broker, RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
            if answer.code == ResponseCode.SUCCESS:
                return
        raise refusal(answer, f"the resume of transaction {transaction_id}", f"broker {broker}")

    # Internal

    def _checked(self, answer: RemotingCommand, what: str) -> RemotingCommand:
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, what, self._client.address)
        return answer


def _moment(to: ConsumeFromWhere | datetime | int) -> int:
    """Returns the time of a reset in ms since the epoch; 0 for the first message, -1 for the end."""
    if isinstance(to, datetime):
        return round(to.timestamp() * 1000)
    return 0 if to is ConsumeFromWhere.FIRST else _LAST


def _object(answer: RemotingCommand) -> dict[str, Any]:
    try:
        said = json.loads(answer.body or b"{}")
    except ValueError as error:
        raise ProtocolError(f"the broker returned invalid JSON: {error}") from error
    if not isinstance(said, dict):
        raise ProtocolError(f"the broker returned a JSON {type(said).__name__}, expected an object")
    return said


def _names(answer: RemotingCommand, field: str) -> list[str]:
    return [str(name) for name in _object(answer).get(field) or ()]


def _topic_rows(body: bytes) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields topic, queue id and facts of each row of a table whose keys are message queues."""
    for key, row in _ROW.findall(body):
        try:
            queue, facts = json.loads(key), json.loads(row)
            yield str(queue["topic"]), int(queue["queueId"]), facts
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"the broker returned a malformed table: {error!r}") from error


def _rows(body: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for _, queue_id, facts in _topic_rows(body):
        yield queue_id, facts
