"""Asks the connected members of a consumer group which queues they have.

In:     a server, whose relay asks them as mqadmin's consumerStatus does; a group and a topic.
Out:    for each member the ids of its queues.
"""

from __future__ import annotations

import re

from tests.frames import Wire
from tests.remoting_requests import RUNNING_INFO
from txstore import Server

__all__ = ["queues_of_members"]

# The body is not valid JSON, since its keys are objects: "mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{…},…}
_QUEUE = re.compile(r"\{[^{}]*\"queueId\":\d+[^{}]*\}(?=:)")


def queues_of_members(server: Server, group: str, topic: str) -> list[set[int]]:
    """Returns the queues of each member; without those that do not answer yet."""
    assert server.address is not None
    found = []
    with Wire(server.address) as operator:
        for client_id, _ in server.clients.members(group):
            told = operator.call(RUNNING_INFO, {"consumerGroup": group, "clientId": client_id})
            if told.code == 0:
                queues = [queue for queue in _QUEUE.findall(told.body.decode()) if f'"topic":"{topic}"' in queue]
                found.append({int(re.findall(r'"queueId":(\d+)', queue)[0]) for queue in queues})
    return found
