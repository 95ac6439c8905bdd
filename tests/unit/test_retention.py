"""Guards retention: old, consumed files are removed from the front of the log; unread messages and pending transactions
stay.
"""

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.waiting import eventually
from txstore import (
    AlreadyEndedError,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    OffsetTooOldError,
    TransactionState,
)
from txstore._native import Store
from txstore.broker.retention import Removable, Retention, RetentionRules, removable
from txstore.config import BrokerConfig

FILE = 64 << 10
HOUR_MS = 3_600_000
SMALL: dict[str, Any] = {"mapped_file_size_commit_log": FILE, "max_message_size": 16 << 10}
BY_HAND: dict[str, Any] = {"clean_resource_interval": 86_400}


@dataclass
class Facts:
    """A file of 100 bytes."""

    first: int
    age_ms: int
    held: bool = False
    unread: bool = False

    @property
    def end(self) -> int:
        return self.first + 100


def rules(**options: Any) -> RetentionRules:
    return RetentionRules.of(BrokerConfig(file_reserved_time=10, **options))


def files(*facts: dict[str, Any]) -> list[Facts]:
    return [Facts(number * 100, **({"age_ms": 20_000} | one)) for number, one in enumerate(facts)]


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        pytest.param([{}, {}, {"age_ms": 9_999}, {}], {}, (200, 0), id="by age, up to the first file that is not old"),
        pytest.param([{"age_ms": 10_000}], {}, (0, 0), id="just not too old"),
        pytest.param([{}, {"held": True}, {}], {}, (100, 0), id="a pending transaction keeps its file"),
        pytest.param([{}, {"held": True}, {}], {"delete_unread": True}, (100, 0), id="regardless of the settings"),
        pytest.param([{}, {"unread": True}], {}, (100, 0), id="an unread message keeps its file"),
        pytest.param([{}, {"unread": True}], {"delete_unread": True}, (100, 200), id="unless the settings allow it"),
        pytest.param([{}, {}], {"delete_when": "04;16"}, (0, 0), id="not at this hour"),
        pytest.param([{}, {}], {"delete_when": "03;12"}, (200, 0), id="at this hour"),
    ],
)
def test_files_removed_by_age(given: list[dict[str, Any]], options: dict[str, Any], expected: tuple[int, int]) -> None:
    found = removable(files(*given), 1_000, 12, rules(**options))
    assert (found.read, found.unread) == expected
    stays = any(one.get("held") or (one.get("unread") and not options) for one in given)
    assert (found.stopped_by is not None) == stays


def test_files_removed_for_size() -> None:
    few = RetentionRules(10_000, delete_unread=False, store_bytes_max=250, hours=frozenset())
    young = [Facts(first, 0, unread=first == 100) for first in range(0, 500, 100)]
    assert removable(young, 480, 0, few) == Removable(read=300, unread=200)
    young[1].held = True
    assert removable(young, 480, 0, few).read == 100


def fill(broker: txstore.EmbeddedBroker, topic: str, count: int, size: int = 8_000) -> None:
    producer = broker.producer("filler")
    for number in range(count):
        producer.send(Message(topic, number.to_bytes(4, "big") + b"x" * size), queue_id=0)


def expire(broker: txstore.EmbeddedBroker, **options: Any) -> int:
    """Runs a round of retention now, as the thread does; returns where the log begins then."""
    config = BrokerConfig.from_options({"file_reserved_time": 1} | options)
    facts = [_Old(fact) for fact in broker.store.log_files(100)]
    store = _Aged(broker.store, facts)
    Retention(store, RetentionRules.of(config), lambda: 0).round()
    return broker.stat().min_physical_offset


class _Old:
    """A file's facts, a day later."""

    def __init__(self, fact: Any) -> None:
        self.first, self.end, self.held, self.unread = fact.first, fact.end, fact.held, fact.unread
        self.age_ms = fact.age_ms + 24 * HOUR_MS


class _Aged:
    """The real store, except that it reports files as a day older."""

    def __init__(self, store: Store, facts: list[_Old]) -> None:
        self.log_files = lambda limit: facts[:limit]
        self.stat = store.stat
        self.remove_log_files = store.remove_log_files


@pytest.fixture
def broker(open_store: Any) -> txstore.EmbeddedBroker:
    opened: txstore.EmbeddedBroker = open_store(**SMALL, **BY_HAND, transaction_check_interval=3600)
    return opened


def test_old_files_are_removed_by_themselves(open_store: Any) -> None:
    broker = open_store(**SMALL, file_reserved_time=4, clean_resource_interval=0.05)
    began = time.monotonic()
    fill(broker, "t", 40)
    with broker.consumer("c", "t") as consumer:
        while consumer.poll(timeout=0):
            pass
    assert broker.stat().min_physical_offset == 0 or time.monotonic() > began + 4, "no file is old yet"
    eventually(lambda: broker.stat().min_physical_offset > 2 * FILE)
    first, end = broker.queue_range("t", 0)
    assert 0 < first < end == 40
    with pytest.raises(OffsetTooOldError) as caught:
        broker.read("t", 0, 0)
    assert caught.value.minimum == first
    assert min(path.name for path in (Path(broker.path) / "commitlog").glob("0*")) != f"{0:020}"


def test_4549_unread_messages_are_kept(broker: txstore.EmbeddedBroker, caplog: Any) -> None:
    fill(broker, "t", 40)
    with broker.consumer("quick", "t") as quick, broker.consumer("slow", "t") as slow:
        slow.poll(3)
        while quick.poll(timeout=0):
            pass
        slow.acknowledge()
        with caplog.at_level(logging.WARNING, "txstore.retention"):
            assert expire(broker) == 0, "three messages are in the first file, and more"
        assert "a group has not read it" in caplog.text
        found: list[int] = []
        while messages := slow.poll(timeout=0):
            found.extend(message.body[3] for message in messages)
        assert found == list(range(3, 40))
        assert expire(broker) > 2 * FILE


def test_4549_pending_transaction_keeps_its_file_and_can_be_committed(
    broker: txstore.EmbeddedBroker, scripted: Any
) -> None:
    fill(broker, "t", 10)
    producer = broker.transaction_producer("p", scripted())
    producer.send_in_transaction(Message("orders", b"pending"))
    fill(broker, "t", 40)
    (waiting,) = broker.transactions()
    for options in ({}, {"delete_unread": True}, {"store_bytes_max": 2 * FILE}):
        assert expire(broker, **options) == FILE <= waiting.prepared_transaction_offset < 2 * FILE
    broker.end_transaction(waiting.transaction_id or "", LocalTransactionState.COMMIT)
    assert [message.body for queue in range(4) for message in broker.read("orders", queue, 0)[0]] == [b"pending"]
    assert expire(broker) > 3 * FILE


def test_pending_transaction_is_discarded_after_the_retention_time_and_then_removed(
    open_store: Any, scripted: Any
) -> None:
    broker = open_store(**SMALL, file_reserved_time=1, clean_resource_interval=0.05, transaction_check_interval=0.1)
    began = time.monotonic()
    producer = broker.transaction_producer("p", scripted())
    sent = producer.send_in_transaction(Message("orders", b"nobody knows"))
    half = sent.send_result
    fill(broker, "t", 20)
    assert broker.stat().min_physical_offset == 0 or time.monotonic() > began + 1, "no file is old yet"
    eventually(lambda: not broker.transactions())
    eventually(lambda: broker.stat().min_physical_offset > half.physical_offset)
    # The record of the discard shows what became of the half message.
    with pytest.raises(AlreadyEndedError, match="discarded"):
        broker.end_transaction(half, LocalTransactionState.COMMIT)
    broker.resume(sent.transaction_id)
    assert [one.transaction_id for one in broker.transactions()] == [sent.transaction_id]


LATER: dict[str, Any] = SMALL | {"file_reserved_time": 1, "transaction_timeout": 3600}
AT_ONCE: dict[str, Any] = LATER | {"transaction_timeout": 0, "transaction_check_interval": 0.05}


def is_too_old(broker: txstore.EmbeddedBroker) -> bool:
    (waiting,) = broker.transactions()
    return waiting.stored_age > timedelta(seconds=1)


def test_transaction_that_became_too_old_during_downtime_is_checked_before_it_is_discarded(
    open_store: Any, scripted: Any
) -> None:
    """Its database transaction may have committed: the process may have crashed before it could report that."""
    with open_store(**LATER) as broker:
        sent = broker.transaction_producer("p", scripted()).send_in_transaction(Message("orders", b"paid"))
    with open_store(**AT_ONCE) as broker:
        eventually(lambda: is_too_old(broker))
        # No producer of its group is connected: it waits at any age, and no check is counted.
        eventually(lambda: "no live producer" in broker.transactions()[0].why)
        assert broker.transactions()[0].checks == 0
    broker = open_store(**AT_ONCE)
    assert is_too_old(broker)
    listener = scripted(check=LocalTransactionState.COMMIT)
    broker.transaction_producer("p", listener)
    eventually(lambda: not broker.transactions())
    assert broker.transaction(sent.transaction_id).state is TransactionState.COMMITTED
    assert [message.body for queue in range(4) for message in broker.read("orders", queue, 0)[0]] == [b"paid"]


def test_transaction_that_is_too_old_is_discarded_after_the_answer_unknown(open_store: Any, scripted: Any) -> None:
    with open_store(**LATER) as broker:
        sent = broker.transaction_producer("p", scripted()).send_in_transaction(Message("orders", b"nobody knows"))
        eventually(lambda: is_too_old(broker))
    broker = open_store(**AT_ONCE)
    listener = scripted()
    broker.transaction_producer("p", listener)
    eventually(lambda: not broker.transactions())
    assert listener.checked == [sent.transaction_id]
    assert broker.transaction(sent.transaction_id).state is TransactionState.DISCARDED


def test_unread_files_are_removed_if_configured_and_consumers_are_told(
    broker: txstore.EmbeddedBroker, caplog: Any
) -> None:
    fill(broker, "t", 40)
    with broker.consumer("slow", "t") as slow:
        assert len(slow.poll(1)) == 1
    assert expire(broker, delete_unread=True) > 2 * FILE
    with broker.consumer("slow", "t") as slow, caplog.at_level(logging.WARNING):
        messages = slow.poll(100, timeout=1)
    assert messages[0].queue_offset == broker.queue_range("t", 0)[0] > 1
    assert "removed" in caplog.text


def test_files_over_the_size_limit_are_removed_read_or_not(open_store: Any) -> None:
    broker = open_store(**SMALL, store_bytes_max=3 * FILE, clean_resource_interval=0.05)
    broker.consumer("slow", "t").close()
    fill(broker, "t", 80)

    def log_bytes() -> int:
        stat = broker.stat()
        return int(stat.max_physical_offset - stat.min_physical_offset)

    eventually(lambda: log_bytes() <= 3 * FILE)
    assert log_bytes() > FILE


def test_scan_of_the_log_begins_at_the_first_kept_file(broker: txstore.EmbeddedBroker) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    fill(broker, "t", 40)
    before = pyarrow.table(txstore.scan(broker.path))
    begins = expire(broker)
    after = pyarrow.table(txstore.scan(broker.path))
    assert after["physical_offset"][0].as_py() == begins
    assert after.num_rows == sum(offset.as_py() >= begins for offset in before["physical_offset"])
    with pytest.raises(OffsetTooOldError) as caught:
        pyarrow.table(txstore.scan(broker.path, start_physical_offset=0))
    assert caught.value.minimum == begins


def test_reader_in_another_handle_follows(broker: txstore.EmbeddedBroker) -> None:
    fill(broker, "t", 40)
    with txstore.open(broker.path, read_only=True) as reader:
        assert len(reader.read("t", 0, 0, 100)[0]) == 40
        begins = expire(broker)
        assert reader.stat().min_physical_offset == begins
        assert reader.queue_range("t", 0) == broker.queue_range("t", 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"delete_when": "24"}, "contains no hours"),
        ({"delete_when": "four"}, "00 to 23"),
        ({"delete_when": ""}, "contains no hours"),
        ({"delete_when": 4}, "expected a str"),
        ({"clean_resource_interval": 0}, "must be"),
        ({"store_bytes_max": 0}, "must be"),
        ({"delete_unread": 1}, "expected True or False"),
        ({"store_bytes_max": 2 * FILE - 1}, "less than two commit log files of 65536 bytes"),
    ],
)
def test_P3_error_for_a_wrong_setting_says_what_is_accepted(
    open_store: Any, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidOptionError, match=match):
        open_store(**SMALL, **options)
    open_store(**SMALL)


def test_delete_when_is_an_hour_of_the_clock() -> None:
    moment = datetime(2026, 3, 4, 12, 30)
    calls: list[tuple[int, bool]] = []

    class OneFile:
        def log_files(self, limit: int) -> list[Facts]:
            return files({})

        def stat(self) -> Any:
            return type("Stat", (), {"max_physical_offset": 150})

        def remove_log_files(self, below: int, *, keep_unread: bool) -> Any:
            calls.append((below, keep_unread))
            return type("Expired", (), {"minimum": 100, "log_files": 1, "queue_files": 0, "index_files": 0})

    for when in ("04", "12"):
        Retention(OneFile(), rules(delete_when=when), lambda: round(moment.timestamp() * 1000)).round()
    assert calls == [(100, True)]
