"""Guards replicas of RocketMQ masters of each kind: RocketMQ 4.9, one that waits for its slave, one with TLS, one whose
timer has messages, and one that is silent for longer than either side waits.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.certificates import Authority
from tests.peer.followed import CAUGHT_UP_S, Copy, Master, at_rest, log_of
from tests.peer.rocketmq import QUICK_MACHINE, Home, NoPeerError, Peer, Producer, message
from tests.peer.rocketmq49 import RocketMQ49
from tests.process import paused
from tests.remoting_client.helpers import take
from tests.waiting import eventually
from txstore import LocalTransactionState, Message
from txstore.client.options import ConnectConfig
from txstore.errors import TxStoreError
from txstore.server.rocketmq_node import RocketMQNode

pytestmark = pytest.mark.peer

TOPIC, GROUP = "Masters", "PG_MASTERS"
NAMES: Any = {"broker_name": "peer", "cluster_name": "peers"}
SILENCE_S = 20.0


def send(producer: Producer, *keys: str, **facts: Any) -> list[str]:
    """Sends a message for each key, and returns what the client was told of each."""
    told = producer.send([message(TOPIC, key.encode(), keys=key, **facts) for key in keys])
    return [str(one.get("status", one.get("error"))) for one in told]


def test_master_of_rocketmq_49(tmp_path: Path) -> None:
    try:
        master = RocketMQ49(tmp_path / "home", tmp_path / "master")
    except NoPeerError as problem:
        pytest.skip(str(problem))
    copy = Copy(tmp_path / "copy", master.address, broker_name="broker-a", cluster_name="DefaultCluster")

    def end() -> int:
        with RocketMQNode(master.address, ConnectConfig(), seconds=10) as node:
            return node.extent()[1]

    def undecided(_: txstore.TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def commit(_: txstore.TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    with master, copy.running():
        with txstore.connect(master.names, send_msg_timeout=30) as client:
            producer = client.producer("producers")
            for number in range(100):
                producer.send(Message(TOPIC, b"%d" % number, keys=[f"k{number}"]))
            payers = client.transaction_producer("payers", check_listener=undecided)
            with payers.transaction(Message(TOPIC, b"committed")):
                pass
            with suppress(ZeroDivisionError), payers.transaction(Message(TOPIC, b"pending")):
                raise ZeroDivisionError
        eventually(lambda: copy.has(end()), CAUGHT_UP_S)
    with copy.running():
        copied = copy.status().end
        assert log_of(copy.path, copied) == log_of(tmp_path / "master", copied)
        copy.promote()
        with txstore.connect(copy.names, send_msg_timeout=30) as client:
            client.transaction_producer("payers", check_listener=commit)
            eventually(lambda: client.transactions() == [], CAUGHT_UP_S)
            with client.consumer("readers", TOPIC) as consumer:
                found = sorted(message.body for message in take(consumer, 102))
    assert found == sorted([*(b"%d" % number for number in range(100)), b"committed", b"pending"])


def test_master_that_waits_for_its_slave_waits_for_the_replica(rocketmq: Peer, tmp_path: Path) -> None:
    """With two copies required, a send is acknowledged when the replica has it on its disk, and not without it."""
    master = Master(tmp_path / "master", brokerRole="SYNC_MASTER", inSyncReplicas=2)
    copy = Copy(tmp_path / "copy", master.address)
    not_copied = ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
    acknowledged = [f"k{number}" for number in range(50)]
    with master.start(rocketmq) as broker, rocketmq.producer(broker.names, GROUP) as producer:
        assert send(producer, "alone")[0] in not_copied
        with copy.running(signal.SIGKILL):
            eventually(lambda: send(producer, "first") == ["SEND_OK"], CAUGHT_UP_S)
            assert send(producer, *acknowledged) == ["SEND_OK"] * len(acknowledged)
        with txstore.open(copy.path, read_only=True) as killed:
            assert [len(killed.query(TOPIC, key)) for key in acknowledged] == [1] * len(acknowledged)
        eventually(lambda: send(producer, "without")[0] in not_copied, CAUGHT_UP_S)
        with copy.running():
            eventually(lambda: send(producer, "again") == ["SEND_OK"], CAUGHT_UP_S)
            end = at_rest(broker)
            eventually(partial(copy.has, end), CAUGHT_UP_S)
    assert log_of(copy.path, end) == log_of(master.path, end)


def test_master_with_tls(
    rocketmq_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are encrypted, the log is not: RocketMQ's port for slaves has no TLS. The replica says so."""
    authority = Authority(tmp_path / "authority")
    master = Master(tmp_path / "master")

    def follow(path: Path) -> txstore.Server:
        return txstore.serve(path, listen="127.0.0.1:0", name_server=None, replica_of=master.address, **NAMES)

    machine = (*QUICK_MACHINE, *authority.of_rocketmq())
    with rocketmq_home.start(machine) as process, master.start(process) as broker:
        with process.producer(broker.names, GROUP) as producer:
            assert send(producer, "k") == ["SEND_OK"]
        end = at_rest(broker)
        with pytest.raises(TxStoreError, match="may require TLS"):
            follow(tmp_path / "plain")
        monkeypatch.setenv("TXSTORE_TLS", str(authority.file))
        with follow(tmp_path / "copy") as copy:
            eventually(lambda: copy.broker.stat().visible_physical_offset == end, CAUGHT_UP_S)
            assert copy.failure() is None
    assert log_of(tmp_path / "copy", end) == log_of(master.path, end)
    assert "is copied without TLS" in caplog.text


def slaves_of(port: int) -> set[str]:
    """The connections that a port of this machine has, as the system names their other sides."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            if state == "01" and int(local.rpartition(":")[2], 16) == port:
                found.add(remote)
    return found


def test_silence_of_either_side(rocketmq_home: Home, tmp_path: Path) -> None:
    """A master closes a connection over which nothing has come for 20 s (haHousekeepingInterval), and so does the
    replica. One with nothing to copy stays. After a silence of either side, the replica connects again by itself."""
    master = Master(tmp_path / "master")
    copy = Copy(tmp_path / "copy", master.address)
    port = int(master.sizes["haListenPort"])
    with (
        rocketmq_home.start() as process,
        rocketmq_home.start() as clients,
        master.start(process) as broker,
        clients.producer(broker.names, GROUP) as producer,
        copy.running(),
    ):

        def is_copied() -> None:
            eventually(lambda: send(producer, "k") == ["SEND_OK"], CAUGHT_UP_S)
            eventually(partial(copy.has, at_rest(broker)), CAUGHT_UP_S)

        is_copied()
        before = slaves_of(port)
        assert len(before) == 1
        time.sleep(SILENCE_S + 5)
        assert slaves_of(port) == before
        is_copied()
        for pid, is_over in (
            (copy.pid, lambda: slaves_of(port) == set()),
            (process.pid, lambda: copy.status().following is False),
        ):
            with paused(pid):
                eventually(is_over, CAUGHT_UP_S)
            is_copied()
            assert slaves_of(port).isdisjoint(before)


def test_messages_in_the_timer_of_a_master_are_taken_over(rocketmq: Peer, tmp_path: Path) -> None:
    """Each is delivered once, not before its time: by the master, or by the replica that took over. The master moves
    those that are more than ten seconds ahead within its timer."""
    master = Master(tmp_path / "master", timerWheelEnable=True, timerRollWindowSlot=10)
    master.settings |= {"recallMessageEnable": True}
    copy = Copy(tmp_path / "copy", master.address)
    delays_s = {f"k{number}": delay for number, delay in enumerate([2] * 10 + [60] * 10 + [90] * 10)}
    due_ms: dict[str, float] = {}
    with master.start(rocketmq) as broker, copy.running():

        def delivered() -> int:
            return sum(end for topic, _, _, end in broker.status()["queues"] if topic == TOPIC)

        with txstore.connect(broker.names, send_msg_timeout=30) as client:
            sender, handles = client.producer("reminders"), {}
            for key, delay in delays_s.items():
                due = datetime.now(UTC) + timedelta(seconds=delay)
                handles[key] = sender.send(Message(TOPIC, key.encode(), keys=[key], deliver_at=due)).recall_handle
                due_ms[key] = due.timestamp() * 1000
            for key in ("k12", "k29"):
                assert sender.recall(str(handles[key]))
                del due_ms[key]
        eventually(lambda: delivered() == 10, 55)
        eventually(lambda: copy.has(master.end()), CAUGHT_UP_S)
        assert copy.status().failure is None
    with copy.running(signal.SIGKILL):
        copy.promote()
    with copy.running():
        found = rocketmq.consume(
            copy.names, "readers", {TOPIC: "*"}, at_least=len(due_ms), idle_ms=5_000, timeout_ms=115_000
        )
    assert Counter(one["keys"] for one in found) == Counter(list(due_ms))
    early = {one["keys"]: due_ms[one["keys"]] - one["store_timestamp_ms"] for one in found}
    assert {key: by for key, by in early.items() if by > 0} == {}
