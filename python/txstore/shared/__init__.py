"""Shares a store among the processes of one machine, without a server to install.

`opening` is `txstore.open`. `broker` is what `txstore.open(path, shared=True)` returns: a client of the process that
holds the store, which `sharing` makes; `txstore.aio.shared` is the same for asyncio. `writer` is what makes a process
that one.
"""

from txstore.shared.opening import open

__all__ = ["open"]
