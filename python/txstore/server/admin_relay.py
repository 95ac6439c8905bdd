"""Relays the requests of operators to consumers, and the responses back.

In:     GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY and INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
Out:    the consumer's response, or an error if it disconnects or does not respond within ten seconds.
Always: no thread waits. The operator's access key and signature are not relayed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from txstore._native import ClientAnswer, RequestCode, ResponseCode
from txstore.broker import EmbeddedBroker
from txstore.server.clients import Clients
from txstore.server.request import (
    Refused,
    Reply,
    Request,
    client_message,
    json_of,
    offset_of,
    text,
)

__all__ = ["AdminRelay", "Asker"]

_ANSWER_SECONDS = 10.0
# The body is not valid JSON, since its keys are objects: {"consumerTable":{},"messageQueueTable":{{…}:5,{…}:7}}
_QUEUE_TABLE = re.compile(rb'"messageQueueTable":(\{(?:\{[^{}]*\}:-?\d+,?)*\})')

Done = Callable[[Reply], None]


class Asker(Protocol):
    """Sends requests to clients and responses to operators."""

    def ask(self, connection: int, code: int, fields: dict[str, str], body: bytes | None = None) -> int | None: ...
    def answer(self, request: Request, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that a client has not answered yet."""

    client_id: str
    until: float
    done: Done


class AdminRelay:
    """The relayed requests of a server. Used on the server's thread only. `monotonic` returns seconds."""

    def __init__(self, broker: EmbeddedBroker, clients: Clients, line: Asker, monotonic: Callable[[], float]) -> None:
        self._broker = broker
        self._clients = clients
        self._line = line
        self._monotonic = monotonic
        self._asked: dict[tuple[int, int], _Asked] = {}

    # Requests, each answered later

    def running_info(self, request: Request) -> None:
        self._relay(request, RequestCode.GET_CONSUMER_RUNNING_INFO, ("consumerGroup", "clientId", "jstackEnable"))

    def consume_directly(self, request: Request) -> None:
        """Asks a consumer to handle one message again, out of order. Its offsets do not change."""
        body = None
        if message_id := request.ext_fields.get("msgId"):
            body = client_message(self._broker.store, offset_of(message_id)).record
        names = ("consumerGroup", "clientId", "msgId", "topic")
        self._relay(request, RequestCode.CONSUME_MESSAGE_DIRECTLY, names, body)

    def status(self, request: Request) -> None:
        """Asks each consumer of a group, or one of them, for its queue offsets in a topic."""
        fields = request.ext_fields
        topic, group, wanted = text(fields, "topic"), text(fields, "group"), fields.get("clientAddr", "")
        members = {client_id: at for client_id, at in self._clients.members(group) if wanted in ("", client_id)}
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no such consumer of group {group} is connected")
        waiting, tables = set(members), dict[str, bytes]()

        def done(client_id: str, reply: Reply) -> None:
            waiting.discard(client_id)
            if reply.code == ResponseCode.SUCCESS and (found := _QUEUE_TABLE.search(reply.body or b"")):
                tables[client_id] = found[1]
            if not waiting:
                rows = b",".join(json_of(name) + b":" + table for name, table in tables.items())
                self._line.answer(request, Reply(body=b'{"consumerTable":{' + rows + b"}}"))

        for client_id, connection in members.items():
            told = {"topic": topic, "group": group}
            code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            self._ask(client_id, connection, code, told, None, partial(done, client_id))

    # Events

    def answered(self, answer: ClientAnswer) -> None:
        """Passes a client's response to the operator's request."""
        asked = self._asked.pop((answer.connection, answer.opaque), None)
        if asked is not None:
            asked.done(Reply(answer.code, answer.remark, body=answer.body))

    def closed(self, connection: int) -> None:
        """Answers with an error all requests to the client of a closed connection."""
        for key in [key for key in self._asked if key[0] == connection]:
            asked = self._asked.pop(key)
            asked.done(_offline(asked.client_id))

    def expire(self) -> None:
        now = self._monotonic()
        for key in [key for key, asked in self._asked.items() if asked.until <= now]:
            asked = self._asked.pop(key)
            remark = f"consumer {asked.client_id} did not answer within {_ANSWER_SECONDS:g} s"
            asked.done(Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark))

    # Internal

    def _relay(self, request: Request, code: RequestCode, names: tuple[str, ...], body: bytes | None = None) -> None:
        fields = request.ext_fields
        group, client_id = text(fields, "consumerGroup"), text(fields, "clientId")
        connection = dict(self._clients.members(group)).get(client_id)  # The newest, if a client has reconnected.
        if connection is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer {client_id} of group {group} is connected")
        # The other fields concern only the operator: access key and signature.
        told = {name: fields[name] for name in names if name in fields}
        told["brokerName"] = self._broker.config.broker_name
        self._ask(client_id, connection, code, told, body, partial(self._line.answer, request))

    def _ask(
        self, client_id: str, connection: int, code: int, fields: dict[str, str], body: bytes | None, done: Done
    ) -> None:
        opaque = self._line.ask(connection, code, fields, body)
        if opaque is None:
            done(_offline(client_id))
        else:
            self._asked[connection, opaque] = _Asked(client_id, self._monotonic() + _ANSWER_SECONDS, done)


def _offline(client_id: str) -> Reply:
    return Reply(ResponseCode.SYSTEM_ERROR, f"consumer {client_id} is no longer connected")
