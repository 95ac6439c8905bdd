"""Guards public times: each is a datetime in UTC, so a program can compare a message's time with its own clock."""

import struct
import time
from datetime import UTC, datetime, timedelta

import pytest

from txstore import EmbeddedBroker, LocalTransactionState, Message, ReceivedMessage
from txstore._native import decode_records
from txstore.message import HalfMessage, utc
from txstore.testing import FakeBroker, ManualClock

BORN_AT, STORED_AT = 40, 56  # Where a record of version 1 with IPv4 addresses has its two times.
UNKNOWN = LocalTransactionState.UNKNOWN


def now() -> datetime:
    return utc(time.time_ns() // 1_000_000)


def received(broker: EmbeddedBroker | FakeBroker) -> ReceivedMessage:
    broker.producer("p").send(Message("t", b"x"))
    with broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll()
    return message


def test_received_message_tells_when_it_was_sent_and_stored(broker: EmbeddedBroker) -> None:
    before = now()
    message = received(broker)
    assert before <= message.born_timestamp <= message.store_timestamp <= now()
    assert message.store_timestamp.utcoffset() == message.born_timestamp.utcoffset() == timedelta(0)


def test_message_of_a_fake_broker_has_the_clocks_time() -> None:
    with FakeBroker(clock=ManualClock(1_700_000_000_007)) as broker:
        message = received(broker)
    moment = datetime(2023, 11, 14, 22, 13, 20, 7_000, UTC)
    assert (message.born_timestamp, message.store_timestamp) == (moment, moment)


def test_transaction_tells_when_it_began_and_ended(broker: EmbeddedBroker) -> None:
    before = now()
    with broker.transaction_producer("g", check_listener=lambda message: UNKNOWN) as producer:
        sent = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
    (row,) = broker.transactions(None)
    assert before <= row.prepared_timestamp <= now()
    assert row.ended_timestamp is None
    broker.end_transaction(sent.transaction_id, LocalTransactionState.COMMIT)
    (row,) = broker.transactions(None)
    assert row.ended_timestamp is not None
    assert before <= row.prepared_timestamp <= row.ended_timestamp <= now()
    found = broker.transaction(sent.transaction_id)
    assert (found.prepared_timestamp, found.ended_timestamp) == (row.prepared_timestamp, row.ended_timestamp)


@pytest.mark.parametrize(
    ("timestamp_ms", "moment"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        (253_402_300_800_000, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        (2**63 - 1, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        (-62_135_596_800_000, datetime(1, 1, 1, tzinfo=UTC)),
        (-(2**63), datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_record_with_any_time_can_be_read(broker: EmbeddedBroker, timestamp_ms: int, moment: datetime) -> None:
    """A client's clock may tell anything. Such a time is clamped, exact otherwise."""
    stored = broker.message(broker.producer("p").send(Message("t", b"x")).message_id)
    record = bytearray(stored.record)
    assert struct.unpack_from(">q", record, BORN_AT)[0] == stored.born_timestamp_ms
    struct.pack_into(">q", record, BORN_AT, timestamp_ms)
    struct.pack_into(">q", record, STORED_AT, timestamp_ms)
    (read,) = decode_records(bytes(record))
    assert (read.born_timestamp_ms, read.store_timestamp_ms) == (timestamp_ms, timestamp_ms)
    assert (read.born_timestamp, read.store_timestamp) == (moment, moment)
    assert HalfMessage(read).store_timestamp == moment
