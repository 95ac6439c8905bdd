"""Guards access to RocketMQ 5 with its own users: it accepts our clients' signatures, and refuses clients without
one.

RocketMQ 5.4 has no ACL 1.0 any more; its `auth` module verifies the same `AccessKey` and `Signature`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.remoting_client.conftest import BROKER_SETTINGS, SOON
from txstore import LocalTransactionState, Message, errors

pytestmark = pytest.mark.peer
USER, SECRET = "operator", "secret-of-operator"
PROVIDERS = "org.apache.rocketmq.auth"
AUTH: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": SECRET}),
    "authorizationEnabled": True,
    "authorizationProvider": f"{PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
}


@pytest.fixture(scope="module")
def guarded(peer_process: peer.Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker that knows one user."""
    store = tmp_path_factory.mktemp("guarded") / "store"
    config = peer.SMALL | peer.SHORT_DELAYS
    with peer_process.broker(store, config=config, settings=BROKER_SETTINGS | AUTH) as broker:
        yield broker.names


def check(message: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


def test_signing_client_is_accepted(guarded: str) -> None:
    with txstore.connect(guarded, access_key=USER, secret_key=SECRET, **SOON) as broker:
        producer = broker.transaction_producer("payments", check_listener=check)
        with producer.transaction(Message("orders", b"one")):
            pass
        broker.producer("plain").send_batch([Message("orders", b"two"), Message("orders", "käse".encode())])
        found: set[bytes] = set()
        with broker.consumer("shipping", "orders") as consumer:
            while len(found) < 3:
                found |= {message.body for message in consumer.poll(timeout=60)}
    assert found == {b"one", b"two", "käse".encode()}


@pytest.mark.parametrize("account", [{}, {"access_key": USER, "secret_key": "not-the-secret"}])
def test_client_without_a_signature_is_refused(guarded: str, account: dict[str, Any]) -> None:
    with (
        txstore.connect(guarded, **account, **SOON) as broker,
        pytest.raises(errors.BrokerRefusedError, match="NO_PERMISSION") as caught,
    ):
        broker.producer("plain").send(Message("orders", b"x"))
    assert "not-the-secret" not in str(caught.value)
