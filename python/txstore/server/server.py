"""Listens for clients and dispatches the requests that the engine does not answer itself.

In:     an open broker, addresses.
Out:    responses.
Always: one thread handles requests in order of arrival, so that an unregistration never overtakes a heartbeat. Slow
        requests have a few threads of their own. An error in a request becomes its response and never stops the server.
By hand: checking the options, because the core wheel needs no other package.
"""

import dataclasses
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, assert_never

from txstore._native import (
    RETRY_PREFIX,
    ClientAnswer,
    ConnectionClosed,
    ConnectionRefused,
    LocalListener,
    MessageSkipped,
    NewProducer,
    RemotingRequest,
    RemotingServer,
    RequestCode,
    RequestDenied,
    ResponseCode,
    SlaveConnected,
    StoreEpochs,
    UnknownGroup,
    UnknownTopic,
)
from txstore.broker import EmbeddedBroker
from txstore.broker.local_socket import keep_in_child
from txstore.errors import BrokerBusyError, ReadOnlyError, StoreClosedError, TxStoreError
from txstore.selector import Selector
from txstore.server.admin_relay import AdminRelay
from txstore.server.administration import Administration
from txstore.server.clients import Clients, GroupLimits
from txstore.server.config import BROKER_ADDRESS, ServerConfig
from txstore.server.console import start_console
from txstore.server.epochs import Epochs
from txstore.server.escaping import Escaping
from txstore.server.herald import Herald
from txstore.server.http import HttpServer
from txstore.server.listening import fields_of, listen, secrets_of, warn, warn_of_slaves
from txstore.server.metrics import exporter
from txstore.server.name_server import Routes
from txstore.server.node_calls import NodeCalls
from txstore.server.offsets import Locks, Offsets
from txstore.server.queries import Queries
from txstore.server.replicas import Nodes
from txstore.server.replication import Replica
from txstore.server.request import (
    Refused,
    Reply,
    Request,
)
from txstore.server.retry import Retries
from txstore.server.rewinds import Rewinds
from txstore.server.secrets import Secrets, accounts_version, read_accounts
from txstore.server.slaves import Slaves
from txstore.server.topics import Topics
from txstore.server.tracing import start_spans
from txstore.server.validation import check_options, networks

if TYPE_CHECKING:
    from txstore.console.listener import Console

__all__ = ["Server"]

_log = logging.getLogger("txstore.remoting")

_TICK_SECONDS = 10.0
_POLL_MS = 500
_SLOW_THREADS = 2
_SLOW_MAX = 1_000
_SLOW_SHARE = 64  # The most slow requests of one connection.
_DRAIN_SECONDS = 10.0
_FENCED_SECONDS = 5.0  # How long a source that was replaced passes the rest of its log on.
_LOG_IS_CUT = "its source does not have the end of its log, which is cut off and kept in a directory of the store"
_REPLACED = "another node was promoted and is the source now"

Event = (
    RemotingRequest
    | UnknownTopic
    | UnknownGroup
    | NewProducer
    | SlaveConnected
    | ConnectionClosed
    | ConnectionRefused
    | RequestDenied
    | ClientAnswer
    | MessageSkipped
)
Asked = TypeVar("Asked", RemotingRequest, UnknownTopic, UnknownGroup, NewProducer, SlaveConnected)
Handler = Callable[[Request], Reply | None]
"""Handles a request. Returns None if the answer is sent later."""


class Opening(Protocol):
    """Opens the server's store again, in the role that its epochs give it then."""

    def open(self, *, ask: bool = True) -> tuple[EmbeddedBroker, Replica | None]: ...


class Server:
    """Serves an open broker. Close it, or use it in `with`."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        config: ServerConfig | None = None,
        *,
        close_broker: bool = False,
        local: LocalListener | None = None,
        replica: Replica | None = None,
        opening: Opening | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts to listen. `close_broker`: whether `close` closes the broker, too. `local`: the broker's own socket,
        if the caller has taken it over. `opening` opens the store again in another role, after a promotion.

        Raises StoreIOError for an address that is in use or not available, InvalidOptionError, ReadOnlyError.
        """
        if broker.read_only and not broker.store.replica:
            raise ReadOnlyError("a server needs a writer, and the store is open read-only")
        self._config = config if config is not None else ServerConfig()
        self._broker = broker
        self._close_broker = close_broker
        self.replica: Replica | None = replica
        """What copies another server's store into this one; None if the store is its own."""
        self._opening = opening
        self._monotonic = monotonic
        self._closed = False
        self._metrics: HttpServer | None = None
        self._console: Console | None = None
        self._lock = threading.Lock()
        self._reopening: threading.Thread | None = None
        self._reopen_reason = ""
        self._reopen_failed: TxStoreError | None = None
        self._ends_before: dict[str, int] = {}
        self._has_lost = False
        check_options(fields_of(self._config), listening=local is None)
        keep_in_child(self)
        self._turns = 0
        self._start(local)
        try:
            if self._config.metrics is not None:
                self._metrics = HttpServer(self._config.metrics, failure=self.failure, metrics_text=exporter(self))
            if self._config.console is not None:
                self._console = start_console(self._config.console, self._config, self._call, lambda: self._accounts)
        except BaseException:
            self._close_broker = False  # The caller closes the broker if the server does not start.
            self.close()
            raise

    def _start(self, local: LocalListener | None) -> None:
        """Begins to serve the open broker."""
        broker, monotonic = self._broker, self._monotonic
        self._spans = start_spans(broker.store) if self._config.otel and not broker.read_only else None
        secrets = secrets_of(self._config)
        self._secrets_at, self._accounts = secrets.version, secrets.accounts
        # Before this server listens: one that was started on demand closes its connections, which come here next.
        self._taken = broker.local_socket if local is None else None
        if self._taken is not None:
            local = self._taken.take_over()
        self._native = listen(broker, self._config, secrets, local)
        warn(self._config, secrets)
        addresses = list(self._native.addresses)
        self.address: str | None = addresses[0] if self._config.listen is not None else None
        self.name_server: str | None = addresses[-1] if self._config.name_server is not None else None
        self.grpc: str | None = self._native.grpc_address
        """HOST:PORT of the gRPC protocol; None if it is not served."""
        self.ha: str | None = self._native.ha_address
        """HOST:PORT at which slaves of RocketMQ copy the log; None if they cannot."""
        # After a promotion it listens at the same ports.
        self._config = dataclasses.replace(
            self._config, listen=self.address, name_server=self.name_server, grpc=self.grpc, ha_listen=self.ha
        )
        reached = self._config.advertise or self.address
        if self.ha is not None:
            warn_of_slaves(self.ha, self._config.ha_allow)
        allow = networks(self._config.ha_allow)
        self._slaves = Slaves(broker, reached or BROKER_ADDRESS, self.ha, allow, lambda: self.role, monotonic)
        self._nodes = Nodes(
            broker,
            self._native,
            lambda: self.replica,
            self.failure,
            address=reached,
            required=self._config.replicas_required,
            timeout=float(self._config.replica_timeout),
            ack=self._config.replica_ack,
            slaves=self._slaves.addresses,
            slave_lags=lambda: self._slaves.lags(self._native.slaves()),
        )
        # Without TCP, its clients use the Unix socket whatever a route says.
        nodes = self._nodes.addresses if reached is not None else None
        self._routes = Routes(broker, reached or BROKER_ADDRESS, nodes)
        self._escaping = Escaping(
            broker, self._config, self.replica, self._native, lambda *of: self._clients.checkers(*of), monotonic
        )
        self._herald = self._begin_epoch(reached)
        limits = GroupLimits(self._config.groups_max, self._config.auto_create_subscription_group)
        # A node that became the source without all messages of the one before it.
        joined = Rewinds(broker, self.send, monotonic).joined if self._has_lost else None
        self._clients = Clients(broker, self, monotonic, limits, joined)
        self._admin_relay = AdminRelay(broker, self._clients, self, monotonic)
        self._locks = Locks(broker, monotonic, self._native.set_orderly)
        routes, topics_max = self._routes, self._config.topics_max
        self._topics = Topics(broker, self._native, self._clients, lambda: routes.address, topics_max)
        self._handlers, self._slow_handlers = self._table()
        self._slow = ThreadPoolExecutor(_SLOW_THREADS, "txstore-server-slow")
        self._slow_waiting = Counter[int]()
        self._stopped = threading.Event()
        broker.watch_topics(self.forget_topics)
        self._thread = threading.Thread(target=self._run, name="txstore-server", daemon=True)
        self._thread.start()
        fields = {
            "listen": self.address,
            "name_server": self.name_server,
            "grpc": self.grpc,
            "ha": self.ha,
            "unix": self.unix,
            "path": broker.path,
        }
        _log.info("serving %s as the %s", broker.path, self.role, extra=fields)

    def _begin_epoch(self, address: str | None) -> Herald | None:
        """Notes how many copies writes need, and tells the other nodes which epoch this source is in."""
        self._writes = not self._broker.read_only
        self._fenced_from: float | None = None
        if self.replica is not None:
            self.replica.start(address)
        if not self._writes:
            return None
        epochs = StoreEpochs(self._broker.store)
        epochs.note_copies_required(self._config.replicas_required)
        known = Epochs.parse(epochs.text)
        others = {*known.nodes.values(), known.instead_of or ""}
        return None if known.number == 1 else Herald(known.number, address or "", others, self._broker.store.store_id)

    def __repr__(self) -> str:
        return f"Server({self._broker.path!r}, {self.address or self.unix}{', closed' if self._closed else ''})"

    @property
    def broker(self) -> EmbeddedBroker:
        """The broker that is served."""
        return self._broker

    @property
    def native(self) -> RemotingServer:
        """The engine's part of the server."""
        return self._native

    @property
    def clients(self) -> Clients:
        """The connected producers and consumers."""
        return self._clients

    @property
    def nodes(self) -> Nodes:
        """What this server knows of its replicas, or of its source."""
        return self._nodes

    @property
    def locks(self) -> Locks:
        """The queue locks."""
        return self._locks

    @property
    def unix(self) -> str | None:
        """The path of the Unix socket."""
        return None if self._config.unix is None else os.fspath(self._config.unix)

    @property
    def metrics(self) -> str | None:
        """The address of the metrics, HOST:PORT; None if they are not served."""
        return None if self._metrics is None else self._metrics.address

    @property
    def console(self) -> str | None:
        """The address of the web console, as a browser takes it; None if there is none."""
        return None if self._console is None else self._console.address

    @property
    def role(self) -> str:
        """'source', 'replica', or 'fenced': a source that another node has replaced."""
        return Epochs.parse(StoreEpochs(self._broker.store).text).role

    @property
    def epoch(self) -> int:
        """The last epoch of the log: 1 before the first promotion."""
        return StoreEpochs(self._broker.store).number

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def ready(self) -> bool:
        """Whether it answers requests and the store accepts messages."""
        return self.failure() is None

    def failure(self) -> TxStoreError | None:
        """Returns the error for which the server accepts no messages now, or None.

        DiskFullError and TooManyFilesError are temporary. After StorePoisonedError, open the store again; after
        StoreClosedError, serve it again.
        """
        if self._reopening is not None and not self._closed:
            return self._busy()
        if self._reopen_failed is not None:
            return self._reopen_failed
        if self._closed or self._broker.closed or not self._thread.is_alive():
            return StoreClosedError("the server has stopped after an error\nhint: see its log")
        if self.replica is not None:
            return self.replica.failure
        if not self._writes or self._broker.read_only:
            return ReadOnlyError("another node is the source now\nhint: let this one rejoin with --replica-of")
        try:
            self._broker.store.check_room()
        except TxStoreError as error:
            return error
        return None

    def beats(self) -> tuple[int, int]:
        """Returns counters of the connection threads and of the thread that handles requests, to detect a hang.

        Each grows at least every half second, the second one except while a request takes longer than that.
        """
        return self._native.counters()["io_beats"], self._turns

    def counters(self) -> dict[str, int]:
        """Returns counters since the server started (transactions: since the store was opened) and current numbers."""
        ends = self._ends_before if self._reopening is not None else self._broker.store.transaction_counts()[0]
        native, clients = self._native.counters(), self._clients.counts()
        clients["consumers"] += native["grpc_consumers"]
        return native | ends | clients

    def close(self) -> None:
        """Stops accepting connections, answers the requests in flight for up to 10 s, then closes all. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._reopening is not None:
            self._reopening.join()
        if self._metrics is not None:
            self._metrics.close()
        if self._console is not None:
            self._console.close()
        self._end()
        _log.info("no longer serving %s", self._broker.path, extra={"path": self._broker.path})
        if self._close_broker:
            self._broker.close()
        elif self._taken is not None:
            self._taken.serve_again()

    def _end(self) -> None:
        """Ends serving. The broker stays open."""
        for one in (self._herald, self.replica, self._escaping):
            if one is not None:
                one.stop()
        self._native.stop_listening()
        until = self._monotonic() + _DRAIN_SECONDS
        while self._native.counters()["connections"] and self._monotonic() < until:
            time.sleep(0.01)
        self._stopped.set()
        self._native.stop()
        self._thread.join()
        self._slow.shutdown(cancel_futures=True)
        if self._spans is not None:
            self._spans.stop()
        self._clients.close()
        if self.unix is not None:
            Path(self.unix).unlink(missing_ok=True)

    def reopen(self, reason: str, *, has_lost: bool = False) -> None:
        """Opens the store again, in the role that its epochs give it now, in a thread. Clients connect again.

        `reason` is shown to operators meanwhile, after "because". `has_lost` tells that it becomes the source without
        all messages of the one before it.
        """
        with self._lock:
            self._has_lost |= has_lost
            if self._opening is not None and not self._closed and self._reopening is None:
                self._reopen_reason = reason
                self._ends_before, _ = self._broker.store.transaction_counts()
                self._reopening = threading.Thread(target=self._reopen, name="txstore-reopening", daemon=True)
                self._reopening.start()

    def _reopen(self) -> None:
        assert self._opening is not None
        try:
            self._end()
            self._broker.close()
            self._broker, self.replica = self._opening.open(ask=False)
            self._start(None)
        except TxStoreError as error:
            self._reopen_failed = error
            _log.error("the store could not be opened in its new role: %s", error)
        except Exception as error:
            self._reopen_failed = TxStoreError(f"opening in another role failed: {type(error).__name__}: {error}")
            _log.exception("the store could not be opened in its new role")
        finally:
            self._reopening = None

    def _busy(self) -> BrokerBusyError:
        text = f"this node opens its store again, because {self._reopen_reason}\nhint: try again in a few seconds"
        return BrokerBusyError(text, code=ResponseCode.SERVICE_NOT_AVAILABLE)

    def _must_reopen(self) -> str | None:
        """Returns why the store must be opened again. A replaced source passes the rest of its log on first."""
        if self.replica is not None:
            return _LOG_IS_CUT if self.replica.must_reopen else None
        if not self._writes or not self._broker.read_only:
            return None
        if self._fenced_from is None:
            self._fenced_from = self._monotonic()
        end = self._broker.store.appended_end
        is_copied = any(row[1] >= end for row in self._native.replicas())
        return _REPLACED if is_copied or self._monotonic() > self._fenced_from + _FENCED_SECONDS else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reload(self) -> None:
        """Reads the TLS files again for new connections, and the accounts for new requests.

        Raises InvalidOptionError if a file is invalid; then nothing changes.
        """
        secrets = secrets_of(self._config)
        self._native.set_secrets(secrets)
        self._secrets_at, self._accounts = secrets.version, secrets.accounts
        if self._console is not None:
            self._console.reload()
        _log.info("read the server's files again", extra={"path": self._broker.path})

    def _reload_if_changed(self) -> None:
        """Reads the accounts again if the file changed. An invalid file is logged once and changes nothing."""
        version = accounts_version(self._config.accounts)
        if version == self._secrets_at:
            return
        try:
            # Without the TLS files: an invalid one of them must not keep a removed account valid.
            accounts, version = read_accounts(self._config.accounts)
            self._native.set_secrets(Secrets(None, accounts, version))
            self._accounts = accounts
            _log.info("read the accounts again", extra={"path": self._broker.path})
        except TxStoreError as error:
            _log.error("the accounts were not changed: %s", error, extra={"path": self._broker.path})
        finally:
            self._secrets_at = version

    # Calls for the modules that handle requests

    def send(self, connection: int, code: int, fields: dict[str, str], body: bytes | None = None) -> bool:
        """Sends a one-way request to a client; returns False if it cannot be sent."""
        return self._native.send(connection, code, fields, body)

    def ask(self, connection: int, code: int, fields: dict[str, str], body: bytes | None = None) -> int | None:
        """Sends a request to a client; returns its number, or None if it cannot be sent."""
        return self._native.ask(connection, code, fields, body)

    def answer(self, request: Request, reply: Reply) -> None:
        """Answers a request of a client."""
        self._native.answer(request, reply.code, reply.remark, reply.fields, reply.body)

    def may_send(self, account: str | None, topic: str) -> bool:
        """Returns whether an account may publish to a topic."""
        return self._native.may_send(account, topic)

    def accepts_checks(self, connection: int) -> bool:
        """Returns whether a check would reach a client now."""
        return self._native.accepts_checks(connection)

    def send_check(self, connection: int, account: str | None, half_queue_offset: int) -> bool:
        """Sends a check to a client; returns False if it cannot be sent or may not be seen there."""
        name = self._broker.config.broker_name
        return self._native.send_check(connection, account, self._broker.store, half_queue_offset, name)

    def forget_producer(self, connection: int, group: str) -> None:
        """Tells the engine that a producer group has left a connection."""
        self._native.forget_producer(connection, group)

    def set_subscriptions(self, group: str, wanted: list[tuple[str, Selector, int]]) -> None:
        """Tells the engine what a group reads: (topic, tags or None for all, version)."""
        self._native.set_subscriptions(group, wanted)

    def grpc_members(self, group: str) -> int:
        """Returns the number of a group's members that are clients of the gRPC protocol."""
        return self._native.grpc_members(group)

    def grpc_clients_of(self, group: str) -> list[tuple[str, str, str, int]]:
        """Returns a group's members that are clients of the gRPC protocol: client id, address, language, and the
        milliseconds since the last request."""
        return self._native.grpc_clients_of(group)

    def grpc_readers(self, topic: str) -> list[str]:
        """Returns the groups with members of the gRPC protocol that read a topic."""
        return self._native.grpc_readers(topic)

    def forget_topics(self, topics: Sequence[str]) -> None:
        """Removes topics, and groups by their retry topics, from the engine's tables. It asks about them again at
        their next use."""
        for topic in topics:
            self._native.forget_topic(topic)
            if topic.startswith(RETRY_PREFIX):
                self._native.forget_group(topic.removeprefix(RETRY_PREFIX))

    # Internal

    def _call(self, name: str, /, **arguments: Any) -> object:
        """Makes an administrative call. After a promotion, it is made on the store as it was opened then.

        Raises BrokerBusyError while the store is opened again.
        """
        try:
            return self._operate(name, **arguments)
        except StoreClosedError as error:
            if self._reopen_failed is not None:
                raise self._reopen_failed from error
            if not self._reopen_reason or self._closed or (self._reopening is None and self._broker.closed):
                raise
            raise self._busy() from error  # Or it is open again since.

    def _table(self) -> tuple[dict[int, Handler], dict[int, Handler]]:
        """Returns the handlers by request code: the fast ones, and those that may take long."""
        routes, clients, locks, admin_relay = self._routes, self._clients, self._locks, self._admin_relay
        offsets, retries, queries = Offsets(self._broker, clients), Retries(self._broker), Queries(self._broker)
        topics = self._topics
        address, escaping = self._nodes.own_address, self._escaping
        calls = NodeCalls(self._broker, self.replica, address, self.reopen, escaping)
        administration = Administration(self, self._config, clients, topics, offsets, calls)
        self._operate: Callable[..., object] = administration.make
        at_once: dict[int, Handler] = {
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
            RequestCode.GET_MAX_OFFSET: offsets.maximum,
            RequestCode.GET_MIN_OFFSET: offsets.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.CONSUMER_SEND_MSG_BACK: retries.send_back,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
            RequestCode.LOCK_BATCH_MQ: locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: clients.check_config,
            RequestCode.GET_KV_CONFIG: routes.key_value,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: routes.cluster,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: admin_relay.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: admin_relay.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: admin_relay.consume_directly,
            **escaping.handlers(),
        }
        slow: dict[int, Handler] = {
            RequestCode.QUERY_MESSAGE: queries.by_key,
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
            RequestCode.UPDATE_BROKER_CONFIG: topics.update_properties,
            RequestCode.GET_BROKER_CONFIG: topics.properties,
            RequestCode.GET_BROKER_RUNTIME_INFO: topics.runtime,
            RequestCode.VIEW_MESSAGE_BY_ID: queries.by_offset,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: topics.update_group,
            RequestCode.GET_TOPIC_STATS_INFO: topics.status,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.names,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: topics.delete_subscription_group,
            RequestCode.GET_CONSUME_STATS: topics.progress,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: topics.delete_route,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset,
            RequestCode.GET_TOPICS_BY_CLUSTER: topics.names,  # There is one cluster.
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.groups_of,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: topics.system_names,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: retries.resume,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: topics.topics_of,
            RequestCode.GET_TOPIC_CONFIG: topics.config,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: topics.group,
            RequestCode.TXSTORE_ADMIN: administration.call,
            **self._slaves.handlers(topics.all, topics.all_groups),
        }
        return at_once, slow

    def _producer(self, asked: NewProducer) -> None:
        self._native.answer_producer(asked, self._clients.producer(asked, asked.group).number)

    def _run(self) -> None:
        tick = self._monotonic() + _TICK_SECONDS
        while not self._stopped.is_set():
            self._turns += 1
            event = self._native.next_event(_POLL_MS)
            if event is not None:
                self._dispatch(event)
            self._admin_relay.expire()
            if (reason := self._must_reopen()) is not None:
                self.reopen(reason)
            if self._monotonic() >= tick:
                tick = self._monotonic() + _TICK_SECONDS
                self._clients.expire()
                self._locks.expire()
                self._reload_if_changed()

    def _dispatch(self, event: Event) -> None:
        match event:
            case RemotingRequest():
                self._decide(event)
            case UnknownTopic():
                self._answer(event, self._topics.known)
            case UnknownGroup():
                self._answer(event, self._topics.known_group)
            case NewProducer():
                self._answer(event, self._producer)
            case SlaveConnected():
                self._answer_later(event, self._slaves.admit)
            case ClientAnswer():
                self._admin_relay.answered(event)
            case ConnectionClosed():
                self._clients.closed(event.connection)
                self._slaves.closed(event.connection)
                self._admin_relay.closed(event.connection)
            case ConnectionRefused() | RequestDenied() | MessageSkipped():
                _note(event)
            case _:
                assert_never(event)

    def _decide(self, request: RemotingRequest) -> None:
        if request.code not in self._slow_handlers:
            self._answer(request, lambda asked: self._handlers[asked.code](asked))
        else:
            self._answer_later(request, self._slow_handlers[request.code])

    def _answer_later(self, event: Asked, handler: Callable[[Asked], Reply | None]) -> None:
        """Lets one of the threads for slow requests answer, unless too many wait for them."""
        if self._may_wait(event.connection):
            self._slow.submit(self._answer_slowly, event, handler)
        else:
            self._native.answer(event, ResponseCode.SYSTEM_BUSY, "too many slow requests are waiting; try again later")

    def _may_wait(self, connection: int) -> bool:
        """Counts one more waiting slow request. Returns False if this connection or the server has too many."""
        with self._lock:
            full = self._slow_waiting.total() >= _SLOW_MAX or self._slow_waiting[connection] >= _SLOW_SHARE
            if not full:
                self._slow_waiting[connection] += 1
        return not full

    def _answer_slowly(self, event: Asked, handler: Callable[[Asked], Reply | None]) -> None:
        try:
            self._answer(event, handler)
        finally:
            with self._lock:
                self._slow_waiting -= Counter([event.connection])

    def _answer(self, event: Asked, handler: Callable[[Asked], Reply | None]) -> None:
        reply: Reply | None
        try:
            reply = handler(event)
        except Refused as refused:
            reply = Reply(refused.code, str(refused))
        except TxStoreError as error:
            reply = Reply(Refused.because(error).code, str(error))
        except Exception as error:
            _log.exception("%r could not be answered", event, extra={"client": event.address})
            reply = Reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if reply is not None:
            self._native.answer(event, reply.code, reply.remark, reply.fields, reply.body)


def _note(event: ConnectionRefused | RequestDenied | MessageSkipped) -> None:
    """Logs what the engine has refused or skipped."""
    match event:
        case ConnectionRefused():
            fields = {"client": event.address, "reason": event.reason}
            _log.warning("a connection was closed: %s", event.reason, extra=fields)
        case RequestDenied():
            why = f"request {event.request}: {event.reason}"
            _log.warning("denied: %s", why, extra={"client": event.address, "reason": why})
        case MessageSkipped():
            at = f"{event.topic}/{event.queue_id} offset {event.queue_offset}"
            _log.error("group %s skips a damaged message: %s: %s", event.group, at, event.reason)
