"""Guards the inbox: a message that is delivered twice is handled once, since its mark commits with the work."""

import asyncio
import contextlib
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.database.conftest import Kind, entered, messages, rollback, run
from tests.database.outbox_worker import connected
from tests.waiting import eventually
from txstore import EmbeddedBroker, InvalidOptionError, Message, StoredMessage
from txstore.database import Database


@pytest.fixture
def message(broker: EmbeddedBroker) -> StoredMessage:
    broker.producer("p").send(Message("t", b"x"), queue_id=0)
    return broker.read("t", 0, 0)[0][0]


def test_message_is_handled_once_per_group(kind: Kind, database: Database, message: StoredMessage) -> None:
    async def handle(group: str, number: int) -> bool:
        async with kind.session() as session, entered(database.inbox(group).handle(message, session)) as first:
            if first:
                await kind.order(session, number, group)
            return bool(first)

    assert [run(handle(group, number)) for number, group in enumerate(["a", "a", "b", "a", "b"])] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert kind.orders() == [0, 2]


def test_failed_message_is_handled_again(kind: Kind, database: Database, message: StoredMessage) -> None:
    inbox = database.inbox("g")

    async def handle(fails: bool) -> bool:
        async with kind.session() as session, entered(inbox.handle(message, session)) as first:
            if first:
                await kind.order(session, 1, "g")
            if fails:
                raise KeyError
            return bool(first)

    with pytest.raises(KeyError):
        run(handle(True))
    assert kind.orders() == []
    assert run(handle(False))
    assert not run(handle(False))
    assert kind.orders() == [1]


def test_rollback_inside_is_not_taken_for_handled(kind: Kind, database: Database, message: StoredMessage) -> None:
    async def handle() -> None:
        async with kind.session() as session, entered(database.inbox("g").handle(message, session)):
            await rollback(session)

    with pytest.raises(InvalidOptionError, match="rolled back inside"):
        run(handle())
    assert kind.rows("SELECT count(*) FROM txstore_inbox") == [(0,)]


def test_message_is_handled_and_another_sent_in_one_transaction(
    kind: Kind, database: Database, message: StoredMessage, broker: EmbeddedBroker
) -> None:
    inbox = database.inbox("g")
    if kind.is_django:
        _with_a_message_of_django(kind, database, message, broker)
        return
    producer = broker.transaction_producer("g", database=database)

    async def handle(fails: bool) -> None:
        async with kind.session() as session, entered(inbox.handle(message, session)) as first:
            if first:
                async with entered(producer.transaction(Message("next", b"y"), session=session)) as tx:
                    await kind.order(session, 1, tx.transaction_id)
                    if fails:
                        raise KeyError

    with contextlib.suppress(KeyError):
        run(handle(True))
    assert (kind.orders(), messages(broker, "next")) == ([], [])
    for _ in range(2):
        run(handle(False))
    assert (kind.orders(), len(messages(broker, "next"))) == ([1], 1)


def _with_a_message_of_django(kind: Kind, database: Database, message: StoredMessage, broker: EmbeddedBroker) -> None:
    """The inbox begins `atomic()`, inside which a message is sent, and a block is refused."""
    producer = broker.producer("g", database=database)
    blocks = broker.transaction_producer("blocks", database=database)

    async def handle(fails: bool) -> None:
        async with kind.session() as session, entered(database.inbox("g").handle(message, session)) as first:
            if first:
                with pytest.raises(InvalidOptionError, match=r"inside transaction.atomic"):
                    blocks.transaction(Message("next", b"z"), session=session).__enter__()
                await kind.order(session, 1, "x")
                producer.send(Message("next", b"y"), session=session)
                if fails:
                    raise KeyError

    with contextlib.suppress(KeyError):
        run(handle(True))
    assert kind.orders() == []
    for _ in range(2):
        run(handle(False))
    assert kind.orders() == [1]
    eventually(lambda: len(messages(broker, "next")) == 1)


@pytest.mark.parametrize("server", ["sqlite3", "postgres", pytest.param("mariadb", marks=pytest.mark.matrix)])
def test_two_concurrent_handlers_wait_for_each_other(
    server: str, message: StoredMessage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if server in ("postgres", "mariadb"):
        running = request.getfixturevalue(server)
        address = running.url(running.new())
    else:
        address = str(tmp_path / "a.db")
    database = Database(address)
    database.create_table()
    inbox, together, firsts = database.inbox("g"), threading.Barrier(8), list[bool]()

    def handle() -> None:
        connection = connected(address)
        together.wait()
        with inbox.handle(message, connection) as first:
            firsts.append(first)
        connection.close()

    threads = [threading.Thread(target=handle) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == [False] * 7 + [True]


def test_inbox_is_cleaned_with_the_log(kind: Kind, database: Database, message: StoredMessage) -> None:
    async def handle() -> None:
        async with kind.session() as session, entered(database.inbox("g").handle(message, session)):
            pass

    run(handle())
    assert database.clean(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    asyncio.run(asyncio.sleep(0.002))
    assert database.clean(datetime.now(UTC)) == 1
