"""Builds heartbeats, which tell brokers the producer groups and consumers of this client.

In:     producers and consumers.
Out:    the body of a heartbeat.
Always: the consumers of a group appear as one, with the subscriptions of all.
"""

import json
from collections.abc import Iterable
from typing import Any

from txstore._native import java_hash_code
from txstore.interface import ConsumerMember, ProducerMember
from txstore.message import MessageModel, retry_group, retry_topic
from txstore.selector import Selector, Sql, expression, expression_type

__all__ = ["heartbeat", "offset_group", "offset_name", "reader_heartbeat", "subscription"]


def offset_group(consumer: ConsumerMember) -> str:
    """Returns the group name under which brokers keep a consumer's offsets. Broadcasting consumers have their own."""
    name = consumer.instance_name
    return consumer.group if name is None else f"{consumer.group}%{name}"


def offset_name(consumer: ConsumerMember, topic: str) -> str:
    """Returns the name under which a consumer keeps its offsets in one of its topics."""
    is_retry = topic == retry_topic(consumer.group)
    return retry_group(consumer.group, consumer.topic) if is_retry else offset_group(consumer)


def heartbeat(client_id: str, producers: Iterable[ProducerMember], consumers: Iterable[ConsumerMember]) -> bytes | None:
    """Returns the body of a heartbeat, or None if there are no producers and consumers."""
    groups: dict[str, tuple[MessageModel, dict[str, Selector]]] = {}
    for consumer in consumers:
        _, topics = groups.setdefault(offset_group(consumer), (consumer.message_model, {}))
        topics[consumer.topic] = consumer.tags
        if consumer.message_model is MessageModel.CLUSTERING:
            topics[retry_topic(consumer.group)] = None
    producer_groups = sorted({producer.group for producer in producers})
    if not groups and not producer_groups:
        return None
    facts = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": group} for group in producer_groups],
        "consumerDataSet": [_consumers(group, model, topics) for group, (model, topics) in groups.items()],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }
    return json.dumps(facts).encode()


def reader_heartbeat(client_id: str, group: str, topics: Iterable[str]) -> bytes:
    """Returns the body of a heartbeat of a reader that is a member of a group and chooses its queues by itself."""
    consumers = _consumers(group, MessageModel.CLUSTERING, dict.fromkeys(topics))
    facts = {
        "clientID": client_id,
        "producerDataSet": [],
        "consumerDataSet": [consumers | {"consumeType": "CONSUME_ACTIVELY"}],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }
    return json.dumps(facts).encode()


def _consumers(group: str, model: MessageModel, topics: dict[str, Selector]) -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model.value,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription(topic, selector) for topic, selector in topics.items()],
        "unitMode": False,
    }


def subscription(topic: str, selector: Selector) -> dict[str, Any]:
    """Returns the SubscriptionData of a topic."""
    tags = () if selector is None or isinstance(selector, Sql) else selector
    return {
        "topic": topic,
        "subString": expression(selector),
        "tagsSet": list(tags),
        "codeSet": [java_hash_code(tag) for tag in tags],
        "subVersion": 0,
        "expressionType": expression_type(selector),
        "classFilterMode": False,
    }
