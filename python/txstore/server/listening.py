"""Listening: what the engine needs for it, way for a server's Unix socket, warnings about addresses that others reach.

In:     the options of a server, its secrets.
Out:    a path at which a socket can be bound; lines in the log.
Always: never removes a file that is not a socket, nor one at which a process listens.
"""

import ipaddress
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from txstore.errors import StoreIOError
from txstore.server.secrets import Secrets

__all__ = ["Addresses", "GrpcFacts", "clear", "grpc_facts", "warn"]

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


def grpc_facts(listen: str | None, broker_name: str, checks_message_types: bool) -> GrpcFacts | None:
    """Returns what the engine needs for the gRPC protocol; None if it is not served."""
    return None if listen is None else GrpcFacts(listen, broker_name, checks_message_types)


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


def clear(path: Path) -> None:
    """Removes the socket of a killed server. Raises StoreIOError if a process listens there or it is not a socket."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise StoreIOError(f"{path} exists and is not a socket\nhint: use another file for the socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise StoreIOError(f"{path} cannot be used: {error}\nhint: use another file for the socket") from error
    raise StoreIOError(f"{path} is in use by another process\nhint: stop it, or use another file for the socket")
