"""Routes: the name server's half: where a topic's queues are.

In: topics' names. Out: their queues, all of them here. Always: what a client may send to or read stands in its
permission; a topic that is not there may be asked for as TBW102, where sending may make it. Not here: other brokers.
"""

from txstore._native import TEMPLATE_TOPIC, is_system_topic
from txstore.broker import Broker
from txstore.remoting.codes import ResponseCode
from txstore.remoting.server.request import Refused, Reply, Request, json_of, text

__all__ = ["Routes"]

_READ, _WRITE, _INHERIT = 4, 2, 1  # RocketMQ's PermName.


class Routes:
    """`address` is where clients reach this broker."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self.address = address

    def route(self, request: Request) -> Reply:
        topic = text(request.fields, "topic")
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
        return Reply(body=json_of(tables))

    def key_value(self, request: Request) -> Reply:
        raise Refused(ResponseCode.QUERY_NOT_FOUND, "no such configuration is kept here")

    def broker(self) -> dict[str, object]:
        """This broker, as routes name it."""
        config = self._broker.config
        return {
            "brokerAddrs": {"0": self.address},
            "brokerName": config.broker_name,
            "cluster": config.cluster_name,
            "enableActingMaster": False,
        }

    def _queues(self, topic: str) -> tuple[int, int, int]:
        """Queues to read and to send to, and whether a new topic may take after it."""
        config = self._broker.config
        if topic == TEMPLATE_TOPIC and config.auto_create_topic_enable:
            return config.default_topic_queue_nums, config.default_topic_queue_nums, _INHERIT
        if topic in (config.cluster_name, config.broker_name):  # So mqadmin asks where brokers are.
            return 1, 1, 0
        if is_system_topic(topic) or not self._broker.has_topic(topic):
            return 0, 0, 0
        return len(self._broker.read_queues(topic)), len(self._broker.write_queues(topic)), 0
