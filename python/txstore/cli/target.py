"""The store that a command operates: a directory, or the server that has it open.

In:     PATH, `--server ADDRESS`, and the variables that replace them.
Out:    a `Target`, and the broker to call.
Always: a command makes the same calls on a store of its own and on one that a program has open.
Not here: what a command does.

The environment: TXSTORE_SERVER is an address and TXSTORE_PATH a directory; with either, a command takes no PATH. The
address comes first if both are set. Accounts and TLS of the server: TXSTORE_ACCESS_KEY and TXSTORE_SECRET_KEY,
TXSTORE_TLS (a PEM file of authorities).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import txstore
from txstore import EmbeddedBroker
from txstore.errors import BrokerUnreachableError, InvalidOptionError, StoreLockedError
from txstore.inspection.opening import reading_broker, writing_broker

if TYPE_CHECKING:
    from txstore import RemoteBroker

__all__ = ["GROUP", "SERVER", "Operated", "Target", "connect", "joined", "log_of", "reading", "target_of", "writing"]

Operated: TypeAlias = "EmbeddedBroker | RemoteBroker"
"""A broker that a command calls: of a store that it opened, or of a server."""

PATH, SERVER = "TXSTORE_PATH", "TXSTORE_SERVER"
GROUP = "txstore-cli"
"""The producer group of what commands send."""


@dataclass(frozen=True, slots=True)
class Target:
    """A store's directory, or the address of its server. As text it is what a command takes."""

    path: str = ""
    server: str | None = None

    def __str__(self) -> str:
        return self.path if self.server is None else f"--server {self.server}"


def target_of(first: str | None, server: str | None, *, of_server: bool = True) -> Target | None:
    """Returns the target of a command, unless `first`, its first argument, is the PATH.

    `of_server` tells whether the command can operate a server's store.

    Raises InvalidOptionError if both are given.
    """
    # No topic, group or id has these characters.
    names_path = first is not None and ("/" in first or "." in first)
    if server is not None:
        if names_path:
            raise InvalidOptionError(
                f"both a path and a server are given: {first} and {server}\nhint: pass one of them", option="server"
            )
        return Target(server=server)
    if names_path:
        return None
    if of_server and (address := os.environ.get(SERVER)):
        return Target(server=address)
    if path := os.environ.get(PATH):
        return Target(path)
    return None


def connect(address: str) -> RemoteBroker:
    """Connects to the server at an address: HOST:PORT, unix:FILE, or store:PATH for the program that has it open."""
    from txstore.client.options import ConnectConfig

    return txstore.connect(address, config=ConnectConfig.from_environment())


def joined(to: str) -> RemoteBroker:
    """Connects to a broker; opens a store together with the programs that have it open."""
    target = log_of(to)
    return connect(to) if target.server is not None else txstore.open(target.path, shared=True)


def log_of(text: str) -> Target:
    """Returns the store of a directory, or the server at an address. Raises InvalidOptionError."""
    if Path(text).is_dir():
        return Target(text)
    if "/" in text and ":" not in text:
        raise InvalidOptionError(
            f"there is no store at {text}\nhint: pass the directory of a store, or the address of a broker",
            option="to",
        )
    return Target(server=text)


@contextmanager
def reading(target: Target) -> Iterator[Operated]:
    """Opens a target for reading: takes no lock, and works while a program has the store open."""
    if target.server is not None:
        with connect(target.server) as remote:
            yield remote
    else:
        with reading_broker(target.path) as broker:
            yield broker


@contextmanager
def writing(target: Target) -> Iterator[Operated]:
    """Opens a target for writing. If a program has the store open, that program makes the calls.

    Raises StoreLockedError if it does not listen on the store's socket.
    """
    with ExitStack() as opened:
        if target.server is not None:
            yield opened.enter_context(connect(target.server))
            return
        try:
            broker: Operated = opened.enter_context(writing_broker(target.path))
        except StoreLockedError as error:
            try:
                broker = opened.enter_context(connect(f"store:{target.path}"))
            except BrokerUnreachableError as unreachable:
                raise _not_listening(error, unreachable) from unreachable
        yield broker


def _not_listening(error: StoreLockedError, unreachable: BrokerUnreachableError) -> StoreLockedError:
    what, why = (str(one).partition("\n")[0] for one in (error, unreachable))
    hint = f"if it serves an address, pass that instead of the path: --server ADDRESS, or {SERVER}"
    return StoreLockedError(f"{what}, and does not answer: {why}\nhint: {hint}", pid=error.pid)
