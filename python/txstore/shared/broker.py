"""The broker of a store that several processes share.

In:     the calls of producers and consumers, in any process that opened the store with `shared=True`.
Out:    the answers of the process that holds the store, which may be this one.
Always: a client like any other, also in the process that writes, so nothing changes for producers, consumers and
        listeners when another process takes over. After a fork, the child connects for itself at its first call.
Not here: taking over (`sharing`, `writer`), the protocol (`client`).
"""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from txstore.broker.local_socket import keep_in_child
from txstore.client.broker import RemoteBroker, Session
from txstore.client.loop import LoopThread, run_on
from txstore.config import BrokerConfig
from txstore.forks import at_fork
from txstore.shared.sharing import Sharing
from txstore.shared.writer import Writer

__all__ = ["SharedBroker"]

_log = logging.getLogger("txstore.shared")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Link:
    """What a process has of its own: a client on a loop, and the store if it writes."""

    session: Session
    loop: asyncio.AbstractEventLoop
    process: int
    writer: Writer | None
    stop: Callable[[], None]

    @classmethod
    def open(cls, sharing: Sharing) -> "_Link":
        """Connects. Raises BrokerUnreachableError, and the errors of opening the store."""
        session, writer = sharing.session()
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
        sharing = Sharing.at(path, config, writer=writer, open_timeout=open_timeout)
        link = _Link.open(sharing)
        try:
            return cls(sharing, link)
        except BaseException:
            link.stop()
            raise

    def __init__(self, sharing: Sharing, link: _Link) -> None:
        self._sharing = sharing
        self._renewing = threading.Lock()
        self._link = link
        super().__init__(link.session, link.loop, link.stop, sharing.limits)
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
        return link.process == os.getpid() and link.writer is not None and link.writer.is_open

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


at_fork(after_in_child=_replace_locks)
