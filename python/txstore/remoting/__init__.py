"""Speaks RocketMQ's remoting protocol, as a client of remote brokers and as a server for a local store.

`connect` opens a connection. `broker` is its blocking interface and `client` the asyncio client below it.
`connection` and `connections` transport frames; `route` parses topic routes; `sending` sends messages and ends
transactions; `pull` pulls messages ahead; `checks` answers transaction checks; `rebalance` divides the queues of a
consumer group; `offset_store` and `offsets` keep its offsets. Rust encodes and decodes frames and records.
`server` serves a store in this process.
"""

from txstore.remoting.connect import connect

__all__ = ["connect"]
