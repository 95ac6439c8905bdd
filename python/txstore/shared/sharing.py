"""How a store is shared: the settings that each process has, and the client that they make.

In:     the arguments of `txstore.open(path, shared=True)`.
Out:    a client's session, which finds the process that writes, or makes this process that one.
Not here: threads and forks (`broker`), asyncio (`txstore.aio.shared`), writing (`writer`).
"""

import asyncio
import functools
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from txstore._native import network_file_system
from txstore.client.broker import MESSAGE_SIZE_MAX, Session
from txstore.client.dial import STORE, dial
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig, as_timedelta
from txstore.errors import InvalidOptionError
from txstore.producer.outbox import MessageLimits
from txstore.shared.writer import Writer

if TYPE_CHECKING:
    import socket

__all__ = ["Sharing"]

_REQUEST_SECONDS = 10.0
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a store is shared; the same in a forked child."""

    directory: str
    config: BrokerConfig
    writer: bool
    open_timeout: float

    @classmethod
    def at(cls, path: str | os.PathLike[str], config: BrokerConfig, *, writer: bool, open_timeout: float) -> Self:
        """Raises InvalidOptionError for a path that is not valid or is on a network file system."""
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
        return cls(directory, config, writer, open_timeout)

    @property
    def address(self) -> str:
        """The address of the store for clients."""
        return STORE + self.directory

    @property
    def limits(self) -> MessageLimits:
        """The limits of messages within database transactions. All processes have the same options."""
        return MessageLimits(MESSAGE_SIZE_MAX, as_timedelta(self.config.timer_max_delay_sec, "timer_max_delay_sec"))

    @property
    def options(self) -> ConnectConfig:
        """The options of the client. A takeover is short, so it tries again soon, and often."""
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

    def session(self) -> tuple[Session, Writer | None]:
        """Returns a client that is not started yet, and what writes the store here once it must."""
        writer = Writer(self.directory, self.config) if self.writer else None
        take = None if writer is None else writer.take

        def connect() -> "Coroutine[Any, Any, socket.socket]":
            return dial(self.directory, self.open_timeout, take)

        session = Session(self.address, self.options, connect)
        if writer is not None:
            session.client.background_tasks.append(functools.partial(_watch, writer))
        return session, writer


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
