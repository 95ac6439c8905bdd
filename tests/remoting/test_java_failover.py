"""Guards Java's clients when a machine is lost: a replica serves their consumers while the source is gone, and after
its promotion their sends, their pending transactions and their consumers continue there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.frames import Wire
from tests.peer import rocketmq as peer
from tests.waiting import eventually
from txstore._native import RequestCode
from txstore.client.options import ConnectConfig
from txstore.errors import TxStoreError
from txstore.server.replication import Source

_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]
_CHECKS = ["--set", "transaction_timeout=1", "--set", "transaction_check_interval=1"]


class Node:
    """A server's process."""

    def __init__(self, path: Path, *options: str) -> None:
        self.names, self.address = (f"127.0.0.1:{peer.Peer.free_port()}" for _ in range(2))
        words = [*_ENTRY, "serve", str(path), "--listen", self.address, "--name-server", self.names, *_CHECKS, *options]
        with path.with_suffix(".log").open("w") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("broker")

    def accepts_writes(self) -> bool:
        try:
            with Source(self.address, ConnectConfig()) as there:
                return there.status().accepts_writes
        except TxStoreError:
            return False

    def addresses(self, topic: str) -> dict[str, str]:
        """What its routes say: the addresses of the nodes by their ids."""
        with Wire(self.names) as wire:
            answer = wire.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        (broker,) = json.loads(answer.body)["brokerDatas"]
        found: dict[str, str] = broker["brokerAddrs"]
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A source that waits for two copies, and its replica."""
    with ExitStack() as stack:
        source = Node(tmp_path / "source", "--replicas-required", "2")
        stack.callback(source.close)
        copy = Node(tmp_path / "copy", "--replica-of", source.address)
        stack.callback(copy.close)
        eventually(source.accepts_writes)
        yield source, copy


@pytest.mark.peer
@pytest.mark.kill
def test_javas_clients_continue_at_a_promoted_replica(java: peer.Peer, nodes: tuple[Node, Node]) -> None:
    source, copy = nodes
    names = f"{source.names};{copy.names}"
    with java.producer(names, "payments", otherwise=["COMMIT"]) as producer, ThreadPoolExecutor(2) as threads:
        done = producer.transactions([transaction(f"before-{number}", "COMMIT") for number in range(20)])
        done += producer.transactions([transaction(f"undone-{number}", "ROLLBACK") for number in range(5)])
        assert [one.get("status") for one in done] == ["SEND_OK"] * 25, done
        both = {"0": source.address, "1": copy.address}
        eventually(lambda: source.addresses("orders") == copy.addresses("orders") == both)
        open_ones = [transaction(f"open-{number}", "UNKNOWN", "UNKNOWN", "COMMIT") for number in range(5)]
        done = producer.transactions(open_ones)
        assert [one.get("status") for one in done] == ["SEND_OK"] * 5, done
        source.kill()
        # While nothing is the source, the replica serves readers.
        eventually(lambda: copy.addresses("orders") == {"1": copy.address})
        read = consumed(java, names, source, "reading", at_least=20, timeout_ms=90_000)
        assert {f"before-{number}" for number in range(20)} <= set(read)
        assert all(not key.startswith("undone") for key in read)
        reading = threads.submit(
            consumed, java, names, source, "shipping", at_least=45, timeout_ms=110_000, idle_ms=3_000
        )
        words = [*_ENTRY, "replica", "promote", copy.address]
        promoted = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert promoted.returncode == 0, promoted.stderr
        sent = [name for name in (f"after-{number}" for number in range(20)) if sends(producer, name)]
        found = Counter(reading.result())
    wanted = {f"{kind}-{number}" for kind, count in (("before", 20), ("open", 5)) for number in range(count)}
    assert found.keys() >= wanted | set(sent)
    assert len(sent) == 20
    assert all(not key.startswith("undone") for key in found)
    # Delivery is at least once: what was read before the promotion may come again.
    assert all(times <= 2 for times in found.values()), found


def transaction(name: str, *answers: str) -> dict[str, Any]:
    """`answers`: of the local transaction, then of its checks."""
    return peer.message("orders", name.encode(), keys=name, name=name, answers=list(answers))


def consumed(java: peer.Peer, names: str, dead: Node, group: str, **options: int) -> list[str]:
    """The keys of what a consumer gets. Java's client starts at one name server of its list, by chance: if it is the
    dead one, its start fails, and a user starts it again.
    """
    for _ in range(20):
        try:
            return keys_of(java.consume(names, group, {"orders": "*"}, **options))
        except peer.PeerError as problem:
            if f"connect to {dead.names} failed" not in str(problem):
                raise
    raise AssertionError("each of 20 starts chose the dead name server")


def sends(producer: peer.Producer, name: str) -> bool:
    """Commits a transaction, again until the client knows of the new source."""
    eventually(lambda: producer.transactions([transaction(name, "COMMIT")])[0].get("status") == "SEND_OK")
    return True


def keys_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["keys"] for message in messages]
