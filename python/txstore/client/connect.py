"""Connects programs without asyncio to a broker in another process.

Always: asyncio is imported only when `connect` is called.
"""

from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from txstore.client.broker import RemoteBroker
    from txstore.client.options import ConnectConfig, ConnectOptions

__all__ = ["connect"]


def connect(
    address: str, *, config: "ConnectConfig | None" = None, **options: "Unpack[ConnectOptions]"
) -> "RemoteBroker":
    """Connects to a broker in another process: RocketMQ's own, or `txstore serve`. Close it, or use it in `with`.

    `address` names one name server, `"127.0.0.1:9876"`, several, `"a:9876;b:9876"`, the socket of `txstore serve`,
    `"unix:FILE"`, or a store of this machine that another process has open, `"store:PATH"`. `options` are
    fields of `txstore.ConnectConfig` and override `config`.

    Raises InvalidOptionError, BrokerUnreachableError, BrokerTimeoutError.
    """
    from txstore.client.broker import RemoteBroker
    from txstore.client.options import ConnectConfig

    return RemoteBroker.connect(address, ConnectConfig.from_options(options, config))
