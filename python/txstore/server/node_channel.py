"""Connections to other nodes over the remoting protocol: txstore's and RocketMQ's.

In:     an address; the account and the TLS of `TXSTORE_…` variables.
Out:    a connection whose requests are signed.
"""

from collections.abc import Mapping

from txstore.client.channel import Channel
from txstore.client.dial import connect
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerUnreachableError

__all__ = ["open_channel"]


def open_channel(address: str, config: ConnectConfig, *, seconds: float) -> Channel:
    """Connects within some seconds. Raises BrokerUnreachableError."""
    credentials = config.credentials
    try:
        connected = connect(address, seconds, config.tls_context)
    except OSError as error:
        text = f"{address} cannot be reached: {error}\nhint: start it, or check the address"
        raise BrokerUnreachableError(text, address=address) from error

    def signed(fields: Mapping[str, str], body: bytes | None) -> dict[str, str]:
        return dict(fields) if credentials is None else credentials.signed(fields, body)

    return Channel(address, connected, signed)
