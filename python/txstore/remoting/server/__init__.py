"""The server: a broker for clients of any language, by RocketMQ's remoting protocol.

In: a broker, addresses. Out: answers. Always: sending, ending and pulling are the engine's and never wait for Python;
what is decided here is decided by the broker's own rules. Not here: those rules, bytes of the protocol.
"""

from txstore.remoting.server.server import Server, ServerConfig, serve

__all__ = ["Server", "ServerConfig", "serve"]
