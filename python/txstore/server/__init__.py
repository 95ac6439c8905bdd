"""Serves a broker to clients of any language over RocketMQ's remoting protocol.

Always: the engine answers sends, ends and pulls without waiting for Python. The other requests follow the rules of the
embedded broker.
"""

from txstore.server.config import ServeOptions, ServerConfig
from txstore.server.opening import serve
from txstore.server.server import Server

__all__ = ["ServeOptions", "Server", "ServerConfig", "serve"]
