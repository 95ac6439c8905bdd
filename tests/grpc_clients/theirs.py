"""A real RocketMQ with its proxy in local mode, in a Java process.

In:     a directory; a certificate; whether it has accounts.
Out:    a GrpcServer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from tests.certificates import Pair
from tests.grpc_clients.servers import ACCESS_KEY, QUEUES, SECRET_KEY, Stored
from tests.peer import rocketmq as peer

__all__ = ["Theirs", "serve_theirs"]

# POP's own records are timer messages.
STORE_OF_THEIRS = peer.SMALL | {"timerWheelEnable": True}
BROKER_OF_THEIRS = peer.SHORT_TIMES | {
    "transactionCheckMax": 15,
    "recallMessageEnable": True,
    "enablePropertyFilter": True,
    "autoCreateTopicEnable": False,
    "autoCreateSubscriptionGroup": False,
}
_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"


@dataclass(frozen=True)
class Theirs:
    """A RocketMQ with its proxy in a Java process."""

    broker: peer.EmbeddedBroker
    port: int

    @property
    def endpoints(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _call(self, command: str, **facts: Any) -> Any:
        return self.broker.peer.call(command, handle=self.broker.facts["handle"], **facts)

    def create_topic(self, topic: str, kind: str) -> None:
        self._call("broker.topic", topic=topic, type=kind, queues=QUEUES)

    def create_group(self, group: str, *, fifo: bool, attempts: int) -> None:
        self._call("broker.group", group=group, fifo=fifo, retries=attempts - 1)

    def stored(self, topic: str) -> list[Stored]:
        return [Stored(**found) for found in self._call("broker.messages", topic=topic)]

    def dead_letters(self, group: str) -> int:
        return sum(end - first for topic, _, first, end in self.broker.status()["queues"] if topic == f"%DLQ%{group}")


def _pkcs8(key: Path) -> Path:
    """A copy of the key in the only form that the proxy reads."""
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    copy = key.with_suffix(".pkcs8.key")
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    copy.write_bytes(found.private_bytes(serialization.Encoding.PEM, form, plain))
    return copy


@contextmanager
def serve_theirs(
    home: peer.Home,
    folder: Path,
    pair: Pair,
    *,
    accounts: bool = False,
    config: Mapping[str, Any] = STORE_OF_THEIRS,
    machine: Sequence[str] = peer.QUICK_MACHINE,
) -> Iterator[Theirs]:
    """A RocketMQ in a process of its own, because a proxy's settings are static. `config`: of its store."""
    settings: dict[str, Any] = {
        "localServeAddr": "127.0.0.1",
        "tlsTestModeEnable": False,
        "tlsCertPath": str(pair.certificate),
        "tlsKeyPath": str(_pkcs8(pair.key)),
    }
    if accounts:
        settings |= {
            "authenticationEnabled": True,
            "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{_PROVIDERS}.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": ACCESS_KEY, "password": SECRET_KEY}),
        }
    with home.start(machine) as process:
        broker = process.broker(folder / "store", config=config, settings=BROKER_OF_THEIRS)
        # Chosen this late, because other programs of the machine may take it meanwhile.
        settings["grpcServerPort"] = port = peer.Peer.free_port()
        handle = process.call("proxy.start", handle=broker.facts["handle"], settings=settings)["handle"]
        yield Theirs(broker, port)
        process.call("proxy.stop", handle=handle)
        broker.stop()
