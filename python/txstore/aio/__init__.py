"""The asyncio interface: the same producers, listeners and consumers, with `await`.

In:     `open(path)` for a store in this process, `connect(address)` for a broker in another one.
Out:    a `Broker` for one event loop. Both kinds have the same producers and consumers.
Always: nothing blocks the loop. A listener or handler that is not a coroutine runs in a bounded pool.
"""

from txstore.aio.broker import Broker
from txstore.aio.consumer import Consumer, Handler
from txstore.aio.embedded import EmbeddedBroker, open
from txstore.aio.producer import Producer, Transaction, TransactionProducer
from txstore.aio.remote import RemoteBroker, connect

__all__ = [
    "Broker",
    "Consumer",
    "EmbeddedBroker",
    "Handler",
    "Producer",
    "RemoteBroker",
    "Transaction",
    "TransactionProducer",
    "connect",
    "open",
]
