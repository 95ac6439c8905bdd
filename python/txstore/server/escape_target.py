"""Sends half messages of this store to another broker, so that it ends their transactions.

In:     a half message of the log; a name server.
Out:    whether the other broker has it.
Always: the unique id, the producer group and the application's properties stay, so that the other broker asks the same
        producers, and a txstore recognizes a half message that it has or had. Nothing is sent before `connect` returns.
Not here: which half messages, and the record of what was sent (`escape`).
"""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from txstore._native import TEMPLATE_TOPIC, RemotingCommand, RequestCode, ResponseCode, StoredMessage
from txstore.client.channel import Channel
from txstore.client.cluster import Cluster
from txstore.client.options import ConnectConfig
from txstore.client.route import Queue
from txstore.client.sending import end_fields, is_stored, send_fields
from txstore.errors import BrokerUnreachableError, ProtocolError
from txstore.message import HalfMessage, LocalTransactionState
from txstore.server.node_channel import open_channel

__all__ = ["EscapeTarget", "EscapeTargets", "is_sendable"]

_CALL_SECONDS = 3.0
_PREPARED = 4  # The transaction bits of a sysflag.
_COMPRESSION_BITS = 0x701
_QUEUES = "4"  # For a topic that the other broker creates.
# What a broker adds to a half message, and the record's CRC.
_NOT_SENT = frozenset(
    "REAL_TOPIC REAL_QID TRANSACTION_CHECK_TIMES TRAN_PREPARED_QUEUE_OFFSET __transactionId__ __CRC32# CLUSTER "
    "MSG_REGION TRACE_ON WAIT".split()
)
_SET, _TIMER = "TXSTORE_SET", "TXSTORE_DELIVER_MS"


def is_sendable(stored: StoredMessage) -> bool:
    """Returns whether a half message can escape: not one of a transaction of several messages, or with a time."""
    properties = stored.properties
    return _SET not in properties and _TIMER not in properties


class EscapeTarget:
    """A connection to another broker."""

    def __init__(self, name: str, address: str, config: ConnectConfig) -> None:
        """Raises BrokerUnreachableError, BrokerTimeoutError, ProtocolError."""
        self.name: str = name
        """The broker's name."""
        self._channel: Channel = open_channel(address, config, seconds=_CALL_SECONDS)
        try:
            self.is_txstore: bool = self._asked_what_it_is()
        except BaseException:
            self._channel.close()
            raise

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._channel.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection has not failed."""
        return self._channel.is_open

    def send(self, stored: StoredMessage, queue_id: int) -> RemotingCommand:
        """Sends a half message. Returns the answer, whatever its code.

        Raises BrokerUnreachableError and BrokerTimeoutError; the broker may have it then.
        """
        half = HalfMessage(stored)
        kept = [(name, value) for name, value in stored.properties.items() if name not in _NOT_SENT]
        properties = "".join(f"{name}\x01{value}\x02" for name, value in kept)
        sys_flag = stored.sys_flag & _COMPRESSION_BITS | _PREPARED
        born_ms = str(round(stored.born_timestamp.timestamp() * 1000))
        queue = Queue(self.name, queue_id)
        group = stored.producer_group or ""
        fields = send_fields(group, half.topic, queue, sys_flag, born_ms, stored.flag, properties)
        fields |= {"d": _QUEUES, "m": "false", "escaped": "true"}
        return self._channel.call(RequestCode.SEND_MESSAGE_V2, fields, stored.stored_body, timeout=_CALL_SECONDS)

    def has(self, answer: RemotingCommand) -> bool:
        """Returns whether the answer to `send` says that the broker has the half message, or had it."""
        # With this code a txstore tells that the transaction has ended there.
        return is_stored(answer) or (self.is_txstore and answer.code == ResponseCode.TRANSACTION_FAILED)

    def commit(self, stored: StoredMessage, answer: RemotingCommand) -> bool:
        """Commits a half message that `send` has stored. Returns whether the broker did; otherwise it asks by itself.

        Raises as `send` does, and ProtocolError.
        """
        facts = answer.ext_fields
        half = HalfMessage(stored)
        try:
            at = int(facts["queueOffset"]), int(facts["msgId"][-16:], 16)
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"broker {self.name} does not say where it stored a half message") from error
        sent = _Sent(half.topic, half.message_id, half.transaction_id, *at)
        fields = end_fields(sent, stored.producer_group or "", LocalTransactionState.COMMIT)
        ended = self._channel.call(RequestCode.END_TRANSACTION, fields, timeout=_CALL_SECONDS)
        return ended.code == ResponseCode.SUCCESS

    def _asked_what_it_is(self) -> bool:
        """Returns whether the broker is a txstore: its answer to a heartbeat has a field of its own."""
        body = json.dumps({"clientID": "txstore-escape", "producerDataSet": [], "consumerDataSet": []}).encode()
        return "connection" in self._channel.call(RequestCode.HEART_BEAT, {}, body, timeout=_CALL_SECONDS).ext_fields


@dataclass(frozen=True, slots=True)
class _Sent:
    """Where the other broker has a half message."""

    topic: str
    message_id: str
    transaction_id: str | None
    queue_offset: int
    physical_offset: int


class EscapeTargets:
    """The brokers that a name server knows, except those of this store's group. Used by one thread."""

    def __init__(self, name_server: str, config: ConnectConfig, own_name: str) -> None:
        self._config, self._own_name = config, own_name
        self._cluster = Cluster(name_server, config)
        self._open: dict[str, EscapeTarget] = {}
        self._turns = itertools.count()
        self.name_server: str = name_server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._cluster.close()
        for target in self._open.values():
            target.close()
        self._open.clear()

    def choose(self, topic: str, name: str | None = None) -> tuple[EscapeTarget, int]:
        """Returns a connected broker that takes a topic, or the one with this name, and a queue of the topic.

        Raises BrokerUnreachableError if there is none, BrokerTimeoutError, ProtocolError.
        """
        route = self._cluster.route(topic)
        if route is None or not self._usable(route.write, name):
            route = self._cluster.route(TEMPLATE_TOPIC)
        queues = [] if route is None else self._usable(route.write, name)
        if route is None or not queues:
            what = "another broker" if name is None else f"broker {name}"
            text = f"the name server at {self.name_server} knows of no {what} that takes topic {topic}"
            hint = "start one, or create the topic there"
            raise BrokerUnreachableError(f"{text}\nhint: {hint}", address=self.name_server, in_doubt=False)
        queue = queues[next(self._turns) % len(queues)]
        return self._connected(queue.broker, route.brokers[queue.broker]), queue.queue_id

    def _usable(self, queues: Iterable[Queue], name: str | None) -> list[Queue]:
        return [queue for queue in queues if queue.broker != self._own_name and name in (None, queue.broker)]

    def _connected(self, name: str, address: str) -> EscapeTarget:
        known = self._open.get(name)
        if known is None or not known.is_open:
            self._open[name] = known = EscapeTarget(name, address, self._config)
        return known
