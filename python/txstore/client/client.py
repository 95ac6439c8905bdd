"""The asyncio client: name servers, brokers, routes and heartbeats, on one loop.

In:     requests to brokers; the producers and consumers of this client.
Out:    responses; the requests of brokers, passed to listeners.
Always: each master gets heartbeats while there are producers or consumers, also after it was restarted, and so does
        the replica that is read while there is none. A failed connection is retried after a pause that doubles.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from txstore._native import TEMPLATE_TOPIC, RemotingCommand, RequestCode, ResponseCode, unique_id
from txstore.client.arrivals import Arrivals
from txstore.client.connection import Connection
from txstore.client.connections import Connections
from txstore.client.dial import Dial, dial, name_servers, store_of
from txstore.client.heartbeat import heartbeat
from txstore.client.options import ConnectConfig
from txstore.client.route import QueueNumbers, Route, has_masters, parse_brokers, parse_route
from txstore.consumer.members import Members
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    RouteNotFoundError,
    TxStoreError,
)
from txstore.message import MessageModel, retry_topic
from txstore.producer.registry import Producers
from txstore.remoting.refusals import refusal

__all__ = ["Client"]

_log = logging.getLogger("txstore.remoting")

_UNKNOWN_AGAIN_SECONDS = 1.0  # How often the route of an unknown topic that a consumer wants is queried.

RequestListener = Callable[[Connection, RemotingCommand], None]


class Client:
    """The client of one connection handle. Used on its loop's thread, unless a method says otherwise."""

    def __init__(self, address: str, options: ConnectConfig, dial: Dial | None = None) -> None:
        """`dial` connects to the holder of a store at an address `store:DIRECTORY`. The default only waits for one."""
        self.options = options
        self.address = address
        self.client_id: str = ""
        self.producers: Producers = Producers()
        self.members: Members = Members()
        self.numbers: QueueNumbers = QueueNumbers()
        self.arrivals: Arrivals = Arrivals()
        self.routes: dict[str, Route] = {}
        """Routes by topic. Any thread may read it; changes replace the whole dict."""
        self.connections: Connections = Connections(
            self._handle,
            options.seconds("connect_timeout"),
            options.tls_context,
            options.credentials,
            self._dial_of(address) if dial is None else dial,
        )
        self.listeners: dict[int, RequestListener] = {}
        """Handlers of the requests of brokers, by request code."""
        self.on_routes_changed: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Coroutine functions to run when a broker is connected again or a topic's route has changed."""
        self.on_reconnected: list[Callable[[Connection], Coroutine[Any, Any, None]]] = []
        """Coroutine functions to run when a store's holder is connected again, perhaps another process."""
        self.background_tasks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Coroutine functions that run in the background from `start` to `close`."""
        self._name_servers = name_servers(address)
        self.is_store: bool = store_of(address) is not None
        """Whether the other side is a txstore process of this machine, and may be another one after a reconnect."""
        self.process: int = os.getpid()
        self.is_local: bool = self.is_store or address.startswith("unix:")
        """Whether the other side is a socket of this machine."""
        self._brokers: dict[str, str] = {}
        self._names: dict[str, str] = {}  # The brokers' names by address, also by their earlier ones.
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refresh_asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    async def start(self) -> None:
        """Finds a name server and the brokers. Raises BrokerUnreachableError and BrokerTimeoutError, unless it may
        connect in the background."""
        self._loop = asyncio.get_running_loop()
        host = socket.gethostname()
        try:
            await self.find_brokers()
            host = (await self.connections.get(self._name_servers[0])).own_host
        except BaseException as error:
            is_away = isinstance(error, BrokerUnreachableError | BrokerTimeoutError)
            if not (is_away and self.options.connect_in_background):
                await self.close()
                raise
            _log.warning("connects in the background: %s", error, extra={"address": self.address})
        self.client_id = f"{host}@{unique_id()[-16:]}"
        for task in (self._poll_name_servers, *self.background_tasks):
            self.spawn(task())

    async def close(self) -> None:
        """Cancels all tasks and closes the connections."""
        for task in (*self._tasks, *self._kept.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._kept.values(), return_exceptions=True)
        await self.connections.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background. `close` cancels it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[None]) -> None:
        """Removes a finished task and logs its exception, which is a bug: expected errors are handled inside."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the connection to %s failed", self.address, exc_info=error)

    def _dial_of(self, address: str) -> Dial | None:
        directory, timeout = store_of(address), self.options.seconds("connect_timeout")
        return None if directory is None else lambda: dial(directory, timeout)

    # Name servers

    async def ask_name_servers(
        self,
        code: RequestCode,
        ext_fields: Mapping[str, str],
        is_enough: Callable[[RemotingCommand], bool] | None = None,
    ) -> RemotingCommand:
        """Asks the name servers in order until one answers. That one is asked first from then on.

        If an answer is not enough, the others are asked, too, and the first answer counts if theirs are not either.
        """
        errors: list[TxStoreError] = []
        first: RemotingCommand | None = None
        for address in list(self._name_servers):
            try:
                answer = await self._ask_name_server(address, code, ext_fields)
                if is_enough is None or is_enough(answer):
                    return answer
                first = answer if first is None else first
            except (BrokerUnreachableError, BrokerTimeoutError) as error:
                errors.append(error)
                self._name_servers.remove(address)
                self._name_servers.append(address)
        if first is not None:
            return first
        if len(errors) == 1:
            raise errors[0]
        text = "; ".join(str(error).partition("\n")[0] for error in errors)
        hint = "hint: start a name server or `txstore serve` there, or check the addresses"
        raise BrokerUnreachableError(f"{text}\n{hint}", address=self.address)

    async def _ask_name_server(self, address: str, code: RequestCode, ext_fields: Mapping[str, str]) -> RemotingCommand:
        connection = await self.connections.get(address)
        left = self.options.seconds("request_timeout")
        until = self.loop.time() + left
        while True:
            try:
                return await connection.call(code, ext_fields, timeout=left)
            except BrokerUnreachableError:
                # The process that wrote a shared store has ended. The question changes nothing, so it may be asked
                # again; the next connection reaches the process that writes the store now.
                left = until - self.loop.time()
                if not self.is_store or left <= 0:
                    raise
            connection = await self.connections.get(address)

    async def find_brokers(self) -> None:
        """Finds all brokers of the cluster. Each must know our producer groups, so that it can send them checks."""
        # A replica that does not hear of its source names no master, but the source may be there.
        answer = await self.ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {}, _names_masters)
        if answer.code == ResponseCode.SUCCESS:
            self._update_brokers(parse_brokers(answer.body))
            return
        route = await self._ask_route(TEMPLATE_TOPIC)
        if route is not None:
            self._update_brokers(route.brokers)

    def _update_brokers(self, brokers: Mapping[str, str]) -> None:
        for name, address in brokers.items():
            self._brokers[name] = self.address if self.is_local else address
            self._names[address] = name
        addresses = set(self._brokers.values())
        for address in addresses - self._kept.keys():
            self._changed[address] = asyncio.Event()
            self._kept[address] = self.loop.create_task(self._keep(address))
            self._kept[address].add_done_callback(self.ended)
        for address in self._kept.keys() - addresses:
            self._kept.pop(address).cancel()
            del self._changed[address]
            if address not in self._name_servers:
                self.connections.drop(address)

    # Routes

    async def _ask_route(self, topic: str) -> Route | None:
        answer = await self.ask_name_servers(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}, _names_masters
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, f"the route of topic {topic}", self.address)
        route = parse_route(answer.body)
        self._update_brokers(route.brokers)
        return route

    async def route(self, topic: str) -> Route | None:
        """Returns a topic's route, or None if no broker has the topic."""
        return self.routes.get(topic) or await self.refresh_route(topic)

    async def refresh_route(self, topic: str) -> Route | None:
        """Asks the name server for a topic's route; keeps and returns the known one if it has none."""
        route = await self._ask_route(topic)
        before = self.routes.get(topic)
        if route is None or route == before:
            return route if route is not None else before
        self.routes = self.routes | {topic: route}
        if before is not None:
            for producer in self.producers.all():
                producer.topics_changed()
        self._routes_changed()
        return route

    async def write_route(self, topic: str) -> Route:
        """Returns the route to send to; for an unknown topic that of the template TBW102.

        Without a master that accepts messages, the name server is asked again: a replica may have been promoted.
        Raises RouteNotFoundError if no broker creates topics automatically.
        """
        route = await self.route(topic)
        if route is not None and not route.write:
            route = await self.refresh_route(topic)
        if route is None:
            route = await self._template(topic)
            self.routes = self.routes | {topic: route}
        return route

    async def _template(self, topic: str) -> Route:
        template = await self._ask_route(TEMPLATE_TOPIC)
        if template is None or not template.write:
            raise RouteNotFoundError(
                f"no broker at {self.address} has topic {topic}, and none creates topics automatically\n"
                "hint: ask the broker's operator to create it, or to set autoCreateTopicEnable"
            )
        most = self.options.default_topic_queue_nums
        queues = tuple(queue for queue in template.write if queue.queue_id < most)
        return Route(template.brokers, (), queues, is_template=True)

    def forget_route(self, topic: str) -> None:
        """Removes the route of a topic that was deleted."""
        self.routes = {name: route for name, route in self.routes.items() if name != topic}

    async def topic_created(self, topic: str) -> None:
        """Replaces the template's route by the topic's own, after the first send created the topic."""
        route = await self._ask_route(topic)
        if route is not None:
            self.routes = self.routes | {topic: route}
            self.arrivals.bump()

    def _routes_changed(self) -> None:
        for work in self.on_routes_changed:
            self.spawn(work())
        self.arrivals.bump()

    def wanted_topics(self) -> set[str]:
        """Returns the topics that the consumers here read, including retry topics."""
        wanted: set[str] = set()
        for member in self.members.all():
            wanted.add(member.topic)
            if member.message_model is MessageModel.CLUSTERING:
                wanted.add(retry_topic(member.group))
        return wanted

    def refresh_routes_soon(self) -> None:
        """Requests a refresh of brokers and routes, after one of them turned out to be wrong."""
        self._refresh_asked.set()

    def note_refusal(self, code: int) -> None:
        """Requests a refresh if a broker's response says that another node may be the master now. Thread-safe."""
        if code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self.loop.call_soon_threadsafe(self.refresh_routes_soon)

    async def _poll_name_servers(self) -> None:
        """Refreshes all routes periodically, and every second those of unknown topics that consumers want."""
        every = self.options.seconds("poll_name_server_interval")
        next_whole = self.loop.time() + every
        while True:
            await _wait(self._refresh_asked, min(every, _UNKNOWN_AGAIN_SECONDS))
            whole = self._refresh_asked.is_set() or self.loop.time() >= next_whole or not self._brokers
            self._refresh_asked.clear()
            routes = self.routes
            topics = {topic for topic in self.wanted_topics() if topic not in routes or routes[topic].is_template}
            if whole:
                next_whole = self.loop.time() + every
                topics |= self.routes.keys()
            try:
                if whole:
                    await self.find_brokers()
                for topic in topics:
                    await self.refresh_route(topic)
            except TxStoreError as error:
                _log.info("routes could not be refreshed: %s", error, extra={"address": self.address})
            if whole:
                await asyncio.sleep(min(every, _UNKNOWN_AGAIN_SECONDS))  # Limits the rate of full refreshes.

    # Brokers

    def addresses(self) -> list[str]:
        """Returns the addresses of all known masters, and of the replicas that are read while there is none."""
        return list(self._kept)

    def brokers(self) -> list[str]:
        """Returns the names of all known brokers, sorted."""
        return sorted(self._brokers)

    def broker_at(self, address: str) -> str | None:
        """Returns the name of the broker that is or was at an address, or of the only broker; None if it is unknown."""
        name = self._names.get(address)
        if name in self._brokers:
            return name
        return next(iter(self._brokers)) if len(self._brokers) == 1 else None

    def live_connection(self, broker: str) -> Connection | None:
        """Returns the connection to a broker by name, or None if it is not open. Thread-safe."""
        address = self._brokers.get(broker)
        return None if address is None else self.connections.live(address)

    async def connection(self, broker: str) -> Connection:
        """Returns the connection to a broker by name. Raises BrokerUnreachableError."""
        address = self._brokers.get(broker)
        if address is None:
            self.refresh_routes_soon()
            raise BrokerUnreachableError(f"no name server at {self.address} knows broker {broker}")
        try:
            return await self.connections.get(address)
        except BrokerUnreachableError:
            self.refresh_routes_soon()
            raise

    async def ask(
        self,
        broker: str,
        code: RequestCode,
        ext_fields: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float | None = None,
    ) -> RemotingCommand:
        """Sends a request to a broker and returns the response, whatever its code.

        `timeout` is in seconds, by default `request_timeout`. Raises BrokerUnreachableError, BrokerTimeoutError.
        """
        connection = await self.connection(broker)
        seconds = self.options.seconds("request_timeout") if timeout is None else timeout
        answer = await connection.call(code, {**ext_fields, "bname": broker}, body, timeout=seconds)
        self.note_refusal(answer.code)
        return answer

    async def demand(
        self, broker: str, code: RequestCode, ext_fields: Mapping[str, str], what: str, body: bytes | None = None
    ) -> RemotingCommand:
        """Sends a request as `ask` does. Raises for a response other than SUCCESS; `what` names the request then."""
        answer = await self.ask(broker, code, ext_fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, what, f"broker {broker}")
        return answer

    # Producers and consumers of this client

    def notify_membership(self) -> None:
        """Schedules a heartbeat to all brokers. Thread-safe."""
        self.loop.call_soon_threadsafe(self._request_heartbeats)

    def _request_heartbeats(self) -> None:
        for changed in self._changed.values():
            changed.set()

    async def send_heartbeats(self) -> None:
        """Sends a heartbeat to every broker and waits for the responses. Failures are logged."""
        beats = [self._send_heartbeat(address) for address in self.addresses()]
        for failed in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(failed, TxStoreError):
                _log.info("a heartbeat failed: %s", failed, extra={"address": self.address})

    async def leave_group(self, *, producer_group: str = "", consumer_group: str = "") -> None:
        """Unregisters a group without members here. Brokers that cannot be reached notice it by missing heartbeats."""
        fields = {"clientID": self.client_id}
        fields |= {"producerGroup": producer_group} if producer_group else {}
        fields |= {"consumerGroup": consumer_group} if consumer_group else {}
        live = [found for address in self.addresses() if (found := self.connections.live(address)) is not None]
        timeout = self.options.seconds("request_timeout")
        calls = [connection.call(RequestCode.UNREGISTER_CLIENT, fields, timeout=timeout) for connection in live]
        await asyncio.gather(*calls, return_exceptions=True)

    async def _send_heartbeat(self, address: str) -> None:
        connection = await self.connections.get(address)
        body = heartbeat(self.client_id, self.producers.all(), self.members.all())
        if body is None:
            return
        timeout = self.options.seconds("request_timeout")
        answer = await connection.call(RequestCode.HEART_BEAT, {}, body, timeout=timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, "a heartbeat", address)
        connection.number = answer.ext_fields.get("connection")

    async def _keep(self, address: str) -> None:
        """Keeps one broker connected: sends heartbeats periodically, after changes and after a lost connection."""
        back_off = first = self.options.seconds("reconnect_back_off")
        changed = self._changed[address]
        known: Connection | None = None
        while True:
            changed.clear()
            try:
                await self._send_heartbeat(address)
            except TxStoreError as error:
                _log.info(
                    "broker at %s: %s; next attempt in %g s", address, error, back_off, extra={"address": address}
                )
                self.refresh_routes_soon()
                await asyncio.sleep(back_off)
                back_off = min(2 * back_off, self.options.seconds("reconnect_back_off_max"))
                continue
            back_off = first
            connection = self.connections.live(address)
            if connection is not None:
                if known is not None and known is not connection:
                    for work in self.on_reconnected if self.is_store else ():
                        self.spawn(work(connection))
                    self._routes_changed()
                known = connection
                every = self.options.seconds("heart_beat_broker_interval")
                await _first_of((connection.lost, changed), every)

    # Requests of brokers

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        listener = self.listeners.get(request.code)
        if listener is None:
            remark = f"request {request.code} is not supported by this client"
            connection.answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            return
        try:
            listener(connection, request)
        except TxStoreError as error:
            _log.warning("invalid request from %s: %s", connection.address, error)


def _names_masters(answer: RemotingCommand) -> bool:
    """Returns whether an answer is enough. A replica may not know its source, nor the newest topics."""
    return answer.code == ResponseCode.SUCCESS and has_masters(answer.body)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    await _first_of((event,), seconds)


async def _first_of(events: Iterable[asyncio.Event], seconds: float) -> None:
    """Waits until one of the events is set, at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
