"""Opens a store: for this process alone, or shared with others.

In:     a path, settings.
Out:    an `EmbeddedBroker`, which listens for other processes; or a `SharedBroker`.
Always: the modules of the server and the client are imported only when they are needed.
"""

import os
import weakref
from typing import TYPE_CHECKING, Literal, Unpack, overload

from txstore.broker import EmbeddedBroker
from txstore.broker import open as open_embedded
from txstore.broker.local_socket import LocalSocket, Serving, read_holder
from txstore.config import BrokerConfig, BrokerOptions, Duration, as_timedelta
from txstore.errors import InvalidOptionError, StoreClosedError, StoreLockedError

if TYPE_CHECKING:
    from txstore.shared.broker import SharedBroker

__all__ = ["must_be_writer", "open"]

_CONNECTIONS_MAX = 1_000


@overload
def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    shared: Literal[False] = False,
    listen: bool = True,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> EmbeddedBroker: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    shared: Literal[True],
    writer: bool = True,
    open_timeout: Duration = ...,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> "SharedBroker": ...
def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    writer: bool = True,
    listen: bool = True,
    open_timeout: Duration = 30.0,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> "EmbeddedBroker | SharedBroker":
    """Opens the store at `path`. A writer creates it if it does not exist, recovers and heals it.

    `options` are settings of `BrokerConfig` and override `config`. With `read_only`, any number of processes may open
    the store, with or without a writer, and nothing is written.

    With `shared`, any number of processes of this machine may open the store and send, consume and run transactions.
    One of them writes for all; when it closes or dies, another takes over. With `writer=False`, this process never
    does. `open_timeout` (seconds or timedelta) is how long a call waits for a process that writes. Without `shared`,
    this process writes and no other takes over, but with `listen` it still answers processes that open with `shared`.

    Raises InvalidOptionError (unknown option, invalid value, a size that differs from the store's, or `shared` on a
    network file system), StoreLockedError (another process writes it), BrokerUnreachableError (`shared`: no process
    could write within `open_timeout`), ForeignStoreError, StoreCorruptError, MissingFileError, and the system's
    OSErrors.
    """
    if shared:
        if read_only:
            raise InvalidOptionError(
                "shared=True with read_only=True: a reader needs no sharing\nhint: pass only one of them",
                option="shared",
            )
        from txstore.shared.broker import SharedBroker

        seconds = as_timedelta(open_timeout, "open_timeout").total_seconds()
        settings = BrokerConfig.from_options(options, config)
        return SharedBroker.open(path, settings, writer=writer, open_timeout=seconds)
    must_be_writer(writer)
    try:
        broker = open_embedded(path, read_only=read_only, config=config, **options)
    except StoreLockedError as error:
        raise _with_hint(error, os.fspath(path)) from None
    if listen and not read_only:
        try:
            local_socket = broker.listen_if_possible()
            if local_socket is not None:
                _serve_on_demand(broker, local_socket)
        except BaseException:
            broker.close()
            raise
    return broker


def must_be_writer(writer: bool) -> None:
    """Checks the argument of a store that is not shared. Raises InvalidOptionError."""
    if not writer:
        hint = "to read only, use txstore.open(path, read_only=True)"
        raise InvalidOptionError(f"writer=False needs shared=True\nhint: {hint}", option="writer")


def _serve_on_demand(broker: EmbeddedBroker, local_socket: LocalSocket) -> None:
    """Starts a server when the first client connects. Until then the broker can be garbage-collected."""
    broker_ref = weakref.ref(broker)

    def start() -> Serving:
        from txstore.server import Server, ServerConfig

        broker = broker_ref()
        if broker is None or broker.closed:
            raise StoreClosedError("the store was closed meanwhile")
        config = ServerConfig(listen=None, name_server=None, connections_max=_CONNECTIONS_MAX)
        return Server(broker, config, local=local_socket.native)

    local_socket.serve_on_demand(start)


def _with_hint(error: StoreLockedError, directory: str) -> StoreLockedError:
    holder = read_holder(directory)
    who = "" if holder is None else f"\nit is {holder}"
    hint = "to use it from several processes, open it with shared=True in each"
    return StoreLockedError(f"{str(error).partition(chr(10))[0]}{who}\nhint: {hint}", pid=error.pid)
