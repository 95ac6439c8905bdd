"""Slaves of RocketMQ that act as master, with remote escape: what they need around them, and what each test counts.

In:     directories of stores; a name server that outlives all brokers.
Out:    a master that is a txstore or a RocketMQ, its slave in a process of its own, another broker.
Always: as RocketMQ's documentation configures it: two replicas, and a name server with supportActingMaster.
"""

from __future__ import annotations

import json
from typing import Any

from tests.frames import Wire
from tests.peer.rocketmq import SMALL, EmbeddedBroker, Facts
from txstore import Server
from txstore._native import HALF_TOPIC, TEMPLATE_TOPIC, TRANSACTION_GROUP, RequestCode, ResponseCode, strict_json

TOPIC, GROUP = "orders", "shop"
CAUGHT_UP_S = 120.0
# A master of such a group asks its slave at its start how far its timer is, for ever if the slave has none.
SIZES: Facts = SMALL | {"totalReplicas": 2, "timerWheelEnable": True}
SETTINGS: Facts = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "compatibleWithOldNameSrv": False,
    "brokerIP2": "127.0.0.1",
    "slaveReadEnable": True,
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 200,
    "defaultTopicQueueNums": 4,
}


class Registered:
    """A `txstore serve` that a name server of RocketMQ knows, for as long as the connection is open."""

    def __init__(self, names: str, server: Server) -> None:
        self._wire = Wire(names)
        config = server.broker.config
        topics = {
            name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": perm, "order": False}
            | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {}}
            for name, perm in ((TOPIC, 6), (TEMPLATE_TOPIC, 7), (config.broker_name, 7))
        }
        table = {"topicConfigTable": topics, "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}}
        fields: dict[str, Any] = {"brokerName": config.broker_name, "clusterName": config.cluster_name}
        fields |= {"brokerAddr": str(server.address), "brokerId": 0, "haServerAddr": str(server.ha or server.address)}
        fields |= {"enableActingMaster": "true", "bodyCrc32": 0, "compressed": "false"}
        body = json.dumps({"topicConfigSerializeWrapper": table, "filterServerList": []}).encode()
        answer = self._wire.call(RequestCode.REGISTER_BROKER, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer

    def close(self) -> None:
        """Lets the name server forget the broker, as the end of its process does."""
        self._wire.close()


def members(names: str, broker: str = "peer") -> dict[str, str]:
    """The brokers of a group that the name server knows, by their ids."""
    with Wire(names) as wire:
        fields = {"clusterName": "peers", "brokerName": broker}
        answer = wire.call(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
    group = json.loads(strict_json(answer.body.decode()))["brokerMemberGroup"]
    return {str(number): str(address) for number, address in group["brokerAddrs"].items()}


def halves(broker: EmbeddedBroker) -> int:
    """How many half messages a broker of RocketMQ has in its log, each time that it was put back included."""
    return sum(end for topic, _, _, end in broker.status()["queues"] if topic == HALF_TOPIC)


def is_finished(broker: EmbeddedBroker) -> bool:
    """Whether it has passed all of them: they have ended or escaped."""
    passed = broker.status()["offsets"].get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {})
    return halves(broker) in passed.values()
