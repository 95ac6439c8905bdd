"""Guards rows that stay after they were sent (`keep_sent`): a restored log gets exactly the messages again that it has
lost, and a restored database shows what was sent before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.copies import killed_copy
from tests.database.conftest import SMALL, Kind, new_kind
from tests.database.outbox_worker import connected, execute
from tests.unit.conftest import Run
from tests.unit.conftest import run as command_line
from tests.waiting import eventually
from txstore import EmbeddedBroker, InvalidOptionError, Message
from txstore.database import Database, OutboxProducer, TableError

__all__ = ["command_line"]

KINDS = ["sqlite3", "psycopg", pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def database(kind: Kind) -> Database:
    made = Database(kind.source, keep_sent=timedelta(hours=1))
    made.create_table()
    return made


def send(kind: Kind, producer: OutboxProducer, *bodies: bytes, group: str | None = None, delay: int = 0) -> None:
    """One transaction with messages."""
    with contextlib.closing(connected(kind.address)) as session:
        for body in bodies:
            producer.send(Message("orders", body, message_group=group, delay_level=delay), session=session)
        session.commit()


def bodies(broker: EmbeddedBroker, topic: str = "orders") -> list[bytes]:
    return [message.body for message in broker.read(topic, 0, 0, 5000)[0]]


def counts(kind: Kind) -> tuple[int, int]:
    """How many rows wait, and how many are kept."""
    [(waiting,)] = kind.rows("SELECT count(*) FROM txstore_outbox")
    [(kept,)] = kind.rows("SELECT count(*) FROM txstore_sent")
    return waiting, kept


def change(kind: Kind, *statements: str) -> None:
    with contextlib.closing(connected(kind.address)) as session:
        for statement in statements:
            execute(session, statement)
        session.commit()


def test_sent_rows_are_kept_for_their_time(
    kind: Kind, producer: OutboxProducer, database: Database, tmp_path: Path
) -> None:
    for number in range(5):
        send(kind, producer, b"%d" % number)
    producer._forwarder.close(30)  # On SQLite, the service's next transactions or a close delete the rest.
    assert counts(kind) == (0, 5)
    change(kind, "UPDATE txstore_sent SET sent_ms = sent_ms - 3480000")
    with txstore.open(tmp_path / "other", **SMALL) as other:
        send(kind, other.producer("g", database=database), b"young")
    assert counts(kind) == (0, 6), "by the database's clock, two minutes of the hour are left"
    change(
        kind,
        "UPDATE txstore_sent SET sent_ms = sent_ms - 121000 WHERE sent_ms < (SELECT max(sent_ms) FROM "
        "(SELECT sent_ms FROM txstore_sent) AS all_of_them)",
    )
    with txstore.open(tmp_path / "other", **SMALL) as other:
        other.producer("g", database=database)._forwarder._next_expiry = 0.0
        send(kind, other.producer("g", database=database), b"another", b"and another")
    assert counts(kind) == (0, 3)


def test_without_the_option_nothing_is_kept(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    producer = broker.producer("g", database=Database(kind.source))
    send(kind, producer, b"1")
    producer._forwarder.close(30)
    assert counts(kind) == (0, 0)


def test_restored_log_gets_exactly_what_it_has_lost(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cut = chance.randrange(1, 40)
    for number in range(40):
        if number == cut:
            eventually(lambda: len(bodies(broker)) == cut)
            killed_copy(tmp_path / "store", tmp_path / "copy")
        send(kind, producer, b"%02d" % number, group=chance.choice([None, "a", "b"]), delay=0)
    eventually(lambda: len(bodies(broker)) == 40)
    producer._forwarder.close(30)
    assert counts(kind) == (0, 40)
    everything = database.resend(broker)
    assert (everything.appended, everything.present) == (0, 40)
    with txstore.open(tmp_path / "copy", **SMALL) as restored:
        assert len(bodies(restored)) == cut
        done = database.resend(restored)
        assert (done.appended, done.present, done.in_doubt, done.refused, done.other_logs) == (40 - cut, cut, 0, 0, 0)
        assert sorted(bodies(restored)) == sorted(bodies(broker))
        order = {
            group: [message.body for message in restored.read("orders", 0, 0, 100)[0]
                    if message.properties.get("__SHARDINGKEY") == group]
            for group in ("a", "b")
        }  # fmt: skip
        assert all(found == sorted(found) for found in order.values())
        again = database.resend(restored)
        assert (again.appended, again.present) == (0, 40)
        assert len(bodies(restored)) == 40


def test_delayed_message_is_not_sent_again_before_it_is_due(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker
) -> None:
    send(kind, producer, b"later", delay=18)
    producer._forwarder.close(30)
    assert counts(kind) == (0, 1)
    done = database.resend(broker)
    assert (done.appended, done.present) == (0, 1)


def test_another_log_gets_only_what_is_asked_for(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker, tmp_path: Path, command_line: Run
) -> None:
    send(kind, producer, b"1", b"2")
    producer._forwarder.close(30)
    with txstore.open(tmp_path / "new", **SMALL) as new:
        new.create_topic("orders", 1)
        done = database.resend(new)
        assert (done.appended, done.present, done.other_logs) == (0, 0, 2)
    code, out, err = command_line("outbox", "resend", kind.address, "--to", tmp_path / "new", "--other-logs", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"appended": 2, "present": 0, "in_doubt": 0, "refused": 0, "other_logs": 0}
    with txstore.open(tmp_path / "new", **SMALL) as new:
        assert sorted(bodies(new)) == [b"1", b"2"]  # They are sent concurrently.


def test_message_that_retention_may_have_removed_is_not_sent_again(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker
) -> None:
    send(kind, producer, b"old")
    eventually(lambda: bodies(broker) == [b"old"])
    plain = broker.producer("p")
    for _ in range(40):
        plain.send(Message("filler", bytes(60_000)))
    send(kind, producer, b"young")
    producer._forwarder.close(30)
    broker.store.remove_log_files(SMALL["mapped_file_size_commit_log"], keep_unread=False)
    assert broker.stat().min_physical_offset > 0
    done = database.resend(broker)
    assert (done.appended, done.present, done.in_doubt) == (0, 1, 1)


def test_row_that_the_log_refuses_is_counted(
    kind: Kind, producer: OutboxProducer, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(kind, producer, bytes(2000), b"small")
    producer._forwarder.close(30)
    with txstore.open(tmp_path / "small", **{**SMALL, "max_message_size": 1000}) as small:
        small.create_topic("orders", 1)
        done = database.resend(small, other_logs=True)
        assert (done.appended, done.refused) == (1, 1)
        assert bodies(small) == [b"small"]
    assert "cannot be sent again" in caplog.text


def test_other_brokers_send_again(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    send(kind, producer, b"1")
    eventually(lambda: bodies(broker) == [b"1"])
    killed_copy(tmp_path / "store", tmp_path / "copy")
    send(kind, producer, b"2", b"3", group="g")
    producer._forwarder.close(30)
    with (
        txstore.open(tmp_path / "copy", **SMALL) as restored,
        txstore.serve(restored, listen="127.0.0.1:0", name_server=None) as server,
    ):
        assert server.address is not None
        with txstore.connect(server.address) as remote:
            done = database.resend(remote)
        assert (done.appended, done.present) == (2, 1)
        assert bodies(restored) == [b"1", b"2", b"3"]

        async def again() -> Any:
            async with txstore.aio.connect(str(server.address)) as remote:
                return await database.resend(remote)

        assert asyncio.run(again()).present == 3


def test_restored_database_shows_what_was_sent_before(
    kind: Kind, producer: OutboxProducer, database: Database, broker: EmbeddedBroker, tmp_path: Path, command_line: Run
) -> None:
    change(kind, "CREATE TABLE backup AS SELECT * FROM txstore_outbox")
    with contextlib.closing(connected(kind.address)) as session:
        sent = producer.send(Message("orders", b"before the backup"), session=session)
        execute(session, "INSERT INTO backup SELECT * FROM txstore_outbox")
        session.commit()
    eventually(lambda: len(bodies(broker)) == 1)
    broker.close()
    new = "INSERT INTO txstore_outbox SELECT id {0}, destination, message, message_group, group_seq, parked FROM backup"
    change(kind, "DELETE FROM txstore_outbox", new.format("+ 0"), "DROP TABLE backup")
    code, out, err = command_line("outbox", "list", kind.address, "--in-log", tmp_path / "store", "--json")
    assert (code, err) == (0, "")
    assert [(row["message_id"], row["in_log"]) for row in json.loads(out)] == [(sent.message_id, True)]
    code, out, _ = command_line("outbox", "list", kind.address, "--in-log", tmp_path / "store")
    assert (code, "in the log" in out) == (0, True)
    with txstore.open(tmp_path / "new", **SMALL) as other:
        with txstore.serve(other, listen="127.0.0.1:0", name_server=None) as server:
            code, out, _ = command_line("outbox", "list", kind.address, "--in-log", server.address, "--json")
        assert [row["in_log"] for row in json.loads(out)] == [False]
    code, _, err = command_line("outbox", "list", kind.address, "--in-log", tmp_path / "nothing")
    assert code == 2
    assert "there is no store" in err
    with txstore.open(tmp_path / "store", **SMALL) as opened:  # It forwards what the backup has, which is there.
        opened.producer("order-service", database=database)
        eventually(lambda: counts(kind)[0] == 0)
        assert bodies(opened) == [b"before the backup"]


def test_tables_without_the_new_one_are_refused(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    change(kind, "DROP TABLE txstore_sent")
    database = Database(kind.source, keep_sent=1)
    broker.producer("g", database=Database(kind.source))  # It keeps nothing, and does not need the table.
    for use in (lambda: broker.producer("g", database=database), lambda: database.resend(broker)):
        with pytest.raises(TableError, match="no table txstore_sent"):
            use()
    database.create_table()
    broker.producer("g", database=database)


@pytest.mark.parametrize("wrong", [0, -1.0, timedelta(), timedelta(days=-1), "1 h", True])
def test_wrong_time_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="keep_sent"):
        Database(tmp_path / "orders.db", keep_sent=wrong)
