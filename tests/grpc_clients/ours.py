"""`txstore serve --grpc` in this process.

In:     a directory; a certificate; whether it has accounts.
Out:    a GrpcServer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import txstore
from tests.certificates import Pair
from tests.grpc_clients.servers import ACCESS_KEY, QUEUES, SECRET_KEY, Stored
from txstore import Server, ServerConfig

__all__ = ["Ours", "serve_ours"]

# A check comes as soon as both can: after one second, and a second later the next.
MESSAGES_MAX = 100
"""More than a scenario sends to a queue."""
SETTINGS_OF_OURS: dict[str, Any] = {
    "auto_create_topic_enable": False,
    "transaction_timeout": 1.0,
    "transaction_check_interval": 1.0,
}
_ACCOUNTS = f"""
[{ACCESS_KEY}]
secret_key = "{SECRET_KEY}"
default_topic_perm = "PUB|SUB"
default_group_perm = "SUB"
"""


@dataclass(frozen=True)
class Ours:
    """A store that this process serves."""

    server: Server

    @property
    def endpoints(self) -> str:
        assert self.server.grpc is not None
        return self.server.grpc

    def create_topic(self, topic: str, kind: str) -> None:
        self.server.broker.create_topic(topic, QUEUES, message_type=kind)

    def create_group(self, group: str, *, fifo: bool, attempts: int) -> None:
        self.server.broker.create_group(group, consume_message_orderly=fifo, retry_max_times=attempts - 1)

    def stored(self, topic: str) -> list[Stored]:
        broker = self.server.broker
        messages = [
            message for queue_id in range(QUEUES) for message in broker.read(topic, queue_id, 0, MESSAGES_MAX)[0]
        ]
        return [Stored(message.body.decode(), message.properties, message.store_timestamp_ms) for message in messages]

    def dead_letters(self, group: str) -> int:
        return len(self.server.broker.dead_letters(group))


@contextmanager
def serve_ours(folder: Path, pair: Pair, *, accounts: bool = False) -> Iterator[Ours]:
    """`txstore serve`; connections may use TLS."""
    config: dict[str, Any] = {"tls": "permissive"} | pair.options
    if accounts:
        file = folder / "accounts.toml"
        file.touch(0o600)
        file.write_text(_ACCOUNTS)
        config["accounts"] = file
    settings = ServerConfig(listen="127.0.0.1:0", name_server=None, grpc="127.0.0.1:0", **config)
    with txstore.serve(folder / "store", config=settings, **SETTINGS_OF_OURS) as server:
        yield Ours(server)
