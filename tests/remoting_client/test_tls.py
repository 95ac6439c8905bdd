"""Guards clients of a RocketMQ 5 with TLS: they work as without it, and trust only the given authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.certificates import Authority
from tests.peer import rocketmq as peer
from tests.remoting_client.conftest import BROKER_SETTINGS, SOON
from tests.remoting_client.helpers import COMMIT, UNKNOWN, Answers, take
from txstore import Message, errors

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def names(peer_home: peer.Home, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker; both, and the broker's own connection to the name server, accept only TLS."""
    store = tmp_path_factory.mktemp("secured") / "store"
    with peer_home.start((*peer.QUICK_MACHINE, *authority.of_rocketmq())) as process:
        config = peer.SMALL | peer.SHORT_DELAYS
        with process.broker(store, config=config, settings=BROKER_SETTINGS) as broker:
            yield broker.names


def test_messages_and_transactions_use_tls(names: str, authority: Authority, topic: str) -> None:
    listener = Answers(UNKNOWN, check=COMMIT)
    with txstore.connect(names, tls=str(authority.file), **SOON) as broker:
        broker.producer("plain").send(Message(topic, b"sent"))
        producer = broker.transaction_producer("payments", listener)
        with producer.transaction(Message(topic, b"committed")):
            pass
        with producer.transaction(Message(topic, b"rolled back")) as tx:
            tx.rollback()
        soon = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
        producer.send_in_transaction(Message(topic, b"checked", properties=soon))
        with broker.consumer(f"c-{topic}", topic) as consumer:
            found = [message.body for message in take(consumer, 3, 60)]
            assert consumer.poll(9, 0.5) == []
    assert sorted(found) == [b"checked", b"committed", b"sent"]
    assert listener.checked[0].body == b"checked"


def test_untrusted_authority_is_refused(names: str, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    with pytest.raises(errors.BrokerUnreachableError, match=r"the TLS handshake with .* failed"):
        txstore.connect(names, tls=str(stranger.file), **SOON)


def test_plain_client_gets_no_response(names: str) -> None:
    with pytest.raises(errors.BrokerUnreachableError, match="it may require TLS"):
        txstore.connect(names, **SOON)
