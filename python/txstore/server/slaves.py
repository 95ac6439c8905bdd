"""Slaves of RocketMQ: brokers that copy the log of this server over RocketMQ's HA protocol.

In:     their registrations, as a name server gets them; the end of the log of each one that connects; its own answers.
Out:    the addresses of their master; topics, groups and offsets; whether a slave may copy the log.
Always: the log of a slave that is not empty is a prefix of this one, or it gets nothing: a slave takes any bytes that
        begin at its end, acknowledges them, and shows other messages from then on.
Not here: the bytes of the protocol (`rust/src/server/ha.rs`).

The protocol has no names, so a slave that connects is found among those that have registered from the same address: its
log ends where the connection says. That slave is asked for its last record.
"""

import ipaddress
import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from txstore._native import (
    DISCARD_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    RequestCode,
    ResponseCode,
    SlaveConnected,
)
from txstore.broker import EmbeddedBroker
from txstore.client.dial import host_and_port
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, ProtocolError
from txstore.server.request import OK, Refused, Reply, Request, json_of, number, text
from txstore.server.slave_channel import KEEP, SlaveChannel

__all__ = ["Slaves"]

_log = logging.getLogger("txstore.replica")
_SLAVES_MAX = 16
_REGISTERED_SECONDS = 120.0  # RocketMQ's name server forgets a broker after the same time.
_LOGGED_AGAIN_SECONDS = 60.0
_DELAY_LEVELS = 18
_WHEEL_TOPIC = "rmq_sys_wheel_timer"
Handler = Callable[[Request], Reply]
Networks = Sequence[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]


@dataclass(slots=True)
class _Slave:
    """A slave that has registered."""

    broker_id: int
    address: str
    """Where clients reach it."""
    came_from: str
    """The IP address from which it registered."""
    until: float
    """When it is forgotten, unless it registers again."""
    connections: set[int] = field(default_factory=set)
    """Those over which it copies the log."""


class Slaves:
    """The slaves of a server. Thread-safe."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        master: str,
        ha: str | None,
        allow: Networks,
        role: Callable[[], str],
        monotonic: Callable[[], float],
    ) -> None:
        """`master`: where clients and slaves reach this server. `ha`: where slaves copy the log, None if nowhere.
        `allow`: the networks from which they may connect, in addition to this machine. `role`: as `Server.role`."""
        self._broker, self._master, self._role, self._monotonic = broker, master, role, monotonic
        self._allow = [ipaddress.ip_network(one) for one in allow]
        self._ha = ha if ha is None else _reached(ha, master)
        self._lock = threading.Lock()
        self._slaves: dict[int, _Slave] = {}
        self._refused: dict[str, tuple[str, float]] = {}

    # Which slaves may copy the log

    def admit(self, asked: SlaveConnected) -> Reply:
        """Returns OK if the log of a slave that has connected is a prefix of this one, otherwise raises Refused."""
        host = _host(asked.address)
        try:
            found = self._checked(host, asked.physical_offset)
        except Refused as refused:
            if refused.code != ResponseCode.SYSTEM_BUSY:
                self._log_refusal(asked.address, str(refused))
            raise
        with self._lock:
            for one in found:
                one.connections.add(asked.connection)
        names = ", ".join(one.address for one in found) or "a slave that has not registered"
        _log.info("%s copies the log from %d on", names, asked.physical_offset, extra={"client": asked.address})
        return OK

    def closed(self, connection: int) -> None:
        """Notes that a connection has ended."""
        with self._lock:
            for one in self._slaves.values():
                one.connections.discard(connection)

    def addresses(self) -> dict[int, str]:
        """Returns the addresses of the slaves that copy the log, by their ids."""
        with self._lock:
            return {one.broker_id: one.address for one in self._slaves.values() if one.connections}

    def lags(self, reported: Iterable[tuple[int, int]]) -> dict[str, int]:
        """Returns how many bytes of the log each slave lacks, by its address. `reported`: connections, and where the
        slave's log ends."""
        end = self._broker.store.appended_end
        with self._lock:
            of = {number: one.address for one in self._slaves.values() for number in one.connections}
        return {of[number]: max(0, end - at) for number, at in reported if number in of}

    def _checked(self, host: str, end: int) -> list[_Slave]:
        """Returns the slaves that a connection from `host` may be of. Raises Refused if one of them differs."""
        if self._role() != "source":
            raise Refused(ResponseCode.NO_PERMISSION, "this node is not the source: no slave can copy its log")
        store, own_end = self._broker.store, self._broker.store.appended_end
        first = self._broker.stat().min_physical_offset
        if end > own_end:
            remark = f"its log ends at {end}, and this one at {own_end}: it has what this store has lost or never had"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{remark}\n{KEEP}")
        if 0 < end < first:
            remark = f"its log ends at {end}, and retention has removed all below {first}"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{remark}\n{KEEP}")
        with self._lock:
            known = [one for one in self._living() if one.came_from == host]
        found = []
        for one in known:
            try:
                with SlaveChannel(one.address) as slave:
                    if slave.end() != end:
                        continue
                    slave.check_file_size(self._broker.stat().commit_log_file_size)
                    if end > 0:
                        slave.check_record(store.record_before(end))
                    found.append(one)
            except (BrokerUnreachableError, BrokerTimeoutError, ProtocolError) as error:
                _log.info("the slave %s cannot be asked: %s", one.address, error)
        if end > 0 and not found:
            # Not yet, perhaps: it registers each 30 s.
            remark = (
                f"the slave at {host} whose log ends at {end} cannot be compared with this store, because none with "
                "this end has registered here, or can be reached\n"
                f"hint: namesrvAddr={self._master} in its broker.conf"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        return found

    def _living(self) -> list[_Slave]:
        """Returns the registered slaves, without those that have not registered again in time."""
        now = self._monotonic()
        self._slaves = {of: one for of, one in self._slaves.items() if one.until > now or one.connections}
        return list(self._slaves.values())

    def _log_refusal(self, address: str, remark: str) -> None:
        """Logs why a slave is refused: it connects again every five seconds."""
        host, now = _host(address), self._monotonic()
        with self._lock:
            before, at = self._refused.get(host, ("", 0.0))
            if before == remark and now < at + _LOGGED_AGAIN_SECONDS:
                return
            self._refused = {of: kept for of, kept in self._refused.items() if now < kept[1] + _LOGGED_AGAIN_SECONDS}
            self._refused[host] = (remark, now)
        _log.error("the slave at %s may not copy the log: %s", host, remark, extra={"client": address})

    # Requests of slaves

    def handlers(self, topics: Handler, groups: Handler) -> dict[int, Handler]:
        """Returns the handlers of the requests that slaves send. `topics` and `groups` answer them for operators."""
        return {
            RequestCode.REGISTER_BROKER: self._needed(self._allowed(self._register)),
            RequestCode.UNREGISTER_BROKER: self._needed(self._allowed(self._unregister)),
            RequestCode.EXCHANGE_BROKER_HA_INFO: self._needed(self._ha_info),
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda request: self._topics(topics(request)),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda request: self._versioned(groups(request)),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._needed(self._offsets),
            RequestCode.GET_ALL_DELAY_OFFSET: self._needed(self._delays),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._needed(_no_request_modes),
            RequestCode.GET_TIMER_CHECK_POINT: self._needed(self._timer_checkpoint),
            RequestCode.GET_TIMER_METRICS: self._needed(_no_timer_metrics),
        }

    def _needed(self, handler: Handler) -> Handler:
        """Returns a handler that answers only if this server has a port for slaves."""

        def answer(request: Request) -> Reply:
            if self._ha is None:
                remark = f"request code {request.code} is served to slaves of RocketMQ alone\nhint: --ha-listen"
                raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            return handler(request)

        return answer

    def _allowed(self, handler: Handler) -> Handler:
        """Returns a handler that answers only clients that may also connect to the port for slaves."""

        def answer(request: Request) -> Reply:
            # A client of a Unix socket has no IP address, and slaves use none.
            host = None if ":" not in request.address else ipaddress.ip_address(_host(request.address))
            if host is None or not (host.is_loopback or any(host in network for network in self._allow)):
                remark = f"{host or request.address} is not among the networks of slaves\nhint: --ha-allow"
                raise Refused(ResponseCode.NO_PERMISSION, remark)
            return handler(request)

        return answer

    def _register(self, request: Request) -> Reply:
        """Notes a slave, and tells it where its master is."""
        fields, config = request.ext_fields, self._broker.config
        broker_id, address = number(fields, "brokerId"), text(fields, "brokerAddr")
        names = (text(fields, "clusterName"), text(fields, "brokerName"))
        if names != (config.cluster_name, config.broker_name) or broker_id <= 0:
            remark = (
                f"a slave must be of cluster {config.cluster_name} and broker {config.broker_name}, with an id "
                f"above 0, got {names[0]}, {names[1]} and {broker_id}\n"
                f"hint: brokerClusterName={config.cluster_name}, brokerName={config.broker_name}, brokerId=1 and "
                "brokerRole=SLAVE in its broker.conf"
            )
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        _check_address(address)
        if self._role() != "source":
            return OK
        seconds = max(number(fields, "heartbeatTimeoutMillis", 0) / 1000, _REGISTERED_SECONDS)
        until = self._monotonic() + min(seconds, 10 * _REGISTERED_SECONDS)
        with self._lock:
            known = {one.broker_id for one in self._living()}
            if broker_id not in known and len(known) >= _SLAVES_MAX:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"at most {_SLAVES_MAX} slaves can register")
            before = self._slaves.get(broker_id)
            connections = before.connections if before is not None and before.address == address else set()
            self._slaves[broker_id] = _Slave(broker_id, address, _host(request.address), until, connections)
        return Reply(fields={"haServerAddr": self._ha or "", "masterAddr": self._master})

    def _unregister(self, request: Request) -> Reply:
        with self._lock:
            self._slaves.pop(number(request.ext_fields, "brokerId"), None)
        return OK

    def _ha_info(self, request: Request) -> Reply:
        """Returns the addresses of the master."""
        if request.ext_fields.get("masterHaAddress"):
            raise Refused(ResponseCode.INVALID_PARAMETER, "this server is the master, and follows none")
        fields = {"masterHaAddress": self._ha or "", "masterAddress": self._master}
        return Reply(fields=fields | {"masterFlushOffset": str(self._broker.stat().visible_physical_offset)})

    def _topics(self, reply: Reply) -> Reply:
        """Adds the system's topics, which a slave would otherwise drop."""
        if self._ha is None:
            return reply
        config, table = self._broker.config, json.loads(reply.body or b"{}")
        for topic, queues in {
            TEMPLATE_TOPIC: config.default_topic_queue_nums,
            HALF_TOPIC: 1,
            OP_TOPIC: 1,
            DISCARD_TOPIC: 1,
            SCHEDULE_TOPIC: _DELAY_LEVELS,
            config.cluster_name: 16,
            config.broker_name: 1,
        }.items():
            table["topicConfigTable"][topic] = {
                "attributes": {},
                "order": False,
                "perm": 7 if topic in (TEMPLATE_TOPIC, config.cluster_name, config.broker_name) else 6,
                "readQueueNums": queues,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
                "writeQueueNums": queues,
            }
        table |= {"mappingDataVersion": _version(), "topicQueueMappingDetailMap": {}}
        return self._versioned(Reply(body=json_of(table)))

    def _versioned(self, reply: Reply) -> Reply:
        """Returns a table with a version that a slave does not have yet, so that it takes the table."""
        if self._ha is None:
            return reply
        return Reply(body=json_of(json.loads(reply.body or b"{}") | {"dataVersion": _version()}))

    def _offsets(self, request: Request) -> Reply:
        table: dict[str, dict[str, int]] = {}
        for topic, group, queue_id, queue_offset in self._broker.store.consumer_offsets():
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = queue_offset
        return Reply(body=json_of({"dataVersion": _version(), "offsetTable": table}))

    def _delays(self, request: Request) -> Reply:
        written = self._broker.store.config_text("delayOffset.json")
        return Reply(body=written.encode() if written is not None else json_of({"offsetTable": {}}))

    def _timer_checkpoint(self, request: Request) -> Reply:
        """Returns that nothing waits in RocketMQ's timer up to now: messages that a broker has once put into it were
        delivered, or wait elsewhere here. With less, a promoted slave would deliver them again.

        The last time that was read, three positions (the last one is that of the master's queue), and a version.
        """
        end, now = self._broker.store.queue_range(_WHEEL_TOPIC, 0)[1], time.time_ns() // 1_000_000
        return Reply(body=struct.pack(">7q", now, 0, end, end, 0, now, 0))


def _no_request_modes(request: Request) -> Reply:
    return Reply(body=json_of({"messageRequestModeMap": {}}))


def _no_timer_metrics(request: Request) -> Reply:
    return Reply(body=json_of({"dataVersion": _version(), "timingCount": {}}))


def _version() -> dict[str, int]:
    return {"counter": 0, "stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}


def _host(address: str) -> str:
    """Returns the host of the address of a connection."""
    return str(_canonical(host_and_port(address)[0]))


def _canonical(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(host)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"brokerAddr must be HOST:PORT, got {address[:60]!r}")


def _reached(listen: str, master: str) -> str:
    """Returns where slaves reach the port: at the host of the broker, if it listens at all addresses."""
    host, port = host_and_port(listen)
    return f"{master.rpartition(':')[0]}:{port}" if ipaddress.ip_address(host).is_unspecified else listen
