"""Makes this process the one that writes a shared store, if no other does.

In:     the store's lock.
Out:    an open store and a server on its socket.
Always: the lock decides. A process that cannot take it remains a client.
Not here: when it is tried (`broker`).
"""

import dataclasses
import errno
import logging
import os
import threading
from datetime import timedelta

from txstore.broker import EmbeddedBroker
from txstore.broker import open as open_embedded
from txstore.broker.local_socket import keep_in_child
from txstore.config import BrokerConfig, as_timedelta
from txstore.errors import ReadOnlyError, StoreIOError, StoreLockedError, StorePoisonedError
from txstore.server import Server, ServerConfig

__all__ = ["Writer"]

_log = logging.getLogger("txstore.shared")
_ADDRESSES = ServerConfig(listen=None, name_server=None)
# Producers of other processes need this long to say which of their local transactions still run. Until then, a check
# could reach a process that knows nothing of them.
_CHECKS_AFTER_SECONDS = 2.0
# What a killed writer acknowledged itself is left only on disk. Its messages of this time are delivered again.
_OFFSETS_EVERY = timedelta(seconds=1)
# The directory may be mounted read-only here, and writable where another process runs.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Writer:
    """The store and the server of this process, while it writes. Thread-safe."""

    def __init__(self, directory: str, config: BrokerConfig) -> None:
        self._directory = directory
        self._config = _with_early_offsets(config)
        self._lock = threading.Lock()
        self._broker: EmbeddedBroker | None = None
        self._server: Server | None = None
        self._stopped = False
        self._process = os.getpid()
        keep_in_child(self)

    @property
    def is_open(self) -> bool:
        """Whether this process writes the store. It says so before it answers others."""
        return self._broker is not None

    def take(self) -> bool:
        """Opens the store and listens, unless another process does. Returns whether this process writes now.

        Raises the errors of opening, except that the store is locked.
        """
        with self._lock:
            if self._stopped:
                return False
            self._leave_poisoned()
            if self._server is not None:
                return True
            try:
                broker = open_embedded(self._directory, config=self._config)
            except StoreLockedError:
                return False
            except StoreIOError as error:
                if error.errno not in _READ_ONLY:
                    raise
                _log.info("this process cannot write the store: %s", error, extra={"path": self._directory})
                return False
            self._broker = broker
            try:
                broker.postpone_checks(_CHECKS_AFTER_SECONDS)
                # The store's own socket is the only address, so it is passed as the caller's.
                local = broker.listen().native
                self._server = Server(broker, _ADDRESSES, close_broker=True, local=local)
            except BaseException:
                self._broker = None
                broker.close()
                raise
        _log.info("this process writes the store", extra={"path": self._directory})
        return True

    def leave_poisoned(self) -> None:
        """Closes the store if a sync failed, so that this process or another opens and recovers it."""
        with self._lock:
            self._leave_poisoned()

    def stop(self) -> None:
        """Closes the server and the store. Another process may take over from then on. Idempotent."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._stopped = True
            server, self._server, self._broker = self._server, None, None
        if server is not None:
            server.close()

    def _leave_poisoned(self) -> None:
        server = self._server
        if server is None or not isinstance(server.failure(), StorePoisonedError):
            return
        self._server = self._broker = None
        _log.error("the store is closed and opened again: %s", server.failure(), extra={"path": self._directory})
        try:
            server.close()
        except (StorePoisonedError, StoreIOError, ReadOnlyError) as error:
            _log.warning("the store could not be closed cleanly: %s", error, extra={"path": self._directory})


def _with_early_offsets(config: BrokerConfig) -> BrokerConfig:
    option = "flush_consumer_offset_interval"
    every = min(as_timedelta(getattr(config, option), option), _OFFSETS_EVERY)
    return dataclasses.replace(config, flush_consumer_offset_interval=every)
