"""Guards replicas of real RocketMQ masters: `txstore serve --replica-of` copies one live, through kills of both sides.

The copy then has the same log, queues, keys, offsets and transactions. Promoted, it asks about the transactions that
are pending, and ends them. A copy that is ahead of its master, or has other messages, does not follow, and nothing of
it is cut. TXSTORE_HA_SEED sets the first seed, TXSTORE_HA_STORES the number of stores.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import txstore
from tests.copies import killed_copy
from tests.peer import agreement, theirs
from tests.peer.followed import AT_REST, CAUGHT_UP_S, Copy, Master, at_rest, log_of
from tests.peer.rocketmq import SHORT_DELAYS, EmbeddedBroker, Home, Peer, message
from tests.peer.theirs import GROUP, TOPICS
from tests.remoting_client.test_accounts import AUTH, SECRET, USER
from tests.waiting import eventually
from txstore import Server
from txstore._native import HALF_TOPIC, OP_TOPIC, Store, strict_json
from txstore.errors import InvalidOptionError, TxStoreError

pytestmark = pytest.mark.peer

STORES = int(os.environ.get("TXSTORE_HA_STORES", "1"))
SEED = int(os.environ.get("TXSTORE_HA_SEED", random.randrange(1 << 30)))
LEVELS_S = {1: 1, 2: 5, 3: 10, 4: 30, 5: 60, 6: 120}
SHORT_LEVELS_S = {n: int(level[:-1]) for n, level in enumerate(SHORT_DELAYS["messageDelayLevel"].split(), start=1)}

Row = TypeVar("Row")


def states_of(store: Store) -> dict[str, str]:
    return {str(row.transaction_id): row.state for row in store.transactions()}


def offsets_of(store: Store) -> set[tuple[str, str, int, int]]:
    return {row for row in store.consumer_offsets() if row[0] not in (HALF_TOPIC, OP_TOPIC)}


def offsets_at(broker: EmbeddedBroker) -> set[tuple[str, str, int, int]]:
    names = ((name.partition("@"), queues) for name, queues in broker.status()["offsets"].items())
    rows = {
        (topic, group, int(queue_id), offset)
        for (topic, _, group), queues in names
        for queue_id, offset in queues.items()
    }
    return {row for row in rows if row[0] not in (HALF_TOPIC, OP_TOPIC)}


def delivered(path: Path) -> set[tuple[str, int]]:
    """How far each level's delayed messages are delivered."""
    file = path / "config" / "delayOffset.json"
    table = json.loads(strict_json(file.read_text()))["offsetTable"] if file.exists() else {}
    return {(level, offset) for level, offset in table.items() if offset > 0}


def must_contain(found: Callable[[], set[Row]], wanted: Callable[[], set[Row]]) -> None:
    """Waits for what the master has. A master that was killed has lost rows that the copy keeps."""
    try:
        eventually(lambda: wanted() <= found(), 60)
    except AssertionError as error:
        error.add_note(f"missing: {wanted() - found()}, instead: {found() - wanted()}")
        raise


def assert_same(rocketmq: Peer, theirs: Path, ours: Store, pending: set[str]) -> None:
    """RocketMQ finds in a store what txstore finds in its own; transactions and offsets are those of the master."""
    copy = killed_copy(theirs, theirs.with_name("dumped"))
    with closing(Store.open(str(copy), read_only=True)) as opened:
        assert states_of(opened) == states_of(ours)
        assert offsets_of(opened) <= offsets_of(ours)
    assert {one for one, state in states_of(ours).items() if state == "pending"} >= pending
    found = agreement.messages(ours)
    keys, ids = agreement.keys_of(found), [message.offset_message_id for message in found]
    dump = rocketmq.dump(copy, keys=keys, offset_ids=ids)
    # The index of a broker that was killed names some messages twice.
    dump["by_key"] = [sorted(set(offsets)) for offsets in dump["by_key"]]
    agreement.assert_same_store(dump, ours, keys, ids, (SHORT_LEVELS_S, LEVELS_S))
    shutil.rmtree(copy)


def work_through(home: Home, rocketmq: Peer, master: Master, copy: Copy, seed: int) -> None:
    """One life of the master under load, and at least two of the copy."""
    chance = random.Random(seed)
    failures: list[BaseException] = []
    work = master.work(seed, killed=chance.random() < 0.5)

    def write() -> None:
        try:
            theirs.write(home, rocketmq, master.path, work)
        except BaseException as failure:
            failures.append(failure)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        # Should the master have ended already, the copy tries in vain.
        eventually(lambda: not writing.is_alive() or master.is_up(), CAUGHT_UP_S)
        number = chance.choice((signal.SIGKILL, signal.SIGTERM))
        print(f"seed {seed}: the master is {'killed' if work.killed else 'stopped'}, the copy gets {number.name}")
        with copy.running(number):
            before = copy.status().end
            eventually(lambda: not writing.is_alive() or copy.status().end > before, CAUGHT_UP_S)
            time.sleep(chance.random())
        with copy.running():
            writing.join()
    finally:
        writing.join()
    assert failures == []


def leave_pending(rocketmq: Peer, master: Master) -> set[str]:
    """Sends transactions whose outcome nobody knows yet. Returns their ids."""
    with master.start(rocketmq) as broker, rocketmq.producer(broker.names, GROUP) as producer:
        unknown = [message(TOPICS[0], b"?", keys=f"u{n}", answers=["UNKNOWN"]) for n in range(10)]
        return {str(one["transaction_id"]) for one in producer.transactions(unknown)}


def come_to_rest(rocketmq: Peer, master: Master, copy: Copy) -> int:
    """Stops the master when the copy has all, and returns the end of both logs. A broker that stops may write more,
    which it no longer sends: then it is started again."""
    for _ in range(5):
        with master.start(rocketmq) as broker:
            end = at_rest(broker)
            eventually(partial(copy.has, end), CAUGHT_UP_S)
            must_contain(copy.offsets, partial(offsets_at, broker))
            must_contain(partial(delivered, copy.path), partial(delivered, master.path))
        with closing(Store.open(str(master.path), read_only=True)) as stopped:
            end = stopped.appended_end
        if copy.status().end == end:
            return end
    raise AssertionError("the master writes at each stop")


@pytest.mark.parametrize("seed", range(SEED, SEED + STORES))
def test_replica_copies_a_master_and_takes_over(rocketmq_home: Home, rocketmq: Peer, tmp_path: Path, seed: int) -> None:
    master = Master(tmp_path / "master")
    copy = Copy(tmp_path / "copy", master.address)
    with master.start(rocketmq), copy.running():
        assert copy.status().role == "replica"
    for life in range(2):
        work_through(rocketmq_home, rocketmq, master, copy, 10 * seed + life)
    with copy.running():
        pending = leave_pending(rocketmq, master)
        end = come_to_rest(rocketmq, master, copy)
    assert log_of(copy.path, end) == log_of(master.path, end)
    with closing(Store.open(str(copy.path), read_only=True)) as ours:
        assert_same(rocketmq, master.path, ours, pending)
        waiting = {one for one, state in states_of(ours).items() if state == "pending"}
    with copy.running():
        copy.promote()
        with rocketmq.producer(copy.names, GROUP, otherwise=("COMMIT",)) as producer:
            sent = producer.send([message(TOPICS[0], b"after", keys="after")])
            assert "error" not in sent[0], sent

            def is_finished() -> bool:
                with txstore.connect(copy.address) as client:
                    return client.transactions() == []

            eventually(is_finished, CAUGHT_UP_S)
    with closing(Store.open(str(copy.path), read_only=True)) as ours:
        after = states_of(ours)
        assert {after[one] for one in waiting} == {"committed"}
        # The way back: a broker opens the store, and finds the same.
        assert_same(rocketmq, copy.path, ours, set())
    # The old master comes back, and the copy does not follow it.
    with master.start(rocketmq), copy.running():
        found = copy.status()
        assert (found.role, found.epoch, found.accepts_writes) == ("source", 2, True)


def test_copy_that_is_ahead_or_has_other_messages_does_not_follow(rocketmq: Peer, tmp_path: Path) -> None:
    """The master comes back without its last messages, as after a loss of power, and then takes others."""
    master = Master(tmp_path / "master")
    copy = Copy(tmp_path / "copy", master.address)

    def send(broker: EmbeddedBroker, what: bytes, count: int) -> int:
        with rocketmq.producer(broker.names, GROUP) as producer:
            producer.send([message(TOPICS[0], what * 100, keys=f"{what.decode()}{n}") for n in range(count)])
        return at_rest(broker)

    with master.start(rocketmq) as broker:
        send(broker, b"both", 50)
    older = killed_copy(master.path, tmp_path / "older")
    with master.start(rocketmq) as broker, copy.running():
        end = send(broker, b"lost", 50)
        eventually(lambda: copy.has(end), CAUGHT_UP_S)
    shutil.rmtree(master.path)
    older.rename(master.path)
    log = log_of(copy.path, end)

    def refuses(why: str) -> bool:
        return why in (copy.status().failure or "")

    with master.start(rocketmq) as broker:
        less = at_rest(broker)
        assert less < end
        with copy.running():
            eventually(lambda: refuses(f"ends at {less}, and this copy at {end}"), CAUGHT_UP_S)
        assert send(broker, b"other", 100) > end
        with copy.running():
            eventually(lambda: refuses("is another one"), CAUGHT_UP_S)
            assert copy.status().end == end
            with pytest.raises(InvalidOptionError, match="is a RocketMQ broker that is running"):
                copy.promote()
    assert log_of(copy.path, end) == log


def test_copies_begin_with_the_first_log_file_that_the_master_has(rocketmq: Peer, tmp_path: Path) -> None:
    """As after retention: a copy that has more drops it, and one that begins has no more."""
    master = Master(tmp_path / "master")
    older, newer = (Copy(tmp_path / name, master.address) for name in ("older", "newer"))

    def files(path: Path) -> list[str]:
        return sorted(file.name for file in (path / "commitlog").glob("[0-9]" * 20))

    def send(broker: EmbeddedBroker, prefix: str) -> int:
        with rocketmq.producer(broker.names, GROUP) as producer:
            producer.send([message(TOPICS[0], os.urandom(50_000), keys=f"{prefix}{n}") for n in range(60)])
        return at_rest(broker)

    with master.start(rocketmq) as broker, older.running():
        end = send(broker, "a")
        eventually(partial(older.has, end), CAUGHT_UP_S)
    first = files(master.path)[0]
    assert files(older.path)[0] == first
    (master.path / "commitlog" / first).unlink()
    with master.start(rocketmq) as broker, older.running(), newer.running():
        end = send(broker, "b")
        for copy in (older, newer):
            eventually(partial(copy.has, end), CAUGHT_UP_S)
            eventually(lambda path=copy.path: files(path)[0] == files(master.path)[0] > first, 60)  # type: ignore[misc]
    begin = int(files(master.path)[0])
    killed_copy(master.path, tmp_path / "opened")
    with closing(Store.open(str(tmp_path / "opened"), read_only=True)) as opened:
        for copy in (older, newer):
            assert log_of(copy.path, end - begin) == log_of(master.path, end - begin)
            with closing(Store.open(str(copy.path), read_only=True)) as ours:
                found = [
                    {(m.topic, m.queue_id, m.queue_offset): m.record for m in agreement.messages(store)}
                    for store in (ours, opened)
                ]
                assert found[0] == found[1]
                assert len({key for key in found[0] if key[0] == TOPICS[0]}) > 60


def test_master_with_accounts_is_copied_by_an_administrator(
    rocketmq: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(tmp_path / "master")
    names: Any = {"broker_name": "peer", "cluster_name": "peers"}

    def follow(path: Path) -> Server:
        return txstore.serve(path, listen="127.0.0.1:0", name_server=None, replica_of=master.address, **names)

    with rocketmq.broker(master.path, config=master.sizes, settings=AT_REST | AUTH | master.settings) as broker:
        with rocketmq.producer(broker.names, GROUP, account=(USER, SECRET)) as producer:
            producer.send([message(TOPICS[0], b"1", keys="k")])
        end = at_rest(broker)
        with pytest.raises(TxStoreError):
            follow(tmp_path / "stranger")
        monkeypatch.setenv("TXSTORE_ACCESS_KEY", USER)
        monkeypatch.setenv("TXSTORE_SECRET_KEY", SECRET)
        with follow(tmp_path / "copy") as copy:
            eventually(lambda: copy.broker.stat().visible_physical_offset == end, CAUGHT_UP_S)
            assert copy.failure() is None
    assert log_of(tmp_path / "copy", end) == log_of(master.path, end)
