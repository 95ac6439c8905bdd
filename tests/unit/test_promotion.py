"""Guards promotions: one node writes, whatever happens, and a node that rejoins keeps what it cuts.

Each node is a process of its own, which is killed or paused as a machine is.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.frames import Wire
from tests.ports import free_port
from tests.process import paused
from tests.remoting_requests import SEND_V2, sending
from tests.unit.test_administration import Unknown
from tests.unit.test_cli_serve import serving
from tests.unit.test_replica import Committing
from tests.waiting import eventually
from txstore import Message
from txstore._native import ResponseCode
from txstore.client.options import ConnectConfig
from txstore.errors import InvalidOptionError, TxStoreError
from txstore.server.epochs import Epochs
from txstore.server.replication import Source

pytest.importorskip("typer")

from txstore.cli.commands import run

_OPTIONS = ["transaction_check_interval=0.2", "transaction_timeout=0", "transaction_check_max=10000"]
_CHECKS = [word for one in _OPTIONS for word in ("--set", one)]
_SMALL = ["--set", "mapped_file_size_commit_log=1048576"]


class Node:
    """A server's process at a fixed address."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None
        self._running = ExitStack()

    def start(self, *options: str) -> Node:
        more = [*_CHECKS, *(_SMALL if "--replica-of" not in options else ())]
        self._process, _ = self._running.enter_context(serving(self.path, "--listen", self.address, *more, *options))
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._running.close()

    def stop(self) -> str:
        """Stops it as an operator does. Returns its log."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        _, log = self._process.communicate(timeout=60)
        self._running.close()
        return log

    def state(self) -> dict[str, Any]:
        with Source(self.address, ConnectConfig()) as there:
            return there.state()

    def is_a(self, role: str) -> bool:
        try:
            return bool(self.state()["role"] == role)
        except TxStoreError:
            return False

    def ends_with(self, other: Node) -> bool:
        """Whether its log has the same last record as another node's."""
        try:
            own, there = self.state(), other.state()
        except TxStoreError:
            return False
        return bool((own["end"], own["last"]) == (there["end"], there["last"]))

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A source and its replica."""
    source, copy = Node(tmp_path / "source").start(), Node(tmp_path / "copy")
    try:
        copy.start("--replica-of", source.address)
        eventually(lambda: Epochs.parse(source.state()["epochs"]).nodes != {})
        yield source, copy
    finally:
        for node in (source, copy):
            node.close()


def send(address: str, *bodies: bytes) -> list[str]:
    """Sends messages. Returns their ids."""
    with txstore.connect(address) as client:
        producer = client.producer("shop")
        return [producer.send(Message("orders", body)).message_id for body in bodies]


def read(address: str, count: int) -> list[bytes]:
    """Reads until there are so many messages."""
    found: list[bytes] = []
    with txstore.connect(address) as client:
        consumer = client.consumer("reading", "orders")

        def enough() -> bool:
            found.extend(one.body for one in consumer.poll(timeout=1.0))
            return len(found) >= count

        eventually(enough)
        consumer.close()
    return sorted(found)


def promote(node: Node, *options: str) -> int:
    return run(["replica", "promote", node.address, *options])


def takes_nothing(node: Node) -> None:
    """Waits until a node answers, which must refuse a message. It opens its store again when it hears of an epoch.

    By a request to the node itself: `txstore.connect` would send to the source that the node names.
    """

    def answers() -> bool:
        try:
            with Wire(node.address) as wire:
                answer = wire.call(SEND_V2, sending(), b"late")
        except OSError:
            return False
        assert answer.code != ResponseCode.SUCCESS, f"{node.address} has taken a message"
        return True

    eventually(answers)


def test_promotion_of_a_replica_whose_source_lives_loses_nothing(
    nodes: tuple[Node, Node], capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = nodes
    with txstore.connect(source.address) as client, client.transaction_producer("shop", Unknown()) as halves:
        halves.send_in_transaction(Message("orders", b"pending"))
        send(source.address, b"1", b"2", b"3")
        assert promote(copy, "--json") == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["epoch"], done["losses"], done["not_asked"]) == (2, [], [])
    assert copy.is_a("source")
    # The old source takes nothing more, also after it was restarted as before.
    takes_nothing(source)
    eventually(lambda: source.is_a("fenced"))
    source.stop()
    source.start()
    assert source.is_a("fenced")
    takes_nothing(source)
    # Its producers and the check of its transaction continue at the new one.
    send(copy.address, b"4")
    with txstore.connect(copy.address) as client, client.transaction_producer("shop", Committing()):
        assert read(copy.address, 5) == [b"1", b"2", b"3", b"4", b"pending"]
    # It rejoins, and can be promoted in its turn.
    source.stop()
    source.start("--replica-of", copy.address)
    eventually(lambda: source.ends_with(copy))
    assert list((source.path / "txstore").glob("diverged-*")) == []
    assert promote(source) == 0
    assert source.is_a("source")
    takes_nothing(copy)
    send(source.address, b"5")


def test_node_that_is_known_by_two_addresses_hands_over_and_back(nodes: tuple[Node, Node]) -> None:
    source, copy = nodes
    send(source.address, b"1")
    eventually(lambda: Epochs.parse(copy.state()["epochs"]).nodes != {})
    assert promote(copy) == 0
    source.stop()
    source.start("--replica-of", copy.address.replace("127.0.0.1", "localhost"))
    eventually(lambda: source.is_a("replica") and source.ends_with(copy))
    # A source is not one of its own replicas. Otherwise the promotion asks it twice, under two addresses.
    eventually(lambda: list(Epochs.parse(source.state()["epochs"]).nodes.values()) == [source.address])
    assert promote(source) == 0
    assert source.is_a("source")
    send(source.address, b"2")


def test_killed_source_rejoins_and_reports_what_only_it_had(
    nodes: tuple[Node, Node], capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = nodes
    send(source.address, b"both")
    eventually(lambda: copy.ends_with(source))
    copy.kill()
    ids = send(source.address, b"only here", b"and this")
    with txstore.connect(source.address) as client, client.transaction_producer("shop", Unknown()) as halves:
        half = halves.send_in_transaction(Message("orders", b"half")).transaction_id
    source.kill()
    copy.start("--replica-of", source.address)
    end = copy.state()["end"]
    assert promote(copy) == 2
    told = capsys.readouterr().err
    assert "cannot be reached, and acknowledges what it alone has" in told
    assert "--lose-messages" in told
    assert copy.is_a("replica")
    assert promote(copy, "--lose-messages") == 0
    told = capsys.readouterr().out
    assert f"is the source in epoch 2, from physical offset {end} on" in told
    assert "possibly lost: the source at" in told
    send(copy.address, b"new")
    # The old source comes back as it was: it learns that it was replaced.
    source.start()
    eventually(lambda: source.is_a("fenced"))
    takes_nothing(source)
    source.stop()
    source.start("--replica-of", copy.address)
    eventually(lambda: source.ends_with(copy))
    assert read(source.address, 2) == [b"both", b"new"]
    (kept,) = (source.path / "txstore").glob("diverged-*")
    whole, *records = [json.loads(line) for line in (kept / "report.jsonl").read_text().splitlines()]
    assert whole["cut_at"] == end
    assert [(one["kind"], one["message_id"]) for one in records[:3]] == [
        ("message", ids[0]),
        ("message", ids[1]),
        ("half", half),
    ]
    assert [one.get("real_topic", one["topic"]) for one in records[:3]] == ["orders"] * 3
    assert sum(file.stat().st_size for file in (kept / "log").iterdir()) == whole["bytes"]
    log = source.stop()
    assert f"{len(records)} records" in log


def test_consumer_that_has_read_what_is_lost_passes_over_nothing(nodes: tuple[Node, Node]) -> None:
    """It has read to offset 13 of a queue that ends at 10 now, and gets what the queue has from there on later."""
    source, copy = nodes
    options: dict[str, Any] = {"poll_name_server_interval": 1, "heart_beat_broker_interval": 1}
    soon = options | {"persist_consumer_offset_interval": 1}
    with txstore.connect(f"{source.address};{copy.address}", **soon) as client:
        client.create_topic("orders", 1)
        consumer = client.consumer("shipping", "orders")
        found: list[bytes] = []

        def reads(*wanted: bytes) -> bool:
            found.extend(message.body for message in consumer.poll(timeout=1.0))
            return set(wanted) <= set(found)

        both = [b"both %d" % number for number in range(10)]
        send(source.address, *both)
        eventually(lambda: reads(*both))
        stored = ("orders", "shipping", 0, 10)
        eventually(lambda: consumer.poll(timeout=0.1) == [] and list(stored) in copy.state()["offsets"])
        copy.stop()  # A killed one would lose offsets of the last seconds.
        lost = [b"lost %d" % number for number in range(3)]
        send(source.address, *lost)
        eventually(lambda: reads(*lost))
        source.kill()
        copy.start("--replica-of", source.address)
        assert promote(copy, "--lose-messages") == 0
        new = [b"new %d" % number for number in range(6)]
        send(copy.address, *new)
        eventually(lambda: reads(*new))
        assert found.index(b"new 0") > found.index(b"lost 2")
        consumer.close()


def test_paused_source_is_fenced_when_it_continues(nodes: tuple[Node, Node]) -> None:
    source, copy = nodes
    send(source.address, b"1")
    eventually(lambda: copy.ends_with(source))
    with paused(source.pid):
        assert promote(copy, "--lose-messages") == 0
        send(copy.address, b"2")
    eventually(lambda: source.is_a("fenced"))
    takes_nothing(source)
    assert read(copy.address, 2) == [b"1", b"2"]


def test_only_a_replica_is_promoted(nodes: tuple[Node, Node], capsys: pytest.CaptureFixture[str]) -> None:
    source, copy = nodes
    assert promote(source) == 2
    assert "only a replica can be promoted" in capsys.readouterr().err
    copy.stop()
    assert run(["replica", "promote", str(copy.path)]) == 3
    assert "no server has the store" in capsys.readouterr().err
    with pytest.raises(TxStoreError, match="is a replica of"):
        txstore.serve(copy.path, listen="127.0.0.1:0", name_server=None)


def test_replica_that_does_not_come_back_is_forgotten(
    nodes: tuple[Node, Node], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = nodes
    other = Node(tmp_path / "other").start("--replica-of", source.address)
    try:
        eventually(lambda: len(Epochs.parse(source.state()["epochs"]).nodes) == 2)
        other.kill()
        (name,) = [one for one, at in Epochs.parse(source.state()["epochs"]).nodes.items() if at == other.address]
        send(source.address, b"1")
        eventually(lambda: name in Epochs.parse(copy.state()["epochs"]).nodes)
        assert promote(copy) == 2
        assert name in capsys.readouterr().err
        assert run(["replica", "forget", source.address, name]) == 0
        assert run(["replica", "forget", source.address, name]) == 1
        eventually(lambda: name not in Epochs.parse(copy.state()["epochs"]).nodes)
        assert promote(copy) == 0
    finally:
        other.close()


def test_a_source_follows_no_node_that_has_not_replaced_it(nodes: tuple[Node, Node]) -> None:
    source, copy = nodes
    source.stop()
    with pytest.raises(InvalidOptionError, match="this store is the source in epoch 1"):
        txstore.serve(source.path, listen="127.0.0.1:0", name_server=None, replica_of=copy.address)
