"""Preflight: what a server needs from the machine, found out before its store is opened or created.

In:     the options of a server, which `validation` has checked.
Out:    nothing, or the error with which the server would fail later.
Always: creates no file, and listens nowhere: it takes each address for a moment. Another program may still take one
        before the server does; the server's own error then says so.
Not here: whether the values are valid (`validation`), and the store.
"""

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from txstore._native import RemotingServer
from txstore.errors import InvalidOptionError, StoreIOError
from txstore.server.config import ServerConfig
from txstore.server.console import check_console_packages
from txstore.server.listening import check_socket, fast_address, secrets_of
from txstore.server.tracing import check_span_packages

__all__ = ["check_machine"]

_PATH_BYTES_MAX = 107  # Of sockaddr_un, without the byte that ends it.
_ADDRESSES = ("listen", "name_server", "grpc", "metrics", "console", "ha_listen")
_HINTS = {
    errno.EADDRINUSE: "another server listens there: stop it, or use another address (port 0 takes a free port)",
    errno.EADDRNOTAVAIL: "the host must be an address of this machine",
    errno.EACCES: "this user may not use the port: use one above 1023",
}


def check_machine(config: ServerConfig, store: str | os.PathLike[str]) -> None:
    """Raises InvalidOptionError for packages that are missing, files that cannot be used, and two options with one
    address; StoreIOError for an address that is in use or not available. `store`: the path of the store to open."""
    if config.console is not None:
        check_console_packages()
    if config.otel:
        check_span_packages()
    RemotingServer.check_secrets(secrets_of(config))
    if config.unix is not None:
        _check_unix(os.fspath(config.unix), Path(store))
    wanted = {name: address for name in _ADDRESSES if (address := getattr(config, name)) is not None}
    if config.ha_listen is not None and config.listen is not None:
        wanted["the port for slaves two below listen"] = fast_address(config.listen)
    _check_addresses(wanted)


def _check_unix(text: str, store: Path) -> None:
    path = Path(text)
    if not text or path.absolute() == store.absolute():
        raise InvalidOptionError(
            f"unix must be the path of a socket, got {text!r}\nhint: /run/txstore.sock", option="unix"
        )
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise InvalidOptionError(
            f"unix must have at most {_PATH_BYTES_MAX} bytes, as every path of a socket, got {text!r}\n"
            "hint: use a shorter path; it may be relative",
            option="unix",
        )
    if not path.parent.exists() and path.parent.absolute() == store.absolute():
        return  # The directory is created with the store.
    if not path.parent.is_dir():
        what, hint = "there is no such directory", "create it, or use a path in an existing directory"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        what, hint = "this user may not create files there", "use another directory"
    else:
        check_socket(path)
        return
    raise StoreIOError(f"cannot listen at {text}: {what}\nhint: {hint}")


def _check_addresses(wanted: dict[str, str]) -> None:
    """Takes all addresses at the same time, then lets them go."""
    taken: list[tuple[str, str, int]] = []
    with contextlib.ExitStack() as opened:
        for name, address in wanted.items():
            host, port = _take(address, opened)
            if address.endswith(":0"):
                continue  # The system chooses another one later.
            for other, its_host, its_port in taken:
                if port == its_port and (host == its_host or _is_any(host) or _is_any(its_host)):
                    raise InvalidOptionError(
                        f"{name}={address!r} is the address of {other}={wanted[other]!r}, too\n"
                        "hint: use another port for one of them",
                        option=name,
                    )
            taken.append((name, host, port))


def _take(address: str, opened: contextlib.ExitStack) -> tuple[str, int]:
    """Binds an address until `opened` is closed. Returns the number of its host, and its port."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = opened.enter_context(socket.socket(family))
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As the server does: connections of one before it end.
    try:
        taken.bind((host.strip("[]"), int(port)))
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "use another address")
        raise StoreIOError(f"cannot listen at {address}: {error.strerror or error}\nhint: {hint}") from error
    where = taken.getsockname()
    return str(where[0]), int(where[1])


def _is_any(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_unspecified
