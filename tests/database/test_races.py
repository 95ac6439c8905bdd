"""Guards races of blocks, checks and late ends: for every transaction the row is committed exactly if the message
is.

Producers are closed while their blocks run, so that checks of others come in between: before the row, after it, before
the commit. `TXSTORE_RACES` sets how many transactions there are for each kind of session (10,000 in the long form).
"""

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txstore
from tests.database.conftest import DJANGO_KINDS, SMALL, Kind, commit, entered, messages, new_kind, run
from tests.waiting import eventually
from txstore import AlreadyEndedError, EmbeddedBroker, LocalTransactionState, Message
from txstore.database import Database

RACES = int(os.environ.get("TXSTORE_RACES", "120"))
THREADS = 6
GROUP, TOPIC = "order-service", "t"
FATES = ["commit", "raise", "roll back", "commit inside", "late row", "late commit", "late raise", "resent"]


class StumbleError(Exception):
    """The exception of the user's code."""


class Racer:
    """One thread's work, with sessions and random choices of its own."""

    def __init__(self, kind: Kind, broker: EmbeddedBroker, database: Database, seed: int, fates: Counter[str]) -> None:
        self.kind, self.broker, self.database = kind, broker, database
        self.chance = random.Random(seed)
        self.fates = fates

    def pause(self) -> None:
        time.sleep(self.chance.random() * 0.03)

    async def one(self, number: int) -> None:
        fate = self.chance.choice(FATES)
        producer = self.broker.transaction_producer(GROUP, database=self.database)
        try:
            if fate == "late row":
                self._stall(producer)
            await self._pay(producer, number, fate)
            self.fates[f"{fate}: done"] += 1
        except StumbleError:
            self.fates[f"{fate}: raised"] += 1
        except AlreadyEndedError as error:
            self.fates[f"{fate}: found it {error.outcome}"] += 1
        finally:
            producer.close()

    def _stall(self, producer: Any) -> None:
        """Between half message and row a check decides, as for a crashed producer."""
        prepare = producer._store_half

        def stalled(*arguments: Any) -> Any:
            sent = prepare(*arguments)
            producer.close()
            self.broker.local_transaction_ended(sent)
            self.pause()
            return sent

        producer._store_half = stalled

    async def _pay(self, producer: Any, number: int, fate: str) -> None:
        async with self.kind.session() as session:
            block = producer.transaction(Message(TOPIC, str(number).encode()), session=session)
            if fate == "late row" and "sqlite" in self.kind.name:
                block._handle.begin = _nothing  # Else it would hold SQLite's lock meanwhile.
            async with entered(block) as tx:
                await self.kind.order(session, number, tx.transaction_id)
                if fate.startswith("late") and fate != "late row":
                    producer.close()
                    self.pause()
                if fate == "commit inside":
                    await commit(session)
                if fate == "roll back":
                    tx.rollback()
                if fate == "late raise" or (
                    fate in ("raise", "resent", "commit inside") and self.chance.random() < 0.5
                ):
                    if fate == "resent":
                        tx._handle.rollback = tx._handle.commit = _broken
                    raise StumbleError
        if fate == "resent":
            async with self.kind.session() as session, entered(producer.transaction(tx.message, session=session)) as tx:
                await self.kind.order(session, number, tx.transaction_id)


async def _nothing() -> None:
    """Begins no transaction."""


async def _broken() -> None:
    raise OSError("the connection broke")


@pytest.fixture(
    params=[
        "sqlite3",
        "sqlalchemy sqlite",
        "psycopg",
        "sqlalchemy postgres",
        "sqlalchemy asyncpg",
        pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix),
        pytest.param("sqlalchemy mariadb asyncmy", marks=pytest.mark.matrix),
        *DJANGO_KINDS,
    ]
)
def racing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        yield found


@pytest.mark.kill
def test_races_leave_row_and_message_consistent(racing: Kind, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    fates: Counter[str] = Counter()
    times: dict[str, Any] = {"transaction_timeout": 0, "transaction_check_interval": 0.02}
    with txstore.open(tmp_path / "store", **times, **SMALL, transaction_check_max=1000) as broker:
        database = Database(racing.source)
        database.create_table()
        broker.transaction_producer(GROUP, database=Database(racing.source))  # Asked instead of the closed producers.
        failed: list[BaseException] = []

        def work(number: int) -> None:
            kind = Kind(racing.name, racing.address)
            racer = Racer(kind, broker, database, seed + number, fates)
            try:
                for order in range(number, RACES, THREADS):
                    run(racer.one(order))
            except BaseException as error:
                failed.append(error)
            finally:
                kind.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        eventually(lambda: broker.store.stat().pending_transactions == 0, 60)
        print(dict(fates))
        compare(racing, broker)
    assert fates.total() == RACES


def compare(kind: Kind, broker: EmbeddedBroker) -> None:
    """Asserts that row, business row and message exist all or none, each once."""
    paid = Counter(row[0] for row in kind.rows("SELECT transaction_id FROM orders"))
    committed = {name for name, outcome in kind.outcomes().items() if outcome == "committed"}
    states = {row.transaction_id: row.state for row in broker.transactions(None)}
    assert committed == {name for name, state in states.items() if state == "committed"}
    assert paid == Counter(committed)
    assert Counter(messages(broker, TOPIC)) == Counter(committed)


@pytest.mark.parametrize(
    "name", ["psycopg", pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix), *DJANGO_KINDS[1:]]
)
def test_check_waits_for_a_running_local_transaction(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """On a server the check's insert waits until the other's is committed or rolled back, and then returns which."""
    with (
        new_kind(name, tmp_path, request) as kind,
        txstore.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as broker,
    ):
        database = Database(kind.source)
        database.create_table()
        producer = broker.transaction_producer(GROUP, database=database)
        for fails, wanted in ((False, "COMMIT"), (True, "ROLLBACK")):
            answers: list[LocalTransactionState] = []

            async def pay(fails: bool, answers: list[LocalTransactionState], asked: list[threading.Thread]) -> None:
                async with (
                    kind.session() as session,
                    entered(producer.transaction(Message("t", b"x"), session=session)),
                ):
                    (waiting,) = broker.transactions()
                    half = broker.store.half(waiting.half_queue_offset)
                    check = threading.Thread(target=lambda: answers.append(database.check_local_transaction(half)))
                    check.start()
                    check.join(0.3)
                    assert answers == []
                    asked.append(check)
                    if fails:
                        raise StumbleError

            asked: list[threading.Thread] = []
            with contextlib.suppress(StumbleError):
                run(pay(fails, answers, asked))
            asked[0].join(10)
            assert [answer.name for answer in answers] == [wanted]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_level_changes_no_answer(level: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with new_kind("sqlalchemy postgres", tmp_path, request) as kind:
        name = kind.address.split("/")[3].split("?")[0]
        with psycopg.connect(kind.address, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
        with txstore.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as broker:
            for source in (kind.source, kind.address):
                database = Database(source)
                database.create_table()
                producer = broker.transaction_producer(GROUP, database=database)

                async def pay(checks: list[Any], producer: Any = producer, database: Database = database) -> None:
                    async with (
                        kind.session() as session,
                        entered(producer.transaction(Message("t", b"x"), session=session)),
                    ):
                        (waiting,) = broker.transactions()
                        half = broker.store.half(waiting.half_queue_offset)
                        found: list[Any] = []
                        check = threading.Thread(target=lambda: found.append(database.check_local_transaction(half)))
                        check.start()
                        check.join(0.2)
                    checks.append((check, found))

                checks: list[Any] = []
                run(pay(checks))
                checks[0][0].join(10)
                assert checks[0][1] == [LocalTransactionState.COMMIT]
        with psycopg.connect(kind.address, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")
