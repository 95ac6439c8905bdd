"""Requests by hand: the fields and bodies that RocketMQ's clients send, for tests that speak to a server by a `Wire`.

In: what a test wants. Out: fields, bodies. Not here: frames (`tests/frames.py`).
"""

from __future__ import annotations

import json
from typing import Any

from tests.frames import Response

__all__ = [
    "BATCH", "COMMIT", "END", "PULL", "ROLLBACK", "SEND", "SEND_V2", "UNKNOWN",
    "ending", "half", "heartbeat", "properties", "pulling", "sending",
]  # fmt: skip

SEND, PULL, SEND_V2, BATCH, END = 10, 11, 310, 320, 37
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
