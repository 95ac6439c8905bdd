"""Producers: send messages and transactional messages.

`producer` has the classes that programs use; `local_transaction` is the state of one transaction, for blocking and
asyncio producers; `registry` lists the live producers of a broker. Producers know a broker only through `interface`.
"""

from txstore.producer.producer import (
    AsyncSession,
    LocalDatabase,
    Producer,
    QueueSelector,
    Transaction,
    TransactionProducer,
)

__all__ = ["AsyncSession", "LocalDatabase", "Producer", "QueueSelector", "Transaction", "TransactionProducer"]
