"""Guards the server's metrics: Prometheus sees what happened, under RocketMQ's names, and nothing else.

Prometheus's own parser reads the text, after messages and transactions over real connections.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frames import Wire
from tests.remoting_requests import (
    CHECK,
    COMMIT,
    END,
    HEARTBEAT,
    PULL,
    ROLLBACK,
    SEND_V2,
    UNKNOWN,
    UPDATE_OFFSET,
    ending,
    half,
    heartbeat,
    properties,
    pulling,
    sending,
)
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig, TransactionListener
from txstore.metrics import families

parser = pytest.importorskip("prometheus_client.parser")

WITH_METRICS = ServerConfig("127.0.0.1:0", name_server=None, metrics="127.0.0.1:0")
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "txstore"}
Labels = frozenset[tuple[str, str]]


class Inside(TransactionListener):
    """A listener that returns the given answers one after another."""

    def __init__(self, plan: list[LocalTransactionState | Exception]) -> None:
        self._plan = plan

    def execute_local_transaction(self, message: Any, arg: object) -> LocalTransactionState:
        return self.check_local_transaction(message)

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        answer = self._plan.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def labels(**given: str) -> Labels:
    return frozenset(given.items())


class Seen:
    """The samples of /metrics at one time."""

    def __init__(self, server: Server) -> None:
        line = http.client.HTTPConnection(str(server.metrics), timeout=20)
        line.request("GET", "/metrics")
        answer = line.getresponse()
        assert answer.status == 200
        self.text = answer.read().decode()
        line.close()
        self.kinds: dict[str, str] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        for family in parser.text_string_to_metric_families(self.text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                assert sample.labels.items() >= COMMON.items(), sample
                own = labels(**{name: value for name, value in sample.labels.items() if name not in COMMON})
                of_name = self._values.setdefault(sample.name, {})
                assert own not in of_name, sample
                of_name[own] = sample.value

    def all(self, name: str) -> dict[Labels, float]:
        """Every sample of a name; samples with value 0 are left out."""
        return {own: value for own, value in self._values.get(name, {}).items() if value}

    def labels_of(self, name: str) -> set[str]:
        """Names of the labels that a metric has; empty if the metric is absent."""
        return {label for own in self._values.get(name, {}) for label, _ in own} | (
            set(COMMON) if name in self._values else set()
        )

    def one(self, name: str, **given: str) -> float:
        return self._values[name][labels(**given)]


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, WITH_METRICS) as server:
        yield server


def test_messages_are_counted_by_topic_and_kind(server: Server, wire: Wire, broker: EmbeddedBroker) -> None:
    plans = [("normal", ""), ("normal", ""), ("fifo", properties(__SHARDINGKEY="k")), ("delay", properties(DELAY="18"))]
    for _, text in plans:
        assert wire.call(SEND_V2, sending(text=text), b"x").code == 0
    assert wire.call(SEND_V2, half(), b"tx").code == 0
    assert wire.call(SEND_V2, half(), b"tx").code == 0, "a resend of the same message, which is stored once"
    assert wire.call(SEND_V2, sending("large"), b"x" * 5_000).code == 0
    assert wire.call(SEND_V2, sending("refused", queue_id=99), b"x").code != 0
    seen = Seen(server)
    orders = {"topic": "orders", "is_system": "false"}
    large = {"topic": "large", "is_system": "false", "message_type": "normal"}
    assert seen.all("rocketmq_messages_in_total") == {
        labels(**orders, message_type="normal"): 2,
        labels(**orders, message_type="fifo"): 1,
        labels(**orders, message_type="delay"): 1,
        labels(**orders, message_type="transaction"): 1,
        labels(**large): 1,
    }
    bytes_in = seen.all("rocketmq_throughput_in_total")
    stat = broker.stat()
    assert sum(bytes_in.values()) == stat.max_physical_offset - stat.min_physical_offset, "the records, as stored"
    sizes = {le: seen.one("rocketmq_message_size_bucket", **large, le=le) for le in ("1024.0", "4096.0", "524288.0")}
    assert sizes == {"1024.0": 0, "4096.0": 0, "524288.0": 1}
    assert seen.one("rocketmq_message_size_sum", **large) == bytes_in[labels(**large)]
    assert server.counters()["messages_in"] == 5
    assert server.counters()["halves_in"] == 1


def test_delivered_messages_are_counted_by_group(server: Server, wire: Wire) -> None:
    wire.call(HEARTBEAT, {}, heartbeat("c1", "c"))
    for number in range(3):
        wire.call(SEND_V2, sending(), b"%d" % number)
    pulled = [wire.call(PULL, pulling()), wire.call(PULL, pulling(queue_offset=1, consumerGroup="other"))]
    assert wire.call(PULL, pulling(queue_offset=3)).code != 0, "nothing there"
    assert (
        wire.call(UPDATE_OFFSET, {"consumerGroup": "c", "topic": "orders", "queueId": 0, "commitOffset": 1}).code == 0
    )
    seen = Seen(server)
    of = {
        group: labels(topic="orders", consumer_group=group, is_retry="false", is_system="false")
        for group in ("c", "other")
    }
    assert seen.all("rocketmq_messages_out_total") == {of["c"]: 3, of["other"]: 2}
    assert seen.all("rocketmq_throughput_out_total") == {of["c"]: len(pulled[0].body), of["other"]: len(pulled[1].body)}
    assert seen.all("rocketmq_consumer_lag_messages") == {of["c"]: 2}
    client = {"language": "python", "version": "v5_3_3", "protocol_type": "remoting"}  # 479, by RocketMQ's count.
    assert seen.all("rocketmq_consumer_connections") == {
        labels(**client, consumer_group="c", consume_mode="push", is_system="false"): 1
    }


def test_transactions_are_counted_by_outcome(server: Server, wire: Wire, broker: EmbeddedBroker) -> None:
    sent = [wire.call(SEND_V2, half(unique_id=f"ID{number}"), b"tx") for number in range(4)]
    other = wire.call(SEND_V2, half("payments", group="h", unique_id="ID9"), b"tx")
    assert wire.call(END, ending(sent[0], COMMIT)).code == 0
    assert wire.call(END, ending(sent[0], COMMIT)).code == 0  # The same end again.
    assert wire.call(END, ending(sent[0], ROLLBACK)).code != 0  # The opposite end.
    assert wire.call(END, ending(sent[1], ROLLBACK)).code == 0
    assert wire.call(END, ending(sent[2], UNKNOWN)).code == 0
    assert wire.call(END, ending(sent[2], COMMIT, group="stranger")).code != 0
    assert wire.call(END, ending(sent[2], COMMIT, transactionId="no transaction is counted yet")).code != 0
    assert wire.call(END, ending(other, COMMIT, group="h")).code == 0
    # The broker's own producers use the same store: one count includes both.
    with broker.transaction_producer("inside", Inside([LocalTransactionState.COMMIT])) as inside:
        inside.send_in_transaction(Message("orders", b"inside"))
    seen = Seen(server)
    assert seen.all("rocketmq_commit_messages_total") == {labels(topic="orders"): 2, labels(topic="payments"): 1}
    assert seen.all("rocketmq_rollback_messages_total") == {labels(topic="orders"): 1}
    assert seen.all("rocketmq_half_messages") == {labels(topic="orders"): 2}
    assert seen.all("txstore_pending_transactions") == {labels(producer_group="g"): 2}
    assert seen.one("txstore_oldest_pending_seconds") > 0
    assert seen.all("txstore_transaction_ends_total") == {
        labels(result=result): count
        for result, count in {
            "committed": 3, "rolled_back": 1, "repeated": 1, "contrary": 1, "wrong_group": 1, "not_found": 1,
            "unknown": 1,
        }.items()
    }  # fmt: skip
    latency = "rocketmq_finish_message_latency"
    assert seen.kinds[latency] == "histogram"
    bounds = ["5.0", "60.0", "600.0", "3600.0", "43200.0", "86400.0", "+Inf"]
    assert [seen.one(f"{latency}_bucket", topic="orders", le=le) for le in bounds] == [2] * 7
    assert seen.one(f"{latency}_count", topic="orders") == 2
    assert 0 <= seen.one(f"{latency}_sum", topic="orders") < 60


def test_checks_are_counted_by_result(open_store: OpenStore) -> None:
    """One transaction, by a client: unknown, no answer, commit; another: discarded without any answer."""
    soon: dict[str, Any] = {"transaction_timeout": 0.05, "transaction_check_interval": 0.05}
    broker = open_store(**soon, transaction_check_max=10_000)
    with Server(broker, WITH_METRICS) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            sent = wire.call(SEND_V2, half(), b"tx")
            assert wire.pushed(CHECK).fields["transactionId"] == "ID1"
            wire.call(END, ending(sent, UNKNOWN, fromTransactionCheck="true"))
            wire.pushed(CHECK)
            wire.pushed(CHECK)
            wire.call(END, ending(sent, COMMIT, fromTransactionCheck="true"))
        checks = Seen(server).all("txstore_transaction_checks_total")
    # On a busy machine more of them come before an answer.
    assert checks.pop(labels(result="sent")) >= 3
    assert checks.pop(labels(result="no_answer")) >= 1
    assert checks == {labels(result="unknown"): 1, labels(result="commit"): 1}
    broker.close()
    broker = open_store(**soon, transaction_check_max=3)
    with Server(broker, WITH_METRICS) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            wire.call(SEND_V2, half(unique_id="ID2"), b"tx")
            eventually(lambda: not broker.transactions())
        seen = Seen(server)
    checks = seen.all("txstore_transaction_checks_total")
    assert checks == {labels(result="sent"): 3, labels(result="no_answer"): 3}
    assert seen.all("txstore_discarded_messages_total") == {labels(topic="orders"): 1}
    assert seen.one("txstore_transaction_ends_total", result="discarded") == 1


def test_checks_of_the_broker_s_own_producers_are_counted_too(open_store: OpenStore) -> None:
    broker = open_store(transaction_timeout=0.02, transaction_check_interval=0.02)
    unknown = LocalTransactionState.UNKNOWN
    no_answer = RuntimeError("no answer")
    plan: list[LocalTransactionState | Exception] = [unknown, unknown, no_answer, LocalTransactionState.ROLLBACK]
    with broker.transaction_producer("inside", Inside(plan)) as inside:
        inside.send_in_transaction(Message("orders", b"x"))
        eventually(lambda: not broker.transactions(), 20)
    counts, _ = broker.store.transaction_counts()
    checks = {name: count for name, count in counts.items() if name.startswith("checks_")}
    assert checks == {
        "checks_sent": 3, "checks_unknown": 1, "checks_unanswered": 1, "checks_rolled_back": 1, "checks_committed": 0,
    }  # fmt: skip


def test_pending_transactions_are_counted_after_a_restart(open_store: OpenStore, tmp_path: Path) -> None:
    """Their topics are then read from the log."""
    broker = open_store()
    with Server(broker, WITH_METRICS) as server, Wire(str(server.address)) as wire:
        for number, topic in enumerate(["orders", "orders", "payments"]):
            wire.call(SEND_V2, half(topic, unique_id=f"ID{number}"), b"tx")
    broker.close()
    broker = open_store()
    with Server(broker, WITH_METRICS) as server:
        assert Seen(server).all("rocketmq_half_messages") == {labels(topic="orders"): 2, labels(topic="payments"): 1}
        assert Seen(server).all("rocketmq_commit_messages_total") == {}


def test_names_that_clients_invent_are_bounded(server: Server, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_ROWS_MAX", 3)
    for number in range(5):
        for _ in range(1 + (number == 2)):
            wire.call(SEND_V2, half(group=f"g{number}", unique_id=f"ID{number}{_}"), b"tx")
    pending = Seen(server).all("txstore_pending_transactions")
    assert len(pending) == 3
    assert pending[labels(producer_group="g2")] == 2
    assert pending[labels(producer_group=families.OTHER)] == 3
    assert sum(pending.values()) == 6


def test_memory_of_clients_is_reported(server: Server, wire: Wire, broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    wire.write(PULL, pulling(sysFlag=6, suspendTimeoutMillis=30_000))
    eventually(lambda: server.native.counters()["pulls_held"] == 1)
    seen = Seen(server)
    assert seen.one("txstore_memory_held_bytes") > 1_000
    assert seen.one("txstore_connections_over_budget_total") == 0


def test_slow_requests_for_metrics_take_no_more_threads(server: Server) -> None:
    """Clients that connect and send no request are closed when there are many; a complete request is answered."""
    assert server.metrics is not None
    host, _, port = server.metrics.rpartition(":")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(100)]
        for connection in slow[:68]:
            assert connection.recv(1) == b""
        assert Seen(server).one("txstore_connections") == 0


def test_metrics_listen_on_ipv6(broker: EmbeddedBroker) -> None:
    config = ServerConfig("127.0.0.1:0", name_server=None, metrics="[::1]:0")
    with Server(broker, config) as server:
        assert server.metrics is not None
        assert server.metrics.startswith("[::1]:")
        connection = http.client.HTTPConnection("::1", int(server.metrics.rpartition(":")[2]), timeout=20)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
