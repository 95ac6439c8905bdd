"""Guards the metrics of traffic from Java's own clients: Prometheus reads what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.remoting.test_java_clients import planned, produce, push
from tests.unit.test_server_metrics import Seen, labels
from tests.waiting import eventually
from txstore import Server, ServerConfig


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    listen = f"127.0.0.1:{peer.Peer.free_port()}"
    config = ServerConfig(listen=listen, name_server="127.0.0.1:0", metrics="127.0.0.1:0")
    # Checks are counted here: a client that has just started must answer one before the next is sent.
    short = {"transaction_timeout": 1.5, "transaction_check_interval": 3, "transaction_check_max": 3}
    with txstore.serve(tmp_path / "store", config=config, **short) as server:  # type: ignore[arg-type]
        yield server


def test_traffic_of_java_is_counted_under_rocketmq_s_names(java: peer.Peer, server: Server) -> None:
    produce(java, server, 20)
    plans = [["COMMIT"], ["ROLLBACK"], ["UNKNOWN", "UNKNOWN", "COMMIT"], ["UNKNOWN"]]
    with java.producer(str(server.name_server), "payments") as producer:
        producer.transactions([planned(b"tx", plan) for plan in plans])
        # Its own group, and the one that every Java client has in addition; a heartbeat names the language.
        connected = {labels(language="java", version="v5_4_0", protocol_type="remoting"): 2}
        eventually(lambda: Seen(server).all("rocketmq_producer_connections") == connected)
        eventually(lambda: not server.broker.transactions())
    push(java, server, 22, linger_ms=2_000)  # So that its offsets are stored.
    # When the consumer leaves, it acknowledges what it has delivered.
    eventually(lambda: not Seen(server).all("rocketmq_consumer_lag_messages"))
    seen = Seen(server)
    assert seen.all("rocketmq_messages_in_total") == {
        labels(topic="orders", message_type="normal", is_system="false"): 20,
        labels(topic="orders", message_type="transaction", is_system="false"): 4,
    }
    read = labels(topic="orders", consumer_group="shipping", is_retry="false", is_system="false")
    assert seen.all("rocketmq_messages_out_total") == {read: 22}
    assert seen.all("rocketmq_throughput_out_total")[read] > 22 * 100
    assert seen.all("rocketmq_commit_messages_total") == {labels(topic="orders"): 2}
    assert seen.all("rocketmq_rollback_messages_total") == {labels(topic="orders"): 1}
    assert seen.all("txstore_discarded_messages_total") == {labels(topic="orders"): 1}
    # One checked once and settled at the second check; one checked until it was discarded.
    assert seen.all("txstore_transaction_checks_total") == {
        labels(result="sent"): 2 + 3,
        labels(result="unknown"): 1 + 3,
        labels(result="commit"): 1,
    }
    assert seen.all("rocketmq_half_messages") == {}
