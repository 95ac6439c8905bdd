"""Requests by hand: the fields and bodies that RocketMQ's clients send, for tests that talk to a server by a `Wire`."""

from __future__ import annotations

import json
from typing import Any

from tests.frames import Response
from txstore._native import RequestCode

__all__ = [
    "BACK", "BATCH", "BY_KEY", "CHECK", "CLUSTER", "COMMIT", "DELETE_TOPIC", "DIRECTLY", "END", "HEARTBEAT", "LOCK",
    "MAX_OFFSET", "MEMBERS", "MEMBERS_CHANGED", "PULL", "QUERY_OFFSET", "RESET", "RESUME", "ROLLBACK", "ROUTE",
    "RUNNING_INFO", "RUNTIME", "SEND", "SEND_V2", "STATUS", "STATUS_ASKED", "UNKNOWN", "UNLOCK", "UNREGISTER",
    "UPDATE_GROUP", "UPDATE_OFFSET", "UPDATE_TOPIC", "VIEW", "ending", "half", "heartbeat", "properties", "pulling",
    "sending",
]  # fmt: skip

# RocketMQ's codes, by shorter names.
SEND = RequestCode.SEND_MESSAGE
PULL = RequestCode.PULL_MESSAGE
END = RequestCode.END_TRANSACTION
SEND_V2 = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
BY_KEY = RequestCode.QUERY_MESSAGE
QUERY_OFFSET = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE_OFFSET = RequestCode.UPDATE_CONSUMER_OFFSET
UPDATE_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO
MAX_OFFSET = RequestCode.GET_MAX_OFFSET
VIEW = RequestCode.VIEW_MESSAGE_BY_ID
HEARTBEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
CHECK = RequestCode.CHECK_TRANSACTION_STATE
MEMBERS_CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO
UPDATE_GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
DELETE_TOPIC = RequestCode.DELETE_TOPIC_IN_BROKER
STATUS_ASKED = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
RUNNING_INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
RESUME = RequestCode.RESUME_CHECK_HALF_MESSAGE

# How a transaction ends.
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def sending(
    topic: str = "orders", *, queue_id: int = 0, text: str = "", group: str = "g", **more: Any
) -> dict[str, Any]:
    """The fields of a send, by their short names."""
    return {
        "a": group, "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": text,
        "j": 0, "k": "false", "m": "false",
    } | more  # fmt: skip


def half(topic: str = "orders", *, group: str = "g", unique_id: str = "ID1") -> dict[str, Any]:
    return sending(topic, group=group, text=properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY=unique_id))


def ending(sent: Response, how: int, *, group: str = "g", **more: Any) -> dict[str, Any]:
    return {
        "producerGroup": group,
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": int(sent.fields["msgId"][-16:], 16),
        "commitOrRollback": how,
        "msgId": sent.fields["transactionId"],
        "transactionId": sent.fields["transactionId"],
    } | more


def pulling(topic: str = "orders", queue_id: int = 0, queue_offset: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "c", "topic": topic, "queueId": queue_id, "queueOffset": queue_offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    } | more  # fmt: skip


def heartbeat(
    client_id: str, *groups: str, topic: str = "orders", producers: tuple[str, ...] = (), version: int = 1
) -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": version, "expressionType": "TAG"}
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        for group in groups
    ]
    said = {"clientID": client_id, "producerDataSet": [{"groupName": name} for name in producers]}
    return json.dumps(said | {"consumerDataSet": consumers}).encode()
