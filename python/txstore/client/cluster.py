"""Blocking requests to the brokers of a cluster, by one thread, for readers that register with no broker.

In:     the address of name servers or of `txstore serve`; requests about topics and their queues.
Out:    routes and responses.
Always: needs no thread and no event loop. A broker that does not answer is asked at its replicas, in the order of their
        ids, then again after a pause that doubles, with a new route, until `patience` seconds are over.
Not here: heartbeats, sends (`client`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from txstore._native import RemotingCommand, RequestCode, ResponseCode, is_system_topic
from txstore.client.channel import AheadChannel, PendingCall
from txstore.client.dial import connect, name_servers, store_of
from txstore.client.options import ConnectConfig
from txstore.client.route import Route, has_masters, parse_addresses, parse_brokers, parse_names, parse_route
from txstore.errors import BrokerBusyError, BrokerTimeoutError, BrokerUnreachableError, TxStoreError
from txstore.remoting.refusals import refusal

__all__ = ["Cluster", "MessageQueue", "PullAhead"]

_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
_AWAY = (BrokerUnreachableError, BrokerTimeoutError)

T = TypeVar("T")


class MessageQueue(NamedTuple):
    """One queue of a topic, on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic!r} on broker {self.broker}"


class PullAhead(NamedTuple):
    """A request that was sent before its response is wanted."""

    channel: AheadChannel
    call: PendingCall


class Cluster:
    """The brokers that some name servers know."""

    def __init__(self, address: str, config: ConnectConfig, patience: float = 0.0) -> None:
        """Opens nothing. Raises InvalidOptionError for an invalid address."""
        self.address = address
        self.patience = patience
        """How many seconds a broker or a name server that is away is asked again."""
        self._config = config
        self._name_servers = name_servers(address)
        self._is_local = store_of(address) is not None or address.startswith("unix:")
        self._channels: dict[str, AheadChannel] = {}
        self._brokers: dict[str, list[str]] = {}
        # The topics that each broker made for itself.
        self._hidden: dict[str, frozenset[str]] = {}

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Name servers

    def route(self, topic: str) -> Route | None:
        """Returns a topic's route, or None if no broker has it. Raises BrokerUnreachableError, BrokerTimeoutError."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self._patient(lambda: self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, has_masters))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        self._must_succeed(answer, f"the route of topic {topic}", self.address)
        for broker, addresses in parse_addresses(answer.body).items():
            # The address that answered last stays first, if the broker still has it.
            known = self._brokers.get(broker, [])
            first = known[:1] if known and known[0] in addresses and set(known) == set(addresses) else []
            rest = [address for address in addresses if address not in first]
            self._brokers[broker] = [self.address] if self._is_local else [*first, *rest]
        return parse_route(answer.body)

    def topics(self) -> list[str]:
        """Returns the names of the applications' topics, sorted. Raises BrokerUnreachableError, BrokerTimeoutError."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = self._patient(lambda: self._ask_name_servers(code, {}))
        self._must_succeed(answer, "the list of topics", self.address)
        hidden = set(self._system_topics())
        found = parse_names(answer.body, "topicList")
        return sorted(topic for topic in found if topic not in hidden and not is_system_topic(topic))

    def _system_topics(self) -> Iterator[str]:
        """Yields the topics that brokers made for themselves: their own names, their cluster's, and others."""
        said = self._ask_name_servers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {})
        yield from parse_names(said.body, "topicList") if said.code == ResponseCode.SUCCESS else ()
        cluster = self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        for broker, address in (parse_brokers(cluster.body) if cluster.code == ResponseCode.SUCCESS else {}).items():
            self._brokers.setdefault(broker, [self.address if self._is_local else address])
            try:
                own = self._ask_once(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {})
            except _AWAY:
                # They have not changed while it is away.
                if broker not in self._hidden:
                    raise
            else:
                is_known = own.code == ResponseCode.SUCCESS
                self._hidden[broker] = frozenset(parse_names(own.body, "topicList") if is_known else ())
            yield from self._hidden[broker]

    def _ask_name_servers(
        self, code: RequestCode, fields: Mapping[str, str], is_enough: Callable[[bytes], bool] | None = None
    ) -> RemotingCommand:
        """Asks the name servers in order until one answers well enough; otherwise the first answer counts."""
        failed: TxStoreError | None = None
        first: RemotingCommand | None = None
        for address in self._name_servers:
            try:
                answer = self._call(address, code, fields)
            except _AWAY as error:
                failed = error
                continue
            if answer.code == ResponseCode.SUCCESS and (is_enough is None or is_enough(answer.body)):
                return answer
            first = answer if first is None else first
        if first is not None:
            return first
        assert failed is not None
        raise failed

    # Brokers

    def demand(
        self, queue: MessageQueue, code: RequestCode, fields: Mapping[str, str], what: str, body: bytes | None = None
    ) -> RemotingCommand:
        """Sends a request about a queue and returns the response. `what` names the request in errors.

        Raises BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError once `patience` is over, and what `refusal`
        returns for other responses than SUCCESS.
        """
        answer = self._patient(lambda: self._ask_busy(queue, code, fields, body), queue.topic)
        self._must_succeed(answer, what, f"broker {queue.broker}")
        return answer

    def ask(self, queue: MessageQueue, code: RequestCode, fields: Mapping[str, str]) -> RemotingCommand:
        """Sends a request about a queue and returns the response, whatever its code. Raises as `demand` does."""
        return self._patient(lambda: self._ask_busy(queue, code, fields), queue.topic)

    def begin(self, queue: MessageQueue, code: RequestCode, fields: Mapping[str, str]) -> PullAhead | None:
        """Sends a request ahead of its use, if the broker is connected. A failure shows in `finish`."""
        addresses = self._brokers.get(queue.broker)
        channel = self._channels.get(addresses[0]) if addresses else None
        if channel is None or not channel.is_open:
            return None
        try:
            return PullAhead(channel, channel.begin(code, self._fields(queue.broker, fields), timeout=self._seconds))
        except _AWAY:
            return None

    def finish(self, ahead: PullAhead) -> RemotingCommand | None:
        """Returns the response to a request that was sent ahead; None if it must be sent again."""
        try:
            answer = ahead.channel.finish(ahead.call, timeout=self._seconds)
        except _AWAY:
            return None
        return None if isinstance(refusal(answer, "", ""), BrokerBusyError) else answer

    def _ask_busy(
        self, queue: MessageQueue, code: RequestCode, fields: Mapping[str, str], body: bytes | None = None
    ) -> RemotingCommand:
        if queue.broker not in self._brokers:
            self.route(queue.topic)
        answer = self._ask_once(queue.broker, code, fields, body)
        busy = refusal(answer, f"a request about {queue}", f"broker {queue.broker}")
        if isinstance(busy, BrokerBusyError):
            raise busy
        return answer

    def _ask_once(
        self, broker: str, code: RequestCode, fields: Mapping[str, str], body: bytes | None = None
    ) -> RemotingCommand:
        """Asks a broker at each of its addresses, until one answers. That one is asked first from then on."""
        addresses = self._brokers.get(broker)
        if not addresses:
            text = f"no name server at {self.address} knows broker {broker}"
            raise BrokerUnreachableError(f"{text}\nhint: start it, or check the address", address=self.address)
        failed: TxStoreError | None = None
        for address in list(addresses):
            try:
                answer = self._call(address, code, self._fields(broker, fields), body)
            except _AWAY as error:
                failed = failed or error
                continue
            addresses.remove(address)
            addresses.insert(0, address)
            return answer
        assert failed is not None
        raise failed

    def _fields(self, broker: str, fields: Mapping[str, str]) -> dict[str, str]:
        return {**fields, "bname": broker}

    def _patient(self, work: Callable[[], T], topic: str | None = None) -> T:
        """Repeats work that fails because the other side is away or busy, until `patience` is over."""
        until = time.monotonic() + self.patience
        pause = _PAUSE_SECONDS
        while True:
            try:
                return work()
            except (*_AWAY, BrokerBusyError):
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            if topic is not None:
                self._forget(topic)

    def _forget(self, topic: str) -> None:
        """Asks for a topic's route again. Its brokers may have other addresses."""
        patience, self.patience = self.patience, 0.0
        try:
            self.route(topic)
        except TxStoreError:
            pass  # The known addresses are tried again.
        finally:
            self.patience = patience

    # Connections

    @property
    def _seconds(self) -> float:
        return self._config.seconds("request_timeout")

    def _call(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes | None = None
    ) -> RemotingCommand:
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            try:
                return channel.call(code, fields, body, timeout=self._seconds)
            except BrokerUnreachableError:
                # It may be the connection of a server that has been restarted. All requests may be repeated.
                pass
        channel = self._channels[address] = self._dialled(address)
        return channel.call(code, fields, body, timeout=self._seconds)

    def _dialled(self, address: str) -> AheadChannel:
        config = self._config
        credentials = config.credentials
        timeout = config.seconds("connect_timeout")
        with _as_unreachable(address, timeout):
            connected = connect(address, timeout, config.tls_context)
        sign = (lambda fields, body: dict(fields)) if credentials is None else credentials.signed
        return AheadChannel(address, connected, sign)

    @staticmethod
    def _must_succeed(answer: RemotingCommand, what: str, where: str) -> None:
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, what, where)


@contextmanager
def _as_unreachable(address: str, timeout: float) -> Iterator[None]:
    """Raises BrokerUnreachableError for what opening a connection can raise."""
    try:
        yield
    except TimeoutError as error:
        text = f"{address} did not accept a connection within {timeout:g} s\nhint: check that it runs"
        raise BrokerUnreachableError(text, address=address) from error
    except ssl.SSLError as error:
        hint = "tls=true, or the PEM file of the authority; the certificate must name the address's host"
        text = f"the TLS handshake with {address} failed: {error}\nhint: {hint}"
        raise BrokerUnreachableError(text, address=address) from error
    except OSError as error:
        text = f"{address} cannot be reached: {error}\nhint: start it, or check the address"
        raise BrokerUnreachableError(text, address=address) from error
