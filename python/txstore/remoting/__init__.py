"""Speaks RocketMQ's remoting protocol, as a client of remote brokers and as a server for a local store.

`connect` opens a connection. `broker` is its blocking interface and `client` the asyncio client below it.
`connection` and `connections` transport frames; `route` parses topic routes; `sending` sends messages and ends
transactions; `reader` pulls messages ahead; `checks` answers transaction checks; `sharing` rebalances the queues of a
consumer group; `offsets` and `places` keep its offsets. Rust encodes and decodes frames and records.
`server` serves a store in this process.
"""

from txstore.remoting.connect import connect

__all__ = ["connect"]
