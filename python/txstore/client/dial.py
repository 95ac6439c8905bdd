"""Connects to the process that holds a store, by the socket that the store's lock file states.

In:     the directory of a store; for `txstore.open(shared=True)`, a call that tries to become that process.
Out:    a connected socket.
Always: an old entry, or a process that is still recovering the store, is waited for, up to a time limit. Then the
        error names the process.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from txstore.broker.local_socket import connect as connect_store
from txstore.broker.local_socket import read_holder
from txstore.errors import BrokerUnreachableError, InvalidOptionError

__all__ = ["STORE", "Dial", "connect", "dial", "host_and_port", "name_servers", "store_of"]

STORE = "store:"
_PAUSE_SECONDS = 0.002
_PAUSE_SECONDS_MAX = 0.05

Dial: TypeAlias = Callable[[], Coroutine[Any, Any, socket.socket]]
"""Returns a connected socket."""


def store_of(address: str) -> str | None:
    """Returns the directory that an address `store:DIRECTORY` names; None for another address."""
    return address.removeprefix(STORE) if address.startswith(STORE) else None


def host_and_port(address: str) -> tuple[str, int]:
    """Splits `HOST:PORT`. An IPv6 host may be in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def name_servers(address: str) -> list[str]:
    """Splits `HOST:PORT;HOST:PORT`, or returns the one address `unix:FILE` or `store:DIRECTORY`.

    Raises InvalidOptionError.
    """
    if not isinstance(address, str):
        raise _invalid_address(repr(address))
    if address.startswith(("unix:", STORE)):
        if not address.partition(":")[2] or "\0" in address:
            raise _invalid_address(repr(address))
        return [address]
    found = [part.strip() for part in address.split(";") if part.strip()]
    for one in found:
        host, colon, port = one.rpartition(":")
        if not host or not colon or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
            raise _invalid_address(repr(one))
    if not found:
        raise _invalid_address(repr(address))
    return found


def _invalid_address(given: str) -> InvalidOptionError:
    return InvalidOptionError(
        f'invalid address {given}\nhint: "127.0.0.1:9876", several as "a:9876;b:9876", "unix:FILE", or "store:PATH"',
        option="address",
    )


async def dial(directory: str, timeout: float, take: Callable[[], bool] | None = None) -> socket.socket:
    """Connects to the holder of a store. Raises BrokerUnreachableError after `timeout` seconds, and what `take` raises.

    `take` tries to make this process the holder and returns whether it is. It runs in a thread.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    pause = _PAUSE_SECONDS
    while True:
        try:
            return connect_store(directory)
        except OSError as error:
            failed = error
        if take is not None and await loop.run_in_executor(None, take):
            try:
                return connect_store(directory)
            except OSError as error:
                failed = error
        if loop.time() >= until:
            raise _unreachable(directory, failed, timeout, may_write=take is not None) from failed
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def connect(address: str, timeout: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connects to `HOST:PORT`, `unix:FILE` or `store:DIRECTORY`, and blocks. Raises OSError."""
    directory = store_of(address)
    if directory is not None:
        return connect_store(directory)
    if address.startswith("unix:"):
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout)
            connected.connect(address.removeprefix("unix:"))
        except BaseException:
            connected.close()
            raise
        return connected
    host, port = host_and_port(address)
    connected = socket.create_connection((host, port), timeout)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def _unreachable(directory: str, failed: OSError, timeout: float, *, may_write: bool) -> BrokerUnreachableError:
    address = STORE + directory
    if not Path(directory).is_dir():
        hint = "check the path; a process that may write creates the store"
        return BrokerUnreachableError(f"there is no store at {directory}\nhint: {hint}", address=address)
    holder = read_holder(directory)
    if holder is None:
        who = "no process has stated a socket" if not may_write else "the process that holds its lock states no socket"
        hint = "open it with shared=True in a process that may write, or run txstore serve"
    else:
        who = f"its lock file names {holder}, which does not answer at {holder.socket}"
        hint = "if that process opens a large store, wait; if it hangs, end it, and another process takes over"
    text = f"nobody answered for the store at {directory} within {timeout:g} s: {who} ({failed})\nhint: {hint}"
    return BrokerUnreachableError(text, address=address)
