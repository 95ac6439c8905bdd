"""The broker of a store that several processes share.

In:     the calls of producers and consumers, in any process that opened the store with `shared=True`.
Out:    the answers of the process that holds the store, which may be this one.
Always: a client like any other, also in the process that writes, so nothing changes for producers, consumers and
        listeners when another process takes over. After a fork, the child connects for itself at its first call.
Not here: taking over (`writer`), the protocol (`client`).
"""

import asyncio
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from txstore._native import network_file_system
from txstore.broker.local_socket import keep_in_child
from txstore.client.broker import RemoteBroker, Session
from txstore.client.dial import STORE, dial
from txstore.client.loop import LoopThread, run_on
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig
from txstore.errors import InvalidOptionError
from txstore.shared.writer import Writer

if TYPE_CHECKING:
    import socket

__all__ = ["SharedBroker"]

_log = logging.getLogger("txstore.shared")
_REQUEST_SECONDS = 10.0
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Sharing:
    """How a store is shared; the same in a forked child."""

    directory: str
    config: BrokerConfig
    writer: bool
    open_timeout: float

    def options(self) -> ConnectConfig:
        """Returns the options of the client. A takeover is short, so it tries again soon, and often."""
        return ConnectConfig(
            connect_timeout=self.open_timeout,
            request_timeout=_REQUEST_SECONDS,
            end_timeout=_REQUEST_SECONDS,
            send_msg_timeout=_REQUEST_SECONDS,
            retry_times_when_send_failed=100,
            reconnect_back_off=0.01,
            reconnect_back_off_max=0.5,
            persist_consumer_offset_interval=1.0,
        )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Link:
    """What a process has of its own: a client on a loop, and the store if it writes."""

    session: Session
    loop: asyncio.AbstractEventLoop
    process: int
    writer: Writer | None
    stop: Callable[[], None]

    @classmethod
    def open(cls, sharing: _Sharing) -> "_Link":
        """Connects. Raises BrokerUnreachableError, and the errors of opening the store."""
        writer = Writer(sharing.directory, sharing.config) if sharing.writer else None
        take = None if writer is None else writer.take

        def connect() -> "Coroutine[Any, Any, socket.socket]":
            return dial(sharing.directory, sharing.open_timeout, take)

        session = Session(STORE + sharing.directory, sharing.options(), connect)
        if writer is not None:
            session.client.background_tasks.append(functools.partial(_watch, writer))
        thread = LoopThread()

        def stop() -> None:
            thread.stop()
            if writer is not None:
                writer.stop()

        try:
            run_on(thread.loop, os.getpid(), session.client.start())
        except BaseException:
            stop()
            raise
        link = cls(session, thread.loop, os.getpid(), writer, stop)
        keep_in_child(link)
        return link


class SharedBroker(RemoteBroker):
    """A store that processes of this machine share. Created by `txstore.open(path, shared=True)`.

    Close it, or use it in `with`. Producers, consumers and listeners work as with a `RemoteBroker`. One of the
    processes writes the store and answers the others. When it closes or dies, another takes over: calls in flight wait
    for that and are repeated where it is safe, and nothing acknowledged is lost.
    """

    _link: _Link

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], config: BrokerConfig, *, writer: bool = True, open_timeout: float = 30.0
    ) -> Self:
        """Opens a store. `txstore.open` describes the arguments."""
        folder = Path(_text(path)).absolute()
        directory = str(folder)
        kind = network_file_system(folder if folder.is_dir() else folder.parent)
        if kind is not None:
            raise InvalidOptionError(
                f"shared=True is not possible at {directory}: it is on {kind}, where locks and sockets do not work "
                "between machines as on a local file system\n"
                "hint: use a local directory, or txstore serve and txstore.connect",
                option="shared",
            )
        sharing = _Sharing(directory, config, writer, open_timeout)
        link = _Link.open(sharing)
        try:
            return cls(sharing, link)
        except BaseException:
            link.stop()
            raise

    def __init__(self, sharing: _Sharing, link: _Link) -> None:
        self._sharing = sharing
        self._renewing = threading.Lock()
        self._link = link
        super().__init__(link.session, link.loop, link.stop)
        _brokers.add(self)

    def __repr__(self) -> str:
        return f"SharedBroker({self.path!r}, {'closed' if self._closed else 'open'})"

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._sharing.directory

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the store now."""
        link = self._link
        return link.process == os.getpid() and link.writer is not None and link.writer.broker is not None

    # What the client has in this process

    @property
    def _session(self) -> Session:
        return self._here().session

    @_session.setter
    def _session(self, _: Session) -> None:
        """Ignores what the client's own constructor sets: it is the link's."""

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._here().loop

    @_loop.setter
    def _loop(self, _: asyncio.AbstractEventLoop) -> None:
        """Ignores it, as above."""

    @property
    def _process(self) -> int:
        return self._link.process

    @_process.setter
    def _process(self, _: int) -> None:
        """Ignores it, as above."""

    @property
    def _client(self) -> Any:
        return self._here().session.client

    @_client.setter
    def _client(self, _: Any) -> None:
        """Ignores it, as above."""

    def _here(self) -> _Link:
        """Returns this process's link. In a forked child, the first call connects."""
        link = self._link
        if link.process != os.getpid() and not self._closed:
            link = self._connect_in_child()
        return link

    def _connect_in_child(self) -> _Link:
        with self._renewing:
            old = self._link
            if old.process == os.getpid():
                return old
            link = _Link.open(self._sharing)
            # Producers that were created before the fork belong to both processes, with the queues that they know.
            link.session.client.numbers = old.session.client.numbers
            for producer in old.session.client.producers.all():
                link.session.client.producers.add(producer)
            self._link = link
            self._use(link.session, link.loop, link.stop)
            link.session.client.notify_membership()
        _log.debug("a forked process has connected to %s", self.path)
        return link


_brokers: "weakref.WeakSet[SharedBroker]" = weakref.WeakSet()


def _replace_locks() -> None:
    """Replaces locks that a thread of the parent may hold."""
    for broker in _brokers:
        broker._renewing = threading.Lock()


os.register_at_fork(after_in_child=_replace_locks)


async def _watch(writer: Writer) -> None:
    """Closes a store that can no longer be written. The next call opens it again, here or in another process."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        await loop.run_in_executor(None, writer.leave_poisoned)


def _text(path: str | os.PathLike[str]) -> str:
    directory = os.fspath(path)
    if not isinstance(directory, str):
        raise InvalidOptionError("path must be a str or an os.PathLike of str", option="path")
    if "\0" in directory or not directory:
        raise InvalidOptionError(f"path {directory!r} is not a valid path of a directory", option="path")
    return directory
