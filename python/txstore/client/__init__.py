"""Connects to a broker in another process over RocketMQ's remoting protocol.

`connect` opens a connection. `broker` is its blocking interface and `client` the asyncio client below it.
`connection` and `connections` transport frames; `route` parses topic routes; `sending` sends messages and ends
transactions; `pull` pulls messages ahead; `checks` answers transaction checks; `rebalance` divides the queues of a
consumer group; `offset_store` and `offsets` keep its offsets.
"""

from txstore.client.connect import connect

__all__ = ["connect"]
