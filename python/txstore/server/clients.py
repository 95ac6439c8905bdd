"""Keeps track of the connected producers and consumers and of their groups.

In:     heartbeats, unregistrations, closed connections.
Out:    producers that answer checks; the members of consumer groups.
Always: a client that disconnects, or sends no heartbeat for two minutes, leaves its groups. The other members are
        notified and rebalance by themselves.
"""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from txstore._native import NewProducer, RequestCode, ResponseCode, is_system_topic, validate_group, validate_topic
from txstore.broker import EmbeddedBroker
from txstore.broker.operations import MemberRow
from txstore.errors import InvalidNameError, InvalidOptionError
from txstore.listener import Checker
from txstore.message import HalfMessage, LocalTransactionState, TransactionMessage
from txstore.selector import Selector, parse_subscription
from txstore.server.request import (
    OK,
    Refused,
    Reply,
    Request,
    json_body,
    json_of,
    must_be_short,
    text,
)
from txstore.transactions.answer import Answer

__all__ = ["Clients", "GroupLimits", "Line", "RemoteProducer"]

_log = logging.getLogger("txstore.remoting")

_SILENT_SECONDS = 120.0
_GROUPS_MAX = 1_000  # In one heartbeat; also the most producer groups of one connection.
_SUBSCRIPTIONS_MAX = 10_000  # In one heartbeat.


class Line(Protocol):
    """The calls of the server by which clients and the engine are informed."""

    def send(self, connection: int, code: int, fields: dict[str, str], body: bytes | None = None) -> bool: ...
    def may_send(self, account: str | None, topic: str) -> bool: ...
    def accepts_checks(self, connection: int) -> bool: ...
    def send_check(self, connection: int, account: str | None, half_queue_offset: int) -> bool: ...
    def forget_producer(self, connection: int, group: str) -> None: ...
    def set_subscriptions(self, group: str, wanted: list[tuple[str, Selector, int]]) -> None: ...
    def grpc_members(self, group: str) -> int: ...
    def grpc_clients_of(self, group: str) -> list[tuple[str, str, str, int]]: ...
    def grpc_readers(self, topic: str) -> list[str]: ...


class RemoteProducer:
    """A producer group on one connection. The broker sends it the checks of the group's transactions."""

    def __init__(self, line: Line, connection: int, group: str, address: str) -> None:
        self._line = line
        self.language = "OTHER"
        self.version = 0
        self.connection = connection
        self.group = group
        self.number = 0
        self.account: str | None = None
        self.heard: float = 0.0
        self._address = address

    def __repr__(self) -> str:
        return f"RemoteProducer({self.group!r}, {self._address})"

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Returns the checker, or None if no check would reach it now (a gRPC client without a stream), or if its
        account may not publish to the topic and so must not see the message."""
        able = self._line.accepts_checks(self.connection) and self._line.may_send(self.account, topic)
        return self._check if able else None

    def _check(self, half: TransactionMessage) -> Answer:
        """Sends the check. The answer arrives as END_TRANSACTION, which the engine handles."""
        assert isinstance(half, HalfMessage)  # `check` passes one to every checker.
        if not self._line.send_check(self.connection, self.account, half.half_queue_offset):
            raise ConnectionError(f"the connection of {self!r} no longer accepts checks")
        return Answer(LocalTransactionState.UNKNOWN, "sent; the answer will arrive as an end", sent=True)

    def topics_changed(self) -> None:
        """Does nothing: the server informs the engine."""

    def close(self) -> None:
        """Does nothing: the producer belongs to the client."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits the consumer groups that clients may create."""

    groups_max: int = 10_000
    auto_create: bool = True


@dataclass(slots=True)
class _Member:
    """A consumer of a group."""

    client_id: str
    connection: int
    address: str
    language: str
    version: int
    heard: float
    subscriptions: dict[str, dict[str, Any]]
    """Its SubscriptionData by topic."""


@dataclass(slots=True)
class _Group:
    """A consumer group's members by client id and connection, and their subscriptions by topic.

    Another client may send the same client id, so a second connection with it does not replace the first.
    """

    members: dict[tuple[str, int], _Member] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


class Clients:
    """The connected producers and consumers of a server. Thread-safe. `monotonic` returns seconds."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        line: Line,
        monotonic: Callable[[], float],
        limits: GroupLimits = GroupLimits(),  # It is frozen.
        joined: Callable[[str, int], None] | None = None,
    ) -> None:
        """`joined` is called with the group and the connection of each new consumer."""
        self._limits = limits
        self._joined = joined
        self._broker = broker
        self._line = line
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._producers: dict[int, dict[str, RemoteProducer]] = {}
        self._groups: dict[str, _Group] = {}
        self._consumers: dict[int, set[tuple[str, str]]] = {}  # By connection: groups and client ids.

    # Requests

    def heartbeat(self, request: Request) -> Reply:
        said = json_body(request)
        client_id = said.get("clientID")
        producers, consumers = said.get("producerDataSet") or [], said.get("consumerDataSet") or []
        if not isinstance(client_id, str) or not isinstance(producers, list) or not isinstance(consumers, list):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                "clientID, producerDataSet or consumerDataSet is missing or has the wrong type",
            )
        if len(producers) + len(consumers) > _GROUPS_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"a heartbeat may have at most {_GROUPS_MAX} groups")
        must_be_short(client_id, "clientID")
        wanted = [_subscriptions(consumer) for consumer in consumers]
        if sum(map(len, wanted)) > _SUBSCRIPTIONS_MAX:
            remark = f"a heartbeat may have at most {_SUBSCRIPTIONS_MAX} subscriptions"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        for producer in producers:
            known = self.producer(request, _name(producer, "groupName"))
            # A producer that was registered by its first half message has neither until a heartbeat arrives.
            known.language, known.version = request.language, request.version
        names = [_name(consumer, "groupName") for consumer in consumers]
        for name in names:
            if name not in self._groups and self._line.grpc_members(name):
                remark = f"group {name} has consumers of the gRPC protocol: a group has one kind of consumers at a time"
                raise Refused(ResponseCode.NO_PERMISSION, f"{remark}\nhint: stop them first")
        with self._lock:
            self.create_groups([name for name in names if name not in self._groups])
            changes = [
                self._consumer(request, client_id, name, consumer, said)
                for name, consumer, said in zip(names, consumers, wanted, strict=True)
            ]
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if any(changes) else "false"}
        # For half messages that the client sends over other connections (a field of txstore).
        fields["connection"] = str(request.connection)
        return Reply(fields=fields)

    def producer(self, request: Request | NewProducer, group: str) -> RemoteProducer:
        """Returns the group's producer on this connection; registers a new one. Raises InvalidNameError."""
        with self._lock:
            known = self._producers.setdefault(request.connection, {})
            if group not in known:
                validate_group(group)
                if len(known) >= _GROUPS_MAX:
                    remark = f"this connection already has {_GROUPS_MAX} producer groups, the most that are allowed"
                    raise Refused(ResponseCode.NO_PERMISSION, remark)
                producer = RemoteProducer(self._line, request.connection, group, request.address)
                producer.account = request.account
                producer.number = self._broker.register_producer(producer)
                known[group] = producer
            producer = known[group]
            producer.account, producer.heard = request.account, self._monotonic()
            return producer

    def checkers(self, group: str, topic: str, tag: str | None) -> list[Checker]:
        """Returns what checks transactions of a topic with a tag at the connected producers of a group."""
        with self._lock:
            producers = [of[group] for of in self._producers.values() if group in of]
        found = (producer.checker_for(topic, tag) for producer in producers)
        return [checker for checker in found if checker is not None]

    def unregister(self, request: Request) -> Reply:
        fields = request.ext_fields
        client_id = text(fields, "clientID")
        if group := fields.get("producerGroup"):
            self._forget_producer(request.connection, group)
        if group := fields.get("consumerGroup"):
            with self._lock:
                # A client could send another client's id, so the connection must match.
                self._leave(group, {(client_id, request.connection)})
        return OK

    def consumer_ids(self, request: Request) -> Reply:
        group = text(request.ext_fields, "consumerGroup")
        with self._lock:
            ids = sorted({client_id for client_id, _ in self.members(group)})
        if not ids:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer of group {group} is connected")
        return Reply(body=json_of({"consumerIdList": ids}))

    def check_config(self, request: Request) -> Reply:
        """Checks that a consumer's subscription is supported. Raises Refused if not."""
        subscription = json_body(request).get("subscriptionData")
        if isinstance(subscription, dict):
            _selector(subscription)
        return OK

    def consumer_connections(self, request: Request) -> Reply:
        group = text(request.ext_fields, "consumerGroup")
        with self._lock:
            known = self._groups.get(group)
            if known is None or not known.members:
                raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {group} is connected")
            connections = [_connection(member) for member in known.members.values()]
            body = {"connectionSet": connections, "subscriptionTable": known.subscriptions, **known.facts}
        return Reply(body=json_of(body))

    def producer_connections(self, request: Request) -> Reply:
        group = text(request.ext_fields, "producerGroup")
        with self._lock:
            found = [of[group] for of in self._producers.values() if group in of]
        if not found:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no producer of group {group} is connected")
        connections = [
            {"clientAddr": str(producer), "clientId": str(producer.number), "language": "OTHER", "version": 0}
            for producer in found
        ]
        return Reply(body=json_of({"connectionSet": connections}))

    # Events

    def closed(self, connection: int) -> None:
        """Removes the producers and consumers of a closed connection."""
        with self._lock:
            for group in list(self._producers.get(connection, ())):
                self._forget_producer(connection, group)
            self._producers.pop(connection, None)
            for name, client_id in self._consumers.pop(connection, set()):
                self._leave(name, {(client_id, connection)})

    def expire(self) -> None:
        """Removes producers and consumers whose last heartbeat is too old."""
        before = self._monotonic() - _SILENT_SECONDS
        with self._lock:
            silent = [one for of in self._producers.values() for one in of.values() if one.heard < before]
            for producer in silent:
                self._forget_producer(producer.connection, producer.group)
            for name, group in list(self._groups.items()):
                self._leave(name, {key for key, member in group.members.items() if member.heard < before})

    def tell(self, group: str, code: int, fields: dict[str, str], body: bytes | None = None) -> int:
        """Sends a one-way request to all consumers of a group. Returns to how many it was sent."""
        with self._lock:
            members = list(self._groups[group].members.values()) if group in self._groups else []
        return sum(self._line.send(member.connection, code, fields, body) for member in members)

    def close(self) -> None:
        """Removes all producers and consumers without notifying the others."""
        with self._lock:
            self._groups.clear()
            self._consumers.clear()
            for connection in list(self._producers):
                self.closed(connection)

    def counts(self, group: str | None = None) -> dict[str, int]:
        """Returns the numbers of producers and consumers, of one group or of all."""
        with self._lock:
            producers = [name for of in self._producers.values() for name in of]
            consumers = [name for name, of in self._groups.items() for _ in of.members]
        wanted = producers if group is None else [name for name in producers if name == group]
        reading = consumers if group is None else [name for name in consumers if name == group]
        return {"producers": len(wanted), "consumers": len(reading)}

    def connected(self) -> tuple[list[tuple[str, int]], list[tuple[str, str, int, str]]]:
        """Returns producers as (language, version) and consumers as (group, language, version, push or pull)."""
        with self._lock:
            producers = [one for of in self._producers.values() for one in of.values()]
            members = [
                (name, one, group.facts) for name, group in self._groups.items() for one in group.members.values()
            ]
        modes = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}
        reading = [
            (name, one.language, one.version, modes.get(facts.get("consumeType", ""), "other"))
            for name, one, facts in members
        ]
        return [(one.language, one.version) for one in producers], reading

    def members(self, group: str) -> list[tuple[str, int]]:
        """Returns a group's consumers as (client id, connection)."""
        with self._lock:
            known = self._groups.get(group)
            return [] if known is None else [(one.client_id, one.connection) for one in known.members.values()]

    def facts_of(self, group: str) -> list[MemberRow]:
        """Returns a group's consumers with what operators want to know of them."""
        now = self._monotonic()
        with self._lock:
            known = self._groups.get(group)
            members = [] if known is None else list(known.members.values())
        of_grpc = self._line.grpc_clients_of(group)
        return [MemberRow(*facts, topics=(), protocol="grpc") for facts in sorted(of_grpc)] + [
            MemberRow(
                one.client_id,
                one.address,
                one.language,
                max(0, int((now - one.heard) * 1000)),
                tuple(sorted(one.subscriptions)),
            )
            for one in members
        ]

    def readers(self, topic: str) -> list[str]:
        """Returns the groups with connected consumers of a topic."""
        with self._lock:
            readers = {name for name, group in self._groups.items() if topic in group.subscriptions}
        return sorted(readers.union(self._line.grpc_readers(topic)))

    # Internal

    def _consumer(
        self, request: Request, client_id: str, name: str, said: dict[str, Any], wanted: dict[str, dict[str, Any]]
    ) -> bool:
        """Registers a consumer. Returns whether its group changed."""
        with self._lock:
            self._consumers.setdefault(request.connection, set()).add((name, client_id))
            group = self._groups.setdefault(name, _Group())
            known = group.members.get((client_id, request.connection))
            with_subscriptions = said.get("withoutSub") is not True
            if not with_subscriptions:
                # A client that has reconnected may rely on what it said on its old connection.
                said_before = [one.subscriptions for one in group.members.values() if one.client_id == client_id]
                wanted = known.subscriptions if known is not None else next(iter(said_before), wanted)
            group.members[client_id, request.connection] = _Member(
                client_id,
                request.connection,
                request.address,
                request.language,
                request.version,
                self._monotonic(),
                wanted,
            )
            keys = ("consumeType", "messageModel", "consumeFromWhere")
            group.facts = {key: str(said.get(key)) for key in keys}
            changed = known is None
            if with_subscriptions:
                changed |= group.subscriptions.keys() != wanted.keys()
                self._subscribe(name, group, _newest(wanted.keys(), group.members.values()))
        if known is None:
            _log.info("consumer %s joined group %s", client_id, name, extra={"group": name, "client": client_id})
            if self._joined is not None:
                self._joined(name, request.connection)
        if changed:
            self._notify(name)
        return changed

    def create_groups(self, groups: list[str]) -> None:
        """Creates groups, and their retry topics, for their first consumers. Raises Refused if that is not allowed."""
        if self._broker.read_only:  # A replica gets its groups from its source.
            return
        fresh = [group for group in dict.fromkeys(groups) if not self._broker.has_group(group)]
        if fresh and not self._limits.auto_create:
            remark = f"there is no consumer group {fresh[0]}, and auto_create_subscription_group is off"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if fresh and len(self._broker.groups()) + len(fresh) > self._limits.groups_max:
            remark = f"group {fresh[0]} cannot be created: at most {self._limits.groups_max} are allowed (groups_max)"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        if groups:
            self._broker.create_groups(groups)

    def _subscribe(self, name: str, group: _Group, wanted: dict[str, dict[str, Any]]) -> None:
        """Sets a group's subscriptions and tells the engine if they changed."""
        before, group.subscriptions = group.subscriptions, wanted
        if _wanted_by(before) != _wanted_by(wanted):
            self._line.set_subscriptions(name, _wanted_by(wanted))

    def _leave(self, name: str, keys: set[tuple[str, int]]) -> None:
        """Removes members by client id and connection. Others are ignored."""
        with self._lock:
            group = self._groups.get(name)
            gone = keys & set(group.members) if group is not None else set()
            if group is None or not gone:
                return
            for client_id, connection in gone:
                del group.members[client_id, connection]
                self._consumers.get(connection, set()).discard((name, client_id))
                _log.info("consumer %s left group %s", client_id, name, extra={"group": name, "client": client_id})
            if not group.members:
                del self._groups[name]
                self._line.set_subscriptions(name, [])
            else:
                # Subscriptions that only the removed members had must not restrict the others.
                self._subscribe(name, group, _newest(group.subscriptions.keys(), group.members.values()))
        self._notify(name)

    def _notify(self, group: str) -> None:
        self.tell(group, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def _forget_producer(self, connection: int, group: str) -> None:
        with self._lock:
            producer = self._producers.get(connection, {}).pop(group, None)
        if producer is not None:
            self._line.forget_producer(connection, group)
            self._broker.unregister_producer(producer)


def _name(said: object, key: str) -> str:
    name = said.get(key) if isinstance(said, dict) else None
    if not isinstance(name, str):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the heartbeat has a group without {key}")
    try:
        validate_group(name)
    except InvalidNameError as error:
        raise Refused.because(error) from None
    return name


def _newest(topics: Collection[str], members: Collection[_Member]) -> dict[str, dict[str, Any]]:
    """Returns the subscription with the newest version for each topic.

    Each member has its own versions (in RocketMQ's clients the time of their start), which its pulls name.
    """
    found: dict[str, dict[str, Any]] = {}
    for topic in topics:
        said = [member.subscriptions[topic] for member in members if topic in member.subscriptions]
        if said:
            found[topic] = max(said, key=_version)
    return found


def _version(subscription: dict[str, Any]) -> int:
    version = subscription.get("subVersion")
    return version if isinstance(version, int) and -(2**63) <= version < 2**63 else 0


def _subscriptions(consumer: object) -> dict[str, dict[str, Any]]:
    """Returns a consumer's subscriptions of a heartbeat by topic. Raises Refused for an invalid topic name."""
    said = consumer.get("subscriptionDataSet") if isinstance(consumer, dict) else None
    found = {one["topic"]: one for one in said if _is_subscription(one)} if isinstance(said, list) else {}
    for topic in found:
        try:
            if not is_system_topic(topic):
                validate_topic(topic)
        except InvalidNameError as error:
            raise Refused.because(error) from None
    return found


def _wanted_by(subscriptions: dict[str, dict[str, Any]]) -> list[tuple[str, Selector, int]]:
    return [_wanted(one) for one in subscriptions.values()]


def _is_subscription(said: object) -> bool:
    return isinstance(said, dict) and isinstance(said.get("topic"), str)


def _wanted(subscription: dict[str, Any]) -> tuple[str, Selector, int]:
    try:
        selector = _selector(subscription)
    except Refused as error:
        # A heartbeat cannot be refused because of one topic. The consumer's pulls are refused instead.
        _log.warning("a subscription is not supported: %s", error, extra={"topic": subscription["topic"]})
        return subscription["topic"], [], 0
    return subscription["topic"], selector, _version(subscription)


def _selector(subscription: dict[str, Any]) -> Selector:
    """Returns what a subscription selects. Raises Refused for what is not supported."""
    kind, said = str(subscription.get("expressionType") or "TAG"), subscription.get("subString")
    try:
        return parse_subscription(kind, said if said is None else str(said))
    except InvalidOptionError as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


def _connection(member: _Member) -> dict[str, object]:
    return {
        "clientAddr": member.address,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }
