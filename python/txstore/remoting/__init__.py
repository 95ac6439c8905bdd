"""Remoting: RocketMQ's protocol between processes, so that a broker may be elsewhere.

`connect` is the client's door, `broker` its face without asyncio, `client` the core beneath, on a loop. `connection`
and `connections` are how bytes go; `route` where a topic is; `sending` and `reader` what goes out and is pulled ahead;
`checks` who answers a broker's questions; `sharing` who of a group reads what; `offsets` and `places` how far. Frames
and records are coded in Rust. `server` is the other side, for a store in this process.
"""

from txstore.remoting.connect import connect

__all__ = ["connect"]
