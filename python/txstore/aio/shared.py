"""A store that several processes share, for asyncio.

In:     the arguments of `txstore.aio.open(path, shared=True)`.
Out:    the coroutines of a client, which works with whichever process writes the store.
Always: recovering the store and writing it for others happen in threads, so the loop never waits for them.
Not here: which process writes (`txstore.shared`).
"""

import asyncio
import os

from txstore.aio.calls import Calls
from txstore.aio.remote import RemoteBroker
from txstore.config import BrokerConfig
from txstore.shared.sharing import Sharing

__all__ = ["SharedBroker"]


class SharedBroker(RemoteBroker):
    """A store that processes of this machine share, for one event loop. Created by `txstore.aio.open(shared=True)`.

    Open inside `async with`. It is a client, also in the process that writes; `txstore.SharedBroker` describes what
    happens when another process takes over. Create it after a fork: a loop does not survive one.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: BrokerConfig, *, writer: bool = True, open_timeout: float = 30.0
    ) -> None:
        """`txstore.open` describes the arguments. Raises InvalidOptionError."""
        self._sharing = Sharing.at(path, config, writer=writer, open_timeout=open_timeout)
        session, self._writer = self._sharing.session()
        super().__init__(session, self._sharing.limits)

    def __repr__(self) -> str:
        return f"txstore.aio.SharedBroker({self.path!r})"

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._sharing.directory

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the store now."""
        return self._writer is not None and self._writer.is_open

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Calls:
        try:
            return await super()._open(loop)
        except BaseException:
            await self._stop_writing()
            raise

    async def _close(self, calls: Calls) -> None:
        try:
            await super()._close(calls)
        finally:
            await self._stop_writing()

    async def _stop_writing(self) -> None:
        if self._writer is not None:
            await asyncio.shield(asyncio.to_thread(self._writer.stop))
