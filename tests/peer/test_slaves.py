"""Guards real RocketMQ slaves of a `txstore serve`: they copy its log live, through kills and restarts of both sides.

A slave then has the same log, queues, keys and transactions. It serves readers while its master is gone, and promoted
it asks about the transactions that are pending and ends them. One that is ahead of its master, or has other messages,
gets nothing. TXSTORE_HA_SEED sets the first seed, TXSTORE_HA_STORES the number of stores.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.frames import Wire
from tests.peer import agreement
from tests.peer.rocketmq import SIZES, SMALL, EmbeddedBroker, Home, Peer, message
from tests.peer.test_timed_hand_over import settle
from tests.ports import free_port
from tests.unit.test_slaves import Slave
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, Server
from txstore._native import HALF_TOPIC, TRANSACTION_GROUP, RequestCode, ResponseCode, Store

pytestmark = pytest.mark.peer

STORES = int(os.environ.get("TXSTORE_HA_STORES", "1"))
SEED = int(os.environ.get("TXSTORE_HA_SEED", random.randrange(1 << 30)))
GROUP = "services"
TOPICS = ("Orders", "Payments")
READABLE = {"slaveReadEnable": True, "registerNameServerPeriod": 10_000}
CAUGHT_UP_S = 180.0
DELAYS_S = {18: 7_200}


class Master:
    """A `txstore serve` that always listens at the same ports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address, self.names, self.ha = (f"127.0.0.1:{free_port(below=2)}" for _ in range(3))

    def serve(self, **options: Any) -> Server:
        sizes = {} if self.path.exists() else SIZES
        addresses: dict[str, Any] = {"listen": self.address, "name_server": self.names, "ha_listen": self.ha}
        names = {"broker_name": "peer", "cluster_name": "peers", "transaction_check_interval": 3_600}
        return txstore.serve(self.path, **(addresses | names | sizes | options))


class Listener(txstore.TransactionListener):
    """Ends a transaction as its argument says. Checks come to nobody here."""

    def execute_local_transaction(self, message: object, arg: LocalTransactionState) -> LocalTransactionState:
        return arg

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def load(address: str, seed: int, until: threading.Event) -> int:
    """Sends messages and transactions over the network, at least 150 of them. Returns how many."""
    chance, count = random.Random(seed), 0
    with (
        txstore.connect(address) as remote,
        remote.producer("senders") as plain,
        remote.transaction_producer(GROUP, Listener()) as producer,
    ):
        while count < 150 or not until.is_set():
            body, keys = chance.randbytes(chance.choice((10, 500, 3_000, 20_000))), [f"k-{seed}-{count}"]
            one = Message(chance.choice(TOPICS), body, keys=keys, tags=chance.choice((None, "a", "b")))
            if chance.random() < 0.5:
                plain.send(one)
            else:
                producer.send_in_transaction(one, chance.choice(list(LocalTransactionState)))
            if count % 50 == 0:
                plain.send(Message(TOPICS[0], b"later", delay_level=18))
            count += 1
    return count


@contextlib.contextmanager
def loaded(address: str, seed: int) -> Iterator[None]:
    """Two clients are at work, and what is done meanwhile ends before they do."""
    done, failures = threading.Event(), []

    def work(seed: int) -> None:
        try:
            load(address, seed, done)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(2 * seed + n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []


def caught_up(slave: EmbeddedBroker, end: int) -> None:
    def has_all() -> bool:
        status = slave.status()
        return (status["max_physical_offset"], status["undispatched_bytes"]) == (end, 0)

    eventually(has_all, CAUGHT_UP_S)


def following(slave: EmbeddedBroker, master: Master) -> None:
    eventually(lambda: slave.follow() == master.address, CAUGHT_UP_S)


def end_of(server: Server) -> int:
    return server.broker.stat().max_physical_offset


def log_of(path: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]" * 20)))[:end]


def pulled(address: str, topic: str, queue_id: int) -> bytes:
    """All records of a queue, as a consumer pulls them."""
    found, at = b"", 0
    with Wire(address) as wire:
        while True:
            answer = wire.call(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "readers",
                    "topic": topic,
                    "queueId": queue_id,
                    "queueOffset": at,
                    "maxMsgNums": 32,
                    "sysFlag": 4,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 1,
                    "expressionType": "TAG",
                },
            )
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
                return found
            found, at = found + answer.body, int(answer.fields["nextBeginOffset"])


def assert_readable(slave: EmbeddedBroker, ours: Store) -> None:
    """Every queue of the clients' topics is served as it is here."""
    records: dict[tuple[str, int], bytes] = {}
    for one in agreement.messages(ours):
        if one.topic in TOPICS:
            records[one.topic, one.queue_id] = records.get((one.topic, one.queue_id), b"") + one.record
    assert len(records) == 4 * len(TOPICS)
    found = {queue: pulled(slave.address, *queue) for queue in records}
    lengths = [{queue: len(data) for queue, data in of.items()} for of in (found, records)]
    assert lengths[0] == lengths[1]
    assert found == records


def assert_copied(rocketmq: Peer, ours: Store, theirs: Path, end: int) -> None:
    """The slave's files have the same log, and RocketMQ finds in them what txstore finds in its own."""
    assert log_of(theirs, end) == log_of(Path(ours.path), end)
    copy = killed_copy(theirs, theirs.with_name("dumped"))
    found = agreement.messages(ours)
    keys, ids = agreement.keys_of(found), [message.offset_message_id for message in found]
    dump = rocketmq.dump(copy, keys=keys, offset_ids=ids)
    agreement.assert_same_store(dump, ours, keys, ids, (DELAYS_S,))
    shutil.rmtree(copy)
    copy = killed_copy(theirs, theirs.with_name("opened"))
    with closing(Store.open(str(copy), read_only=True)) as opened:
        rows = [[(row.transaction_id, row.state) for row in store.transactions()] for store in (ours, opened)]
    assert rows[0] == rows[1]
    assert {state for _, state in rows[0]} >= {"pending", "committed", "rolled_back"}
    shutil.rmtree(copy)


def finish(rocketmq: Peer, theirs: Path, pending: set[str]) -> None:
    """The slave becomes a master: a producer of the group is asked about each pending transaction, and commits it."""
    with rocketmq.broker(theirs) as broker, rocketmq.producer(broker.names, GROUP, otherwise=("COMMIT",)) as producer:
        producer.send([message(TOPICS[0], b"known now", keys="known")])

        def is_finished() -> bool:
            status = broker.status()
            ends = {topic: end for topic, _, _, end in status["queues"]}
            passed = status["offsets"].get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {})
            return ends[HALF_TOPIC] in passed.values()

        eventually(is_finished, CAUGHT_UP_S)
    # The way back: the store is taken over as one of a broker.
    with txstore.open(theirs) as ours:
        assert ours.transactions() == []
        ended = {row.transaction_id: row.state for row in ours.store.transactions()}
        assert {ended[transaction] for transaction in pending} == {"committed"}
        ours.producer("back").send(Message(TOPICS[0], b"back"))


@pytest.mark.parametrize("seed", range(SEED, SEED + STORES))
def test_slave_copies_serves_and_takes_over(rocketmq_home: Home, rocketmq: Peer, tmp_path: Path, seed: int) -> None:
    master, theirs = Master(tmp_path / "master"), tmp_path / "slave"
    chance = random.Random(seed)
    with master.serve() as server, rocketmq_home.start() as process:
        slave = process.slave(theirs, master.names, settings=READABLE)
        following(slave, master)
        with loaded(master.address, seed):
            eventually(lambda: slave.status()["max_physical_offset"] > 0, CAUGHT_UP_S)
            if is_killed := chance.random() < 0.5:
                process.kill()
            else:
                slave.stop()
        print(f"seed {seed}: the slave was {'killed' if is_killed else 'stopped'} at {end_of(server)} bytes")
    slave = rocketmq.slave(theirs, master.names, settings=READABLE)
    with slave:
        with master.serve() as server:
            following(slave, master)
            with loaded(master.address, seed + 1):
                pass
            caught_up(slave, end_of(server))
        with master.serve() as server:
            following(slave, master)
            with loaded(master.address, seed + 2):
                time.sleep(chance.random())
            end = end_of(server)
            caught_up(slave, end)
            following(slave, master)
            eventually(lambda: server.nodes.addresses() == {"0": master.address, "1": slave.address}, CAUGHT_UP_S)
            pending = {str(one.transaction_id) for one in server.broker.transactions()}
        with closing(Store.open(str(master.path), read_only=True)) as ours:
            assert_readable(slave, ours)
    with closing(Store.open(str(master.path), read_only=True)) as ours:
        assert_copied(rocketmq, ours, theirs, end)
    finish(rocketmq, theirs, pending)


def test_slave_that_is_ahead_or_has_other_messages_gets_nothing(
    rocketmq: Peer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master comes back without its last messages, as after a loss of power, and then takes others."""
    master, theirs = Master(tmp_path / "master"), tmp_path / "slave"

    def send(server: Server, what: bytes, count: int) -> None:
        for _ in range(count):
            server.broker.producer("p").send(Message(TOPICS[0], what * 100))

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    with master.serve() as server:
        send(server, b"both", 100)
    older = killed_copy(master.path, tmp_path / "older")
    with rocketmq.slave(theirs, master.names, settings=READABLE) as slave:
        with master.serve() as server:
            following(slave, master)
            send(server, b"lost", 100)
            end = end_of(server)
            caught_up(slave, end)
        shutil.rmtree(master.path)
        older.rename(master.path)
        log = log_of(theirs, end)
        with master.serve() as server:
            following(slave, master)
            eventually(lambda: said(f"its log ends at {end}, and this one at {end_of(server)}"), CAUGHT_UP_S)
            send(server, b"other", 200)
            assert end_of(server) > end
            eventually(lambda: said("its log differs from this one"), CAUGHT_UP_S)
            assert slave.status()["max_physical_offset"] == end
            assert log_of(theirs, end) == log


def test_promoted_slave_delivers_no_old_timed_message_again(rocketmq: Peer, tmp_path: Path) -> None:
    """The store was a broker's before, whose timer has delivered messages: they stay in the log."""
    master, theirs, timer = Master(tmp_path / "master"), tmp_path / "slave", SMALL | {"timerWheelEnable": True}

    def stored(broker: EmbeddedBroker) -> int:
        return sum(end for topic, _, _, end in broker.status()["queues"] if topic == TOPICS[0])

    def send(broker: EmbeddedBroker, *keys: str) -> None:
        with rocketmq.producer(broker.names, GROUP) as producer:
            told = producer.send([message(TOPICS[0], b"timed", keys=key, delay_ms=1_000) for key in keys])
            assert [one["status"] for one in told] == ["SEND_OK"] * len(keys)

    with rocketmq.broker(master.path, config=timer) as broker:
        send(broker, *(f"k{number}" for number in range(5)))
        eventually(lambda: stored(broker) == 5, CAUGHT_UP_S)
        settle(master.path, time.time() * 1000)
    with master.serve() as server:
        asked, answer = threading.Event(), server._slow_handlers[RequestCode.GET_TIMER_CHECK_POINT]

        def noted(request: Any) -> Any:
            asked.set()
            return answer(request)

        server._slow_handlers[RequestCode.GET_TIMER_CHECK_POINT] = noted
        with rocketmq.slave(theirs, master.names, config=timer, settings=READABLE) as slave:
            following(slave, master)
            caught_up(slave, end_of(server))
            asked.clear()  # From now on the slave has its tables, and asks each three seconds.
            assert asked.wait(CAUGHT_UP_S)
            eventually(lambda: stored(slave) == 5, CAUGHT_UP_S)
    with rocketmq.broker(theirs, config=timer) as broker:
        send(broker, "new")
        eventually(lambda: stored(broker) > 5, CAUGHT_UP_S)
        settle(theirs, time.time() * 1000)
        assert stored(broker) == 6


def test_silence(tmp_path: Path) -> None:
    """A heartbeat comes after 5 s; a slave that says nothing for 20 s is disconnected."""
    with Master(tmp_path / "master").serve() as server:
        server.broker.producer("p").send(Message(TOPICS[0], b"1"))
        with Slave(server, 0) as slave:
            slave.copy_up_to(end_of(server))
            began = time.monotonic()
            assert slave.piece() == (end_of(server), b"")
            assert time.monotonic() - began > 4
            pieces: list[tuple[int, bytes]] = []
            with contextlib.suppress(ConnectionResetError):
                while len(pieces) < 20:
                    pieces.append(slave.piece())
            assert set(pieces) == {(end_of(server), b"")}
            assert len(pieces) < 20
