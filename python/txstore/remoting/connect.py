"""Connect: the door to a broker elsewhere, for programs without asyncio.

In: an address and options. Out: a broker that producers and consumers work on as on an embedded one. Always: asyncio is
imported only by who connects. Not here: how it is spoken to.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txstore.remoting.broker import RemoteBroker
    from txstore.remoting.options import ConnectOptions

__all__ = ["connect"]


def connect(address: str, *, config: "ConnectOptions | None" = None, **options: object) -> "RemoteBroker":
    """A broker in another process: RocketMQ's own, or `txstore serve`. Close it, or use it in `with`.

    `address`: of name servers, as `"127.0.0.1:9876"`, several as `"a:9876;b:9876"`; or of a socket of `txstore serve`,
    as `"unix:FILE"`. `options` are settings of `txstore.remoting.options.ConnectOptions`, laid over `config`.

    Raises InvalidOptionError, BrokerUnreachableError, BrokerTimeoutError.
    """
    from txstore.remoting.broker import RemoteBroker
    from txstore.remoting.options import ConnectOptions

    return RemoteBroker.connect(address, ConnectOptions.from_options(options, config))
