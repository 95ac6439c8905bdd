"""A FastStream broker on txstore: handlers read topics, and publish within your own database transaction.

`TxStoreBroker` has FastStream's subscribers, publishers, middlewares and AsyncAPI, and `TestTxStoreBroker` for tests.
The router for FastAPI is `txstore.faststream.fastapi.TxStoreRouter`. All need FastStream 0.7 (extra `faststream`),
whose parts for brokers are not public, so other versions may not work.
"""

from txstore.faststream.broker import TxStoreBroker
from txstore.faststream.message import TxStoreMessage, TxStoreResponse
from txstore.faststream.testing import TestTxStoreBroker

__all__ = ["TestTxStoreBroker", "TxStoreBroker", "TxStoreMessage", "TxStoreResponse"]
