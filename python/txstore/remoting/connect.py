"""Connects programs without asyncio to a broker in another process.

Always: asyncio is imported only when `connect` is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txstore.remoting.broker import RemoteBroker
    from txstore.remoting.options import ConnectOptions

__all__ = ["connect"]


def connect(address: str, *, config: "ConnectOptions | None" = None, **options: object) -> "RemoteBroker":
    """Connects to a broker in another process: RocketMQ's own, or `txstore serve`. Close it, or use it in `with`.

    `address` names one name server, `"127.0.0.1:9876"`, several, `"a:9876;b:9876"`, or the socket of `txstore serve`,
    `"unix:FILE"`. `options` are fields of `txstore.remoting.options.ConnectOptions` and override `config`.

    Raises InvalidOptionError, BrokerUnreachableError, BrokerTimeoutError.
    """
    from txstore.remoting.broker import RemoteBroker
    from txstore.remoting.options import ConnectOptions

    return RemoteBroker.connect(address, ConnectOptions.from_options(options, config))
