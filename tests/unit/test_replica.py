"""Guards replicas: a server that copies another one's store.

A replica has what its source has, and nothing that its source did not show; it takes no messages; it follows through
kills of either side; and it refuses a source that is not its own. Copies that are required exist before an answer.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txstore
from tests.unit.test_administration import ACCOUNTS, Unknown
from tests.unit.test_cli_serve import serving
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, RemoteBroker, Server
from txstore._native import StoreEpochs
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerBusyError, BrokerUnreachableError, InvalidOptionError, TxStoreError
from txstore.server.replication import Source as Operated

SIZE = 1 << 20
_FAST: dict[str, Any] = {"listen": "127.0.0.1:0", "name_server": "127.0.0.1:0"}


class Committing(Unknown):
    """Commits what it is asked about."""

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


def serve(path: Path, **options: Any) -> Server:
    if "replica_of" not in options:
        options.setdefault("mapped_file_size_commit_log", SIZE)
        options.setdefault("transaction_check_interval", 3600)
    return txstore.serve(path, **(_FAST | options))


def replica(path: Path, source: Server, **options: Any) -> Server:
    assert source.address is not None
    return serve(path, replica_of=source.address, **options)


def caught_up(copy: Server, source: Server) -> None:
    def is_equal() -> bool:
        assert copy.replica is not None
        assert copy.replica.failure is None, copy.replica.failure
        there = source.broker.stat()
        here = copy.broker.stat()
        return (here.max_physical_offset, here.visible_physical_offset) == (
            there.max_physical_offset,
            there.visible_physical_offset,
        )

    eventually(is_equal)


def bodies(server: Server, topic: str) -> list[bytes]:
    found = []
    for queue in server.broker.describe_topic(topic).queues:
        at = queue.first
        while True:
            messages, after = server.broker.read(topic, queue.queue_id, at, 500)
            found += [message.body for message in messages]
            if after == at:
                break
            at = after
    return sorted(found)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "source") as server:
        yield server


@pytest.fixture
def client(source: Server) -> Iterator[RemoteBroker]:
    assert source.address is not None
    with txstore.connect(source.address) as remote:
        yield remote


def test_source_that_was_replaced_is_followed_to_its_end(tmp_path: Path, source: Server, client: RemoteBroker) -> None:
    """It has ended its range of the log, as a source that is closed, and not as one that another broker continues."""
    client.producer("shop").send(Message("orders", b"1"))
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        StoreEpochs(source.broker.store).accept(2, None)
        settings = tmp_path / "source" / "txstore" / "settings.json"
        eventually(lambda: json.loads(settings.read_text())["written"][-1]["end"] is not None)
        assert source.address is not None
        assert copy.replica is not None
        copy.replica._adopt(_state_of_node(source.address), source.address)
        assert copy.replica.failure is None


def _state_of_node(address: str) -> dict[str, Any]:
    """Waits until it answers, because it opens its store in its new role."""
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        with contextlib.suppress(TxStoreError), Operated(address, ConnectConfig()) as there:
            found.append(there.state())
        return found != []

    eventually(answers)
    return found[-1]


def test_replica_has_messages_transactions_topics_groups_and_offsets(
    tmp_path: Path, source: Server, client: RemoteBroker
) -> None:
    client.create_topic("orders", 2)
    producer = client.producer("shop")
    for number in range(300):
        producer.send(Message("orders", b"%d" % number, keys=[f"k{number}"]))
    with client.transaction_producer("shop", Unknown()) as halves:
        pending = halves.send_in_transaction(Message("orders", b"half")).transaction_id
    with client.consumer("shipping", "orders") as consumer:
        eventually(lambda: consumer.poll(timeout=1.0) != [])
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        assert bodies(copy, "orders") == bodies(source, "orders")
        assert copy.broker.store.store_id == source.broker.store.store_id
        assert [one.transaction_id for one in copy.broker.transactions()] == [pending]
        assert [one.body for one in copy.broker.query("orders", "k17")] == [b"17"]
        eventually(lambda: copy.broker.groups() == source.broker.groups())
        offsets = source.broker.store.consumer_offsets()
        eventually(
            lambda: set(copy.broker.store.consumer_offsets()) >= {one for one in offsets if one[1] == "shipping"}
        )
        client.create_topic("payments", 1)
        producer.send(Message("payments", b"new"))
        eventually(lambda: "payments" in copy.broker.topics() and bodies(copy, "payments") == [b"new"])
        # Commands read the copy as any store.
        rows = pa.table(txstore.scan(tmp_path / "copy")).num_rows
        assert rows > 300


def test_deleted_topic_is_gone_in_the_replica(tmp_path: Path, source: Server, client: RemoteBroker) -> None:
    producer = client.producer("shop")
    producer.send(Message("orders", b"old"))
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        client.delete_topic("orders")
        eventually(lambda: "orders" not in copy.broker.topics())
        producer.send(Message("orders", b"new"))
        eventually(lambda: "orders" in copy.broker.topics() and bodies(copy, "orders") == [b"new"])


def test_client_reads_from_the_replica_while_the_source_is_gone(
    tmp_path: Path, source: Server, client: RemoteBroker
) -> None:
    producer = client.producer("shop")
    for number in range(50):
        producer.send(Message("orders", b"%d" % number))
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        client.close()
        source.close()
        assert copy.address is not None
        with txstore.connect(copy.address) as remote:
            found: list[bytes] = []
            consumer = remote.consumer("shipping", "orders")
            while len(found) < 50:
                found += [one.body for one in consumer.poll(timeout=20.0)]
            assert sorted(found) == sorted(b"%d" % number for number in range(50))
            # Offsets are kept by the source alone.
            with contextlib.suppress(BrokerBusyError):
                consumer.close()


def test_replica_takes_no_messages_ends_and_administrative_changes(
    tmp_path: Path, source: Server, client: RemoteBroker
) -> None:
    client.producer("shop").send(Message("orders", b"1"))
    with client.transaction_producer("shop", Unknown()) as halves:
        pending = halves.send_in_transaction(Message("orders", b"half")).transaction_id
    assert pending is not None
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        assert copy.ready
        assert copy.address is not None
        assert copy.replica is not None
        copy.replica.stop()  # Its routes no longer lead clients to the source.
        end = copy.broker.store.appended_end
        with txstore.connect(copy.address) as remote:
            with pytest.raises(TxStoreError, match="no queue that accepts messages"):
                remote.producer("shop").send(Message("orders", b"2"))
            with pytest.raises(TxStoreError, match="read-only"):
                remote.create_topic("more")
            with pytest.raises(TxStoreError, match="replica"):
                remote.end_transaction(pending, LocalTransactionState.COMMIT)
        assert copy.broker.store.appended_end == end


def test_replica_follows_through_kills_of_both_sides(tmp_path: Path) -> None:
    """Processes are killed while messages are sent. At the end both stores have the same messages."""
    chance = random.Random(5)
    arguments = ["--set", f"mapped_file_size_commit_log={SIZE}", "--set", "transaction_check_interval=3600"]
    sent: list[bytes] = []
    number = 0
    for _ in range(4):
        with serving(tmp_path / "source", *arguments) as (master, addresses):
            with serving(tmp_path / "copy", "--replica-of", addresses["broker"]) as (follower, _):
                with txstore.connect(addresses["broker"]) as remote:
                    producer = remote.producer("shop")
                    for _ in range(chance.randrange(100, 400)):
                        body = b"%d" % number + b"x" * chance.randrange(2_000)
                        number += 1
                        producer.send(Message("orders", body))
                        sent.append(body)
                follower.kill()
                follower.wait()
            master.kill()
            master.wait()
    with serve(tmp_path / "source") as source, replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        assert bodies(source, "orders") == bodies(copy, "orders") == sorted(sent)
    report = txstore.open(tmp_path / "copy", read_only=True)
    with report:
        assert report.stat().max_physical_offset >= sum(map(len, sent))


def test_promoted_replica_continues_the_pending_transactions(
    tmp_path: Path, source: Server, client: RemoteBroker
) -> None:
    with client.transaction_producer("shop", Unknown()) as halves:
        for number in range(5):
            halves.send_in_transaction(Message("orders", b"%d" % number))
    options = {"transaction_check_interval": 1, "transaction_timeout": 0}
    with replica(tmp_path / "copy", source, **options) as promoted:
        caught_up(promoted, source)
        client.close()
        assert promoted.address is not None
        with Operated(promoted.address, ConnectConfig()) as operated:
            operated.call("promote", lose_messages=False)
        eventually(lambda: promoted.ready and promoted.role == "source")
        with txstore.connect(promoted.address) as remote, remote.transaction_producer("shop", Committing()):
            eventually(lambda: bodies(promoted, "orders") == [b"%d" % number for number in range(5)])
            remote.producer("shop").send(Message("orders", b"after"))
        assert b"after" in bodies(promoted, "orders")


def test_source_that_lost_its_first_files_is_copied_from_what_it_has(tmp_path: Path) -> None:
    with serve(tmp_path / "source", mapped_file_size_commit_log=64 << 10) as source:
        assert source.address is not None
        with txstore.connect(source.address) as client:
            producer = client.producer("shop")
            for number in range(400):
                producer.send(Message("orders", b"%d" % number + b"x" * 1_000))
        source.broker.store.remove_log_files(200 << 10, keep_unread=False)
        assert source.broker.stat().min_physical_offset > 0
        with replica(tmp_path / "copy", source) as copy:
            caught_up(copy, source)
            assert bodies(copy, "orders") == bodies(source, "orders")
            assert copy.broker.stat().min_physical_offset == source.broker.stat().min_physical_offset
            # What the source removes later, the copy removes, too.
            source.broker.store.remove_log_files(300 << 10, keep_unread=False)
            minimum = source.broker.stat().min_physical_offset
            eventually(lambda: copy.broker.stat().min_physical_offset == minimum)
            assert bodies(copy, "orders") == bodies(source, "orders")


def test_copies_that_are_required_exist_before_the_answer(tmp_path: Path) -> None:
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=10.0) as source:
        assert source.address is not None
        with txstore.connect(source.address, send_msg_timeout=60) as client:
            producer = client.producer("shop")
            with pytest.raises(BrokerBusyError, match="1 replicas must be connected, 0 are: nothing was stored"):
                producer.send(Message("orders", b"none"))
            assert source.broker.store.appended_end == 0
            with replica(tmp_path / "copy", source) as copy:
                eventually(lambda: source.native.replicas() != [])
                for number in range(100):
                    producer.send(Message("orders", b"%d" % number))
                    assert copy.broker.store.durable_end == source.broker.store.appended_end
                with client.transaction_producer("shop", Committing()) as halves:
                    halves.send_in_transaction(Message("orders", b"half"))
                    assert copy.broker.store.durable_end == source.broker.store.appended_end
                # The replica was there a moment ago, so the message is stored. Nobody sees it before it is copied.
                assert copy.replica is not None
                copy.replica.stop()
                late = producer.send(Message("orders", b"late"))
            assert getattr(late, "send_status").name == "FLUSH_SLAVE_TIMEOUT"  # noqa: B009
            assert b"late" not in bodies(source, "orders")
            with replica(tmp_path / "copy", source) as copy:
                eventually(lambda: b"late" in bodies(source, "orders"))
                caught_up(copy, source)
                assert bodies(copy, "orders") == bodies(source, "orders")


def test_nothing_is_read_that_only_one_of_two_required_copies_has(tmp_path: Path) -> None:
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=20.0) as source:
        assert source.address is not None
        with (
            txstore.connect(source.address, send_msg_timeout=60) as client,
            replica(tmp_path / "copy", source) as copy,
        ):
            eventually(lambda: source.native.replicas() != [])
            client.producer("shop").send(Message("orders", b"1"))
            assert copy.replica is not None
            copy.replica.stop()
            sending = threading.Thread(target=lambda: client.producer("shop").send(Message("orders", b"2")))
            sending.start()
            eventually(lambda: source.broker.store.appended_end > copy.broker.store.appended_end)
            assert bodies(source, "orders") == [b"1"]
            with replica(tmp_path / "third", source) as third:
                sending.join()
                assert bodies(source, "orders") == [b"1", b"2"]
                caught_up(third, source)


def test_half_message_is_not_checked_before_it_is_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {
        "transaction_check_interval": 0.05,
        "transaction_timeout": 0,
        "transaction_check_max": 10_000,
    }
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=20.0, **options) as source:
        assert source.address is not None
        with (
            txstore.connect(source.address, send_msg_timeout=60) as client,
            replica(tmp_path / "copy", source) as copy,
        ):
            eventually(lambda: source.native.replicas() != [])
            producer = client.transaction_producer("shop", Committing())
            assert copy.replica is not None
            copy.replica.stop()
            sending = threading.Thread(target=lambda: producer.send_in_transaction(Message("orders", b"1")))
            sending.start()
            eventually(lambda: source.broker.stat().pending_transactions == 1)
            rounds = source.broker.store.transaction_counts()
            threading.Event().wait(0.3)  # Some rounds of checks pass.
            assert source.broker.store.transaction_counts() == rounds
            assert "could not be handled" not in caplog.text
            with replica(tmp_path / "third", source) as third:
                eventually(lambda: "orders" in source.broker.topics() and bodies(source, "orders") == [b"1"])
                sending.join()
                caught_up(third, source)
            producer.close()


def test_another_store_is_not_followed(tmp_path: Path, source: Server, client: RemoteBroker) -> None:
    client.producer("shop").send(Message("orders", b"1"))
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
    with serve(tmp_path / "other") as other, replica(tmp_path / "copy", other) as copy:
        found = copy.replica
        assert found is not None
        eventually(lambda: found.failure is not None)
        assert "is a copy of" in str(found.failure)
        assert not copy.ready
        assert bodies(copy, "orders") == [b"1"]


def test_source_with_another_log_is_not_followed(tmp_path: Path, source: Server, client: RemoteBroker) -> None:
    client.producer("shop").send(Message("orders", b"1"))
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
    (tmp_path / "copy" / "txstore" / "epochs.json").unlink()  # It forgets that it is a replica.
    with txstore.open(tmp_path / "copy") as forgetful:
        forgetful.producer("shop").send(Message("orders", b"here"))
    client.producer("shop").send(Message("orders", b"there"))
    with replica(tmp_path / "copy", source) as copy:
        found = copy.replica
        assert found is not None
        eventually(lambda: found.failure is not None)
        assert "one of the two has records that the other lacks" in str(found.failure)


def test_only_an_administrator_copies_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    with serve(tmp_path / "source", accounts=accounts) as source:
        with pytest.raises(TxStoreError, match="not signed"):
            replica(tmp_path / "copy", source)
        assert not (tmp_path / "copy").exists()


def test_wrong_use_is_explained(tmp_path: Path, source: Server) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidOptionError, match="is not empty"):
        replica(tmp_path / "full", source)
    with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
        serve(tmp_path / "copy", replica_of="127.0.0.1:1")
    with pytest.raises(InvalidOptionError, match="replicas_required"):
        serve(tmp_path / "other", replicas_required=0)
    with pytest.raises(InvalidOptionError, match="replica_ack"):
        serve(tmp_path / "other", replica_ack="tape")
