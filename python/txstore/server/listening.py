"""Listening: binds a server's addresses, with its certificate and accounts; warns about addresses that others reach.

In:     the options of a server, its secrets.
Out:    the engine's part of the server, which listens; lines in the log.
Always: never removes a file that is not a socket, nor one at which a process listens.
"""

import dataclasses
import ipaddress
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from txstore._native import LocalListener, RemotingServer
from txstore.broker import EmbeddedBroker
from txstore.errors import StoreIOError
from txstore.server.config import ServerConfig
from txstore.server.file_handles import connections_within_limit
from txstore.server.secrets import Secrets, TlsFiles, read_accounts
from txstore.server.validation import networks

__all__ = [
    "Addresses",
    "GrpcFacts",
    "check_socket",
    "clear",
    "fast_address",
    "fields_of",
    "grpc_facts",
    "listen",
    "secrets_of",
    "warn",
    "warn_of_slaves",
]

_log = logging.getLogger("txstore.remoting")


class Addresses(Protocol):
    """The addresses in a `ServerConfig`."""

    @property
    def listen(self) -> str | None: ...
    @property
    def name_server(self) -> str | None: ...
    @property
    def grpc(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class GrpcFacts:
    """What the engine needs for the gRPC protocol."""

    listen: str
    broker_name: str
    checks_message_types: bool


@dataclass(frozen=True, slots=True)
class HaFacts:
    """What the engine needs for the port for slaves."""

    listen: str
    allow: list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]


def fast_address(listen: str) -> str:
    """Returns the address at which RocketMQ's brokers ask a broker: two ports below."""
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) - 2}"


def grpc_facts(listen: str | None, broker_name: str, checks_message_types: bool) -> GrpcFacts | None:
    """Returns what the engine needs for the gRPC protocol; None if it is not served."""
    return None if listen is None else GrpcFacts(listen, broker_name, checks_message_types)


def listen(
    broker: EmbeddedBroker, config: ServerConfig, secrets: Secrets, local: LocalListener | None
) -> RemotingServer:
    wanted = [address for address in (config.listen, config.name_server) if address is not None]
    if config.ha_listen is not None and config.listen is not None:
        wanted.insert(1, fast_address(config.listen))
    unix = None if config.unix is None else Path(config.unix)
    if unix is not None:
        clear(unix)
    limits = dataclasses.replace(config, connections_max=connections_within_limit(config.connections_max))
    # The umask protects the socket's file before its mode is set. It applies to the whole process, but directories
    # that the store creates meanwhile have this mode anyway.
    before = os.umask(0o077) if unix is not None else None
    try:
        native = RemotingServer.start(
            broker.store,
            listen=wanted,
            limits=limits,
            unix=unix,
            local=local,
            io_threads=config.io_threads,
            broker_name=broker.config.broker_name,
            secrets=secrets,
            grpc=grpc_facts(config.grpc, broker.config.broker_name, config.enable_topic_message_type_check),
            ha=None if config.ha_listen is None else HaFacts(config.ha_listen, networks(config.ha_allow)),
            copies=(config.replicas_required, float(config.replica_timeout), config.replica_ack == "disk"),
        )
    finally:
        if before is not None:
            os.umask(before)
    if unix is not None:
        unix.chmod(0o600)
    return native


def fields_of(config: ServerConfig) -> dict[str, object]:
    """Returns all fields by name."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def secrets_of(config: ServerConfig) -> Secrets:
    tls = TlsFiles.read(config.tls_cert, config.tls_key, config.tls_ca, config.tls, float(config.tls_handshake_timeout))
    return Secrets(tls, *read_accounts(config.accounts))


def warn(config: Addresses, secrets: Secrets) -> None:
    """Logs what other machines may do, for each address that is not on the loopback interface."""
    for address in (config.listen, config.name_server, config.grpc):
        if address is None or ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
            continue
        if secrets.accounts is None:
            what, hint = "every client that reaches it may send and read", "use --accounts FILE"
        elif secrets.tls is None:
            what, hint = "others in the network can read and repeat requests", "use --tls-cert FILE and --tls-key FILE"
        elif not secrets.tls.required:
            what, hint = (
                "plain connections are accepted, and others in the network can read and repeat them",
                "use --tls enforcing",
            )
        else:
            continue
        _log.warning("listening at %s: %s\nhint: %s", address, what, hint, extra={"listen": address})


def warn_of_slaves(address: str, allow: str | None) -> None:
    """Logs what clients of the port for slaves can read."""
    who = "every program of this machine" + ("" if allow is None else f", and every client in {allow},")
    text = "listening at %s for slaves of RocketMQ: %s can read the whole log, without an account and without TLS"
    _log.warning(text, address, who, extra={"ha_listen": address, "ha_allow": allow})


def clear(path: Path) -> None:
    """Removes the socket of a killed server. Raises as `check_socket` does."""
    if check_socket(path):
        path.unlink()


def check_socket(path: Path) -> bool:
    """Returns whether a killed server has left its socket there. Raises StoreIOError if a process listens there, or the
    file is not a socket."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(kind):
        raise StoreIOError(f"{path} exists and is not a socket\nhint: use another file for the socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError as error:
            raise StoreIOError(f"{path} cannot be used: {error}\nhint: use another file for the socket") from error
    raise StoreIOError(f"{path} is in use by another process\nhint: stop it, or use another file for the socket")
