"""Operates the store of a server by the calls that its console makes.

In:     a connection; a call's name and arguments.
Out:    results of the same classes as in the server's process, and the same errors.
Always: the server refuses a call that it does not list, and, with accounts, each call of an account that is not an
        administrator.
"""

from collections.abc import Callable
from typing import Any

from txstore.client.broker import RemoteBroker

__all__ = ["calls_of"]


def calls_of(broker: RemoteBroker) -> Callable[..., Any]:
    """Returns the calls at the broker's server. Raises BrokerRefusedError if it is a RocketMQ broker."""

    def call(name: str, **arguments: Any) -> Any:
        return broker._run(broker._administration._administer(name, **arguments))

    return call
