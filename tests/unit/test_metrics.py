"""Guards the metrics of a store in the program's own process: the server's names, for Prometheus and OpenTelemetry."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

import txstore
from tests.unit.test_server_metrics import WITH_METRICS, Seen
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server
from txstore.database import Database
from txstore.metrics import Collector
from txstore.otel import observe
from txstore.testing import FakeBroker

client = pytest.importorskip("prometheus_client")


def work(broker: EmbeddedBroker, folder: Path) -> None:
    """One transaction of each fate, a group with lag, and a row that waits in a database."""
    producer = broker.transaction_producer("payments", check_listener=lambda _: LocalTransactionState.UNKNOWN)
    for state in LocalTransactionState:
        producer.send_in_transaction(Message("orders", b"x"), executer=lambda *_, state=state: state)
    with broker.consumer("shipping", "orders") as consumer:
        consumer.poll(timeout=5)
    broker.producer("payments").send(Message("orders", b"unread"))
    database = Database(folder / "shop.db")
    database.create_table()
    outbox = broker.producer("shop", database=database)
    with sqlite3.connect(folder / "shop.db") as session:
        outbox.send(Message("orders", b"1", message_group="g"), session=session)
        session.execute("UPDATE txstore_outbox SET parked = 'by this test'")


def values(registry: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    common = {"cluster", "node_type", "node_id"}
    return {
        (
            sample.name,
            frozenset((name, value) for name, value in sample.labels.items() if name not in common),
        ): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    with txstore.open(tmp_path / "store") as broker:
        broker.create_topic("orders", 1)
        work(broker, tmp_path)
        yield broker


def test_a_registry_collects_the_store(shop: EmbeddedBroker) -> None:
    registry = client.CollectorRegistry()
    registry.register(Collector(shop))
    seen = values(registry)
    orders = frozenset({("topic", "orders")})
    assert seen["rocketmq_commit_messages_total", orders] == 1
    assert seen["rocketmq_rollback_messages_total", orders] == 1
    assert seen["rocketmq_half_messages", orders] == 1
    assert seen["txstore_pending_transactions", frozenset({("producer_group", "payments")})] == 1
    assert seen["rocketmq_finish_message_latency_count", orders] == 1
    assert seen["txstore_store_unavailable", frozenset({("reason", "disk_full")})] == 0
    lag = frozenset(
        {("topic", "orders"), ("consumer_group", "shipping"), ("is_retry", "false"), ("is_system", "false")}
    )
    assert seen["rocketmq_consumer_lag_messages", lag] == 1
    assert "txstore_outbox_rows" in {name for name, _ in seen}


def test_names_kinds_and_labels_are_the_server_s(shop: EmbeddedBroker) -> None:
    registry = client.CollectorRegistry()
    registry.register(Collector(shop))
    ours = {family.name: (family.type, family.documentation) for family in registry.collect()}
    with Server(shop, WITH_METRICS) as server:
        theirs = Seen(server)
    assert len(ours) >= 12
    for name, (kind, _) in ours.items():
        assert theirs.kinds[name] == kind
    for family in registry.collect():
        for sample in family.samples:
            assert set(sample.labels) <= theirs.labels_of(sample.name), sample.name


def test_opentelemetry_observes_the_same(shop: EmbeddedBroker) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(shop, meter_provider=provider)
    data = reader.get_metrics_data()
    assert data is not None
    points = [
        (metric.name, point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]
    common = ("cluster", "node_type", "node_id")
    observed = {
        (name, frozenset((key, value) for key, value in (point.attributes or {}).items() if key not in common)): (
            point.value
        )
        for name, point in points
    }
    registry = client.CollectorRegistry()
    registry.register(Collector(shop))
    changing = ("txstore_oldest_pending_seconds", "txstore_outbox_oldest_seconds")
    expected = {
        (name.removesuffix("_total"), labels): value
        for (name, labels), value in values(registry).items()
        if not name.endswith(("_bucket", "_created"))
    }
    assert {key for key, _ in observed} == {key for key, _ in expected}
    for key, value in expected.items():
        if key[0] not in changing:
            assert observed[key] == value, key
    provider.shutdown()


def test_a_closed_broker_has_no_samples(tmp_path: Path) -> None:
    registry, reader = client.CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    with FakeBroker() as broker:
        registry.register(Collector(broker))
        observe(broker, meter_provider=provider)
    assert values(registry) == {}
    assert reader.get_metrics_data() is None
    provider.shutdown()


def test_a_store_that_others_write_is_measured(shop: EmbeddedBroker, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store", read_only=True) as reader:
        registry = client.CollectorRegistry()
        registry.register(Collector(reader))
        seen = values(registry)
    assert seen["rocketmq_half_messages", frozenset({("topic", "orders")})] == 1
    assert seen["txstore_store_unavailable", frozenset({("reason", "other")})] == 0


def test_nothing_is_loaded_without_it(tmp_path: Path) -> None:
    program = f"""
import sys, txstore
txstore.open({str(tmp_path / "a.store")!r}).close()
assert not [name for name in sys.modules if "prometheus" in name or "txstore.metrics" in name]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
