"""Answers the calls of operators for which RocketMQ has no request, or one that tells less.

In:     TXSTORE_ADMIN: the name of a call in a field, its arguments in the body.
Out:    what the same call of the broker returns in this process, or the error that it raises.
Always: the broker's own calls answer; there is no second implementation. Only the listed calls can be made. With
        accounts, only administrators make them (the table of request codes).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, ClassVar, Protocol

from txstore._native import RemotingServer, ResponseCode
from txstore.broker import EmbeddedBroker
from txstore.broker.operations import Operations, Overview, ReplicaRow
from txstore.console.operator import unknown_call
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.errors import TxStoreError
from txstore.message import ConsumeFromWhere, LocalTransactionState, retry_group, retry_topic
from txstore.remoting.administration import decode, encode, encode_error
from txstore.selector import Sql
from txstore.server.clients import Clients
from txstore.server.node_calls import NodeCalls
from txstore.server.offsets import Offsets
from txstore.server.replicas import Nodes
from txstore.server.replication import state_of
from txstore.server.request import Refused, Reply, Request, text
from txstore.server.topics import Topics
from txstore.transaction_state import TransactionState

__all__ = ["Administration"]

_ANSWER_BYTES_MAX = 12 << 20  # A frame has 16 MiB at most.

Kind = type | UnionType
_TEXT = str | None
_FILTER: dict[str, Kind] = {"group": _TEXT, "topic": _TEXT, "id_prefix": _TEXT, "limit": int | None}
_CALLS: dict[str, dict[str, Kind]] = {
    "transactions": {"state": TransactionState | None, "older_than": timedelta | None, **_FILTER},
    "transaction": {"transaction_id": str},
    "end_transaction": {"transaction": str, "state": LocalTransactionState},
    "transaction_states": {"transaction_ids": list},
    "discard": {"transaction": str},
    "resume": {"transaction_id": str},
    "topics": {},
    "create_topic": {"topic": str, "queues": int | None, "message_type": _TEXT},
    "delete_topic": {"topic": str},
    "describe_topic": {"topic": str},
    "queues": {"topic": _TEXT},
    "groups": {},
    "create_group": {"group": str, "consume_message_orderly": bool | None, "retry_max_times": int | None},
    "create_groups": {"groups": list},
    "delete_group": {"group": str, "force": bool},
    "describe_group": {"group": str},
    "lag": {"group": str},
    "lag_by_group": {},
    "reset_offsets": {
        "group": str,
        "topic": str,
        "to": ConsumeFromWhere | datetime | int,
        "queue_id": int | None,
    },
    "dead_letters": {"group": str, "limit": int | None},
    "resend": {"letter": DeadLetter},
    "message": {"message_id": str, "topic": _TEXT},
    "has_messages": {"topic": str, "message_ids": list},
    "query": {"topic": str, "key": str, "max_messages": int},
    "query_by_time": {"topic": str, "begin": datetime, "end": datetime | None, "max_messages": int},
    "read": {"topic": str, "queue_id": int, "queue_offset": int, "max_messages": int, "tags": list | str | None},
    "stat": {},
    "oldest_timestamp": {},
    "flush": {},
    "replication_state": {"replica": str, "address": _TEXT, "known": str},
    "replication_status": {},
    "overview": {},
    "topic_rows": {"topics": list},
    "group_rows": {"groups": list},
    "pending_page": {
        "group": _TEXT,
        "topic": _TEXT,
        "id_prefix": _TEXT,
        "older_than": timedelta | None,
        "after": int,
        "limit": int,
    },
    "transactions_by_key": {"key": str},
    "transaction_message": {"transaction_id": str},
    "discarded_page": {"start": int, "limit": int},
    "dead_groups": {},
    "dead_letter_page": {"group": str, "start": int, "limit": int},
    "delayed_levels": {"limit": int},
    "ask": {"transaction_id": str},
    "settings": {},
    "outbox_facts": {},
    "group_members": {"group": str},
    "accept_epoch": {"epoch": int, "source": str, "store_id": str},
    "promote": {"lose_messages": bool},
    "forget_replica": {"name": str},
    "escaped_transactions": {},
    "note_escaped": {"replica": str, "escapes": bool, "rows": list},
}
"""The calls, each with the types of its arguments."""


class OperatedServer(Protocol):
    """The part of a `Server` that operators see."""

    @property
    def broker(self) -> EmbeddedBroker: ...
    @property
    def native(self) -> RemotingServer: ...
    @property
    def nodes(self) -> Nodes: ...
    def counters(self) -> dict[str, int]: ...
    def failure(self) -> TxStoreError | None: ...


class ShownOptions(Protocol):
    """The options of a server, which are shown, and those that concern copies of its store."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def replica_of(self) -> str | None: ...
    @property
    def replicas_required(self) -> int: ...


class Administration:
    """Makes the calls on the broker. The other parts of the server take part where clients or nodes are affected."""

    def __init__(
        self,
        server: OperatedServer,
        options: ShownOptions,
        clients: Clients,
        topics: Topics,
        offsets: Offsets,
        calls: NodeCalls,
    ) -> None:
        self._server = server
        self._options = options
        self._broker = broker = server.broker
        self._clients = clients
        self._operations = Operations(broker)
        self._own: dict[str, Callable[..., object]] = {
            "delete_topic": topics.delete_topic,
            "delete_group": topics.delete_group,
            "describe_group": self._describe_group,
            "reset_offsets": offsets.reset_offsets,
            "read": self._read,
            "replication_state": self._replication_state,
            "replication_status": server.nodes.status,
            "accept_epoch": calls.accept_epoch,
            "promote": calls.promote,
            "forget_replica": calls.forget_replica,
            "note_escaped": calls.note_escaped,
            "overview": self._overview,
            "settings": self._settings,
            "group_members": self._clients.facts_of,
        }

    def make(self, name: str, /, **arguments: Any) -> object:
        """Makes a listed call in this process. Raises what the broker's call raises."""
        made: Callable[..., object] | None = self._own.get(name) or getattr(self._operations, name, None)
        if made is None and name not in _CALLS:
            raise unknown_call(name)
        return (made or getattr(self._broker, name))(**arguments)

    def call(self, request: Request) -> Reply:
        """Makes a call. An error is answered with its class and its facts, so that the client can raise it."""
        try:
            name = text(request.ext_fields, "call")
            answer = encode(self.make(name, **_arguments(name, decode(request.body))))
        except TxStoreError as error:
            return Reply(Refused.because(error).code, str(error), encode_error(error))
        if len(answer) > _ANSWER_BYTES_MAX:
            remark = f"the answer to {name} has {len(answer):,} bytes, at most {_ANSWER_BYTES_MAX:,} can be sent"
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{remark}\nhint: ask for fewer, with a limit or a filter")
        return Reply(body=answer)

    def _read(self, *, tags: list[str] | str | None, **where: Any) -> object:
        """Reads a queue. A string is an SQL92 expression, a list has tags."""
        return self._broker.read(**where, tags=Sql(tags) if isinstance(tags, str) else tags)

    def _overview(self) -> Overview:
        """Returns the store at this moment, with what its server knows."""
        server, counters, failure = self._server, self._server.counters(), self._server.failure()
        return dataclasses.replace(
            self._operations.overview(),
            failure=None if failure is None else f"{type(failure).__name__}: {failure}",
            connections=counters["connections"],
            producers=counters["producers"],
            consumers=counters["consumers"],
            replica_of=self._options.replica_of,
            replicas=tuple(ReplicaRow(*row[:3]) for row in server.native.replicas()),
            replicas_required=self._options.replicas_required,
        )

    def _settings(self) -> dict[str, dict[str, str]]:
        """Returns the settings of the store, and those of its server."""
        options = {name: str(getattr(self._options, name)) for name in self._options.__dataclass_fields__}
        return self._operations.settings() | {"server": options}

    def _describe_group(self, group: str) -> GroupDescription:
        """Describes a group; its members are those of this process and the connected ones."""
        found, connected = self._broker.describe_group(group), self._clients.facts_of(group)
        progress = {
            (topic, queue_id, retry_group(group, origin) if topic == retry_topic(group) else group): counts[:2]
            for origin, topic, queue_id, *counts in self._server.native.grpc_progress(group)
        }
        return dataclasses.replace(
            found,
            queues=tuple(_with_progress(row, progress) for row in found.queues),
            members=found.members + len(connected),
            protocol=connected[0].protocol if connected else None,
        )

    def _replication_state(self, replica: str, address: str | None, known: str) -> dict[str, Any]:
        self._server.nodes.note(replica, address)
        return state_of(self._broker, self._server.nodes.own_address, known)


def _with_progress(row: QueueLag, progress: Mapping[tuple[str, int, str], Sequence[int]]) -> QueueLag:
    """Adds what clients of the gRPC protocol have of a queue: how many messages now, how many again later. `progress`:
    by topic, queue, and the name under which the offset is stored."""
    in_flight, to_redeliver = progress.get((row.topic, row.queue_id, row.group), (0, 0))
    return dataclasses.replace(row, in_flight=in_flight, to_redeliver=to_redeliver)


def _arguments(name: str, said: object) -> Mapping[str, Any]:
    """Returns the arguments of a call. Raises Refused for an unknown call, and for unknown or wrong arguments."""
    kinds = _CALLS.get(name)
    if kinds is None:
        remark = f"this server has no administrative call {name[:60]!r}\nhint: use the same release on both sides"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    if not isinstance(said, dict) or said.keys() != kinds.keys():
        remark = (
            f"the arguments of {name} must be {', '.join(kinds) or 'none'}\nhint: use the same release on both sides"
        )
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    for argument, kind in kinds.items():
        value = said[argument]
        right = isinstance(value, kind) and (kind in (bool, bool | None) or not isinstance(value, bool))
        if not right or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
            remark = f"the argument {argument} of {name} has the wrong type: {str(value)[:60]!r}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    return said
