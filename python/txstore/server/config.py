"""The options of a server: addresses, limits, files.

Out:    `ServerConfig`, and its fields as the keywords of `txstore.serve`.
Not here: their validation, and the settings of the store.
"""

import os
from dataclasses import dataclass
from typing import TypedDict

from txstore.config import BrokerOptions

__all__ = ["BROKER_ADDRESS", "NAME_SERVER_ADDRESS", "ServeOptions", "ServerConfig", "ServerOptions"]

BROKER_ADDRESS = "127.0.0.1:10911"
NAME_SERVER_ADDRESS = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The addresses, limits and files of a server."""

    listen: str | None = BROKER_ADDRESS
    """HOST:PORT of the broker; port 0 chooses a free one. None: only `unix`."""
    unix: str | os.PathLike[str] | None = None
    """The path of a Unix socket, for clients on this machine."""
    name_server: str | None = NAME_SERVER_ADDRESS
    """HOST:PORT of the name server. None: only the other addresses answer its requests."""
    advertise: str | None = None
    """HOST:PORT at which clients reach the broker, if it differs from `listen` (0.0.0.0, a container)."""
    metrics: str | None = None
    """HOST:PORT for /healthz, /readyz and /metrics over HTTP; port 0 chooses a free one."""
    grpc: str | None = None
    """HOST:PORT at which RocketMQ 5's clients connect by gRPC; port 0 chooses a free one. None: it is not served."""
    enable_topic_message_type_check: bool = True
    """Whether a topic with a declared message type refuses others from gRPC clients (enableTopicMessageTypeCheck)."""
    console: str | None = None
    """HOST:PORT of the web console; port 0 chooses a free one."""
    console_actions: bool = False
    """Whether the console may change the store: for administrators; without accounts only at a loopback address."""
    otel: bool = False
    """Whether records whose messages carry the context of a trace have spans, by the program's tracer provider."""
    io_threads: int = 2
    """Threads for connections."""
    connections_max: int = 10_000
    """The most open connections. Fewer if the process may not open so many files (`ulimit -n`)."""
    groups_max: int = 10_000
    """The most consumer groups of the store that clients may create."""
    topics_max: int = 10_000
    """The most topics of the store, including those of groups, that clients may create by sending."""
    auto_create_subscription_group: bool = True
    """Whether a consumer's heartbeat creates its group. Otherwise operators must (autoCreateSubscriptionGroup)."""
    idle_timeout: float = 120.0
    """Seconds after which a connection is closed if its client sends nothing, whatever the server sends to it."""
    first_frame_timeout: float = 10.0
    """Seconds that the first frame of a connection may take from its first byte to its last."""
    frame_timeout: float = 30.0
    """Seconds that a later frame may take."""
    unread_timeout: float = 60.0
    """Seconds after which a connection is closed if its client reads nothing of the responses that wait for it."""
    memory_max: int = 512 << 20
    """The most bytes of all clients together: incomplete frames, unread responses and waiting requests. When they
    hold more than three quarters of it, the connections that hold most are closed first."""
    tls_cert: str | os.PathLike[str] | None = None
    """A PEM file: the server's certificate, then those of its issuers. If given, TCP connections use TLS."""
    tls_key: str | os.PathLike[str] | None = None
    """A PEM file: the certificate's private key, without a password."""
    tls_ca: str | os.PathLike[str] | None = None
    """A PEM file of certificate authorities. If given, TLS clients must present a certificate of one of them."""
    tls: str = "enforcing"
    """'enforcing' refuses plain connections; 'permissive' serves them, too, at the same addresses (tls.server.mode)."""
    tls_handshake_timeout: float = 10.0
    """Seconds that a TLS handshake may take."""
    accounts: str | os.PathLike[str] | None = None
    """A TOML file of accounts and permissions (RocketMQ's ACL). If given, requests must be signed. Read again when it
    changes."""
    replica_of: str | None = None
    """HOST:PORT of the `txstore serve` whose store is copied. None: this server's store is its own."""
    replica_name: str | None = None
    """How the source tells its replicas apart. None: `advertise`, or the machine's name and the store's path."""
    escape_to: str | None = None
    """HOST:PORT of a name server. While its source is away, a replica lets pending transactions escape to a broker that
    is known there. None: they wait for the source."""
    escape_after: float = 10.0
    """Seconds that the source must be away before. More than the source's `replica_timeout`."""
    replicas_required: int = 1
    """How many copies, with the store's own, a write has before it is acknowledged and visible."""
    replica_timeout: float = 3.0
    """Seconds that a client waits for these copies (code 12). A replica that is silent for longer does not count."""
    replica_ack: str = "disk"
    """'disk': a copy counts when it is synced, the store's own, too. 'memory': when it is written."""
    ha_listen: str | None = None
    """HOST:PORT at which slaves of RocketMQ copy the log; port 0 chooses a free one. The protocol has no accounts and
    no TLS: every client that reaches the port can read the whole log. Slaves also ask at the port two below `listen`'s.
    """
    ha_allow: str | None = None
    """Networks from which slaves may connect to `ha_listen`, `10.1.2.0/24,10.2.0.7`. None: this machine alone."""


class ServerOptions(TypedDict, total=False):
    """The options of a server. `ServerConfig` describes them under the same names."""

    listen: str | None
    unix: str | os.PathLike[str] | None
    name_server: str | None
    advertise: str | None
    metrics: str | None
    grpc: str | None
    enable_topic_message_type_check: bool
    console: str | None
    console_actions: bool
    otel: bool
    io_threads: int
    connections_max: int
    groups_max: int
    topics_max: int
    auto_create_subscription_group: bool
    idle_timeout: float
    first_frame_timeout: float
    frame_timeout: float
    unread_timeout: float
    memory_max: int
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    tls: str
    tls_handshake_timeout: float
    accounts: str | os.PathLike[str] | None
    replica_of: str | None
    replica_name: str | None
    escape_to: str | None
    escape_after: float
    replicas_required: int
    replica_timeout: float
    replica_ack: str
    ha_listen: str | None
    ha_allow: str | None


class ServeOptions(ServerOptions, BrokerOptions, total=False):
    """The options of `txstore.serve`: those of the server, and those of the store that it opens."""
