"""The asyncio interface: the same producers, listeners and consumers, with `await`.

In:     `open(path)` for a store in this process, with `shared=True` for one that several processes share;
        `connect(address)` for a broker in another process.
Out:    a `Broker` for one event loop. All kinds have the same producers and consumers.
Always: nothing blocks the loop. A listener or handler that is not a coroutine runs in a bounded pool.
"""

import importlib
from typing import TYPE_CHECKING

from txstore.aio.broker import Broker
from txstore.aio.consumer import Consumer, Handler
from txstore.aio.embedded import EmbeddedBroker, open
from txstore.aio.producer import Producer, Transaction, TransactionProducer
from txstore.aio.remote import RemoteBroker, connect

if TYPE_CHECKING:
    from txstore.aio.shared import SharedBroker

__all__ = [
    "Broker",
    "Consumer",
    "EmbeddedBroker",
    "Handler",
    "Producer",
    "RemoteBroker",
    "SharedBroker",
    "Transaction",
    "TransactionProducer",
    "connect",
    "open",
]


def __getattr__(name: str) -> object:
    """Loads the shared broker on first use: it needs the server."""
    if name != "SharedBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("txstore.aio.shared").SharedBroker
