"""Answers the requests that clients send to a name server: topic routes and the cluster.

In:     topic names.
Out:    routes with this broker as the only one, and with its other nodes. `perm` says whether a topic can be sent to
        and read.
Always: if sending may create topics, TBW102 has a route, which clients use for unknown topics.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

from txstore._native import TEMPLATE_TOPIC, ResponseCode, is_system_topic
from txstore.broker import EmbeddedBroker
from txstore.server.request import Refused, Reply, Request, json_of, text

__all__ = ["Routes"]

_READ, _WRITE, _INHERIT = 4, 2, 1  # RocketMQ's PermName.


class Routes:
    """The name server's part of a server."""

    def __init__(
        self, broker: EmbeddedBroker, address: str, nodes: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        """`address`: where clients reach this broker. `nodes`: the addresses of all its nodes by their ids, of which
        0 is the one that is written to; by default this one alone."""
        self._broker = broker
        self.address: str = address
        self._nodes = nodes

    def route(self, request: Request) -> Reply:
        topic = text(request.ext_fields, "topic")
        read, write, inherit = self._queues(topic)
        if not read and not write:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        queues = {
            "brokerName": self._broker.config.broker_name,
            "perm": (_READ if read else 0) | (_WRITE if write else 0) | inherit,
            "readQueueNums": read,
            "topicSysFlag": 0,
            "writeQueueNums": write,
        }
        return Reply(body=json_of({"brokerDatas": [self.broker()], "filterServerTable": {}, "queueDatas": [queues]}))

    def cluster(self, request: Request) -> Reply:
        config = self._broker.config
        tables = {
            "brokerAddrTable": {config.broker_name: self.broker()},
            "clusterAddrTable": {config.cluster_name: [config.broker_name]},
        }
        # RocketMQ's clients ignore fields here. A client of ours tells stores apart by it (`client/outbox_log.py`).
        return Reply(fields={"storeId": self._store_id}, body=json_of(tables))

    @cached_property
    def _store_id(self) -> str:
        return self._broker.store.store_id or ""

    def key_value(self, request: Request) -> Reply:
        raise Refused(ResponseCode.QUERY_NOT_FOUND, "this server has no such configuration")

    def broker(self) -> dict[str, object]:
        """Returns this broker's entry in routes (RocketMQ's BrokerData)."""
        config = self._broker.config
        return {
            "brokerAddrs": {"0": self.address} if self._nodes is None else dict(self._nodes()),
            "brokerName": config.broker_name,
            "cluster": config.cluster_name,
            "enableActingMaster": False,
        }

    def _queues(self, topic: str) -> tuple[int, int, int]:
        """Returns the numbers of readable and of writable queues, and PERM_INHERIT for the template of new topics."""
        config = self._broker.config
        if topic == TEMPLATE_TOPIC and config.auto_create_topic_enable:
            return config.default_topic_queue_nums, config.default_topic_queue_nums, _INHERIT
        if topic in (config.cluster_name, config.broker_name):  # mqadmin asks for these to find brokers.
            return 1, 1, 0
        if is_system_topic(topic) or not self._broker.has_topic(topic):
            return 0, 0, 0
        return len(self._broker.read_queues(topic)), len(self._broker.write_queues(topic)), 0
