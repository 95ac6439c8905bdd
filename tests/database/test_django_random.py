"""Guards `txstore.django.send` against everything that may happen to a transaction of Django: after random transactions
in several threads, and after kills, each committed order has one message, and no other message is there.

`TXSTORE_RACES` sets how many transactions there are for each database (10,000 in the long form), `TXSTORE_KILLS` how
many kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.database import django_kind
from tests.database.conftest import DJANGO_KINDS, SMALL, Kind, new_kind
from tests.waiting import eventually
from txstore import EmbeddedBroker, InvalidOptionError, Message
from txstore.database import Database

RACES = int(os.environ.get("TXSTORE_RACES", "240"))
KILLS = int(os.environ.get("TXSTORE_KILLS", "8"))
THREADS = 6
GROUPS = 3
ACCOUNTS = 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=DJANGO_KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as made:
        Database(made.address).create_table()
        yield made


class StumbleError(Exception):
    """The exception of the user's code."""


class Customer:
    """One thread's random transactions, on its own connection. An order's number is its message."""

    def __init__(self, alias: str, seed: int, fates: Counter[str]) -> None:
        self.alias = alias
        self.chance = random.Random(seed)
        self.fates = fates
        self.shapes: list[Callable[[int], None]] = [
            self.commit,
            self.stumble,
            self.ask_for_rollback,
            self.savepoints,
            self.batch,
            self.key_exists,
            self.key_exists_in_savepoint,
            self.hook_fails,
            self.transfer,
            self.connection_breaks,
            self.carry_on,
        ]

    def one(self, number: int) -> None:
        """One transaction. `number` is the first of ten that it may use."""
        shape = self.chance.choice(self.shapes)
        try:
            shape(number)
            self.fates[shape.__name__] += 1
        except StumbleError:
            self.fates[f"{shape.__name__}: raised"] += 1
        except (self._database_errors(), InvalidOptionError) as error:
            self.fates[f"{shape.__name__}: {type(error).__name__}"] += 1
            django_kind.disconnect(self.alias)  # As Django does, if a request leaves it unusable.

    @staticmethod
    def _database_errors() -> type[Exception]:
        from django.db import Error

        found: type[Exception] = Error
        return found

    def connection(self) -> Any:
        from django.db import connections

        return connections[self.alias]

    def atomic(self, **options: Any) -> Any:
        from django.db import transaction

        return transaction.atomic(using=self.alias, **options)

    def order(self, number: int) -> None:
        """An order and its message, in either order."""
        from txstore.django import send

        steps: list[Callable[[], Any]] = [
            lambda: django_kind.execute(self.connection(), f"INSERT INTO orders VALUES ({number}, 'x')"),
            lambda: send(Message("orders", b"%d" % number, message_group=self.group()), using=self.alias),
        ]
        self.chance.shuffle(steps)
        for step in steps:
            step()

    def group(self) -> str | None:
        return f"group-{self.chance.randrange(GROUPS)}" if self.chance.random() < 0.3 else None

    # Shapes

    def commit(self, number: int) -> None:
        with self.atomic(durable=True):
            self.order(number)
            if self.chance.random() < 0.1:
                time.sleep(0.01)

    def stumble(self, number: int) -> None:
        with self.atomic():
            self.order(number)
            raise StumbleError

    def ask_for_rollback(self, number: int) -> None:
        from django.db import transaction

        with self.atomic():
            self.order(number)
            transaction.set_rollback(True, using=self.alias)

    def savepoints(self, number: int) -> None:
        with self.atomic():
            self.order(number)
            for inner in range(1, 4):
                with suppress(StumbleError), self.atomic():
                    self.order(number + inner)
                    with suppress(StumbleError), self.atomic(savepoint=self.chance.random() < 0.8):
                        self.order(number + 3 + inner)
                        if self.chance.random() < 0.4:
                            raise StumbleError
                    if self.chance.random() < 0.3:
                        raise StumbleError
            if self.chance.random() < 0.2:
                raise StumbleError

    def batch(self, number: int) -> None:
        from txstore.django import send_batch

        with self.atomic():
            messages = [Message("orders", b"%d" % (number + one), message_group=self.group()) for one in range(3)]
            send_batch(messages, using=self.alias)
            for one in range(3):
                django_kind.execute(self.connection(), f"INSERT INTO orders VALUES ({number + one}, 'x')")

    def key_exists(self, number: int) -> None:
        with self.atomic():
            self.order(number)
            django_kind.execute(self.connection(), f"INSERT INTO orders VALUES ({number}, 'again')")

    def key_exists_in_savepoint(self, number: int) -> None:
        from django.db import IntegrityError

        with self.atomic():
            self.order(number)
            with suppress(IntegrityError), self.atomic():
                self.order(number + 1)
                django_kind.execute(self.connection(), f"INSERT INTO orders VALUES ({number}, 'again')")

    def hook_fails(self, number: int) -> None:
        """It runs after the commit, so the message is sent."""
        from django.db import transaction

        def fail() -> None:
            raise StumbleError

        with self.atomic():
            transaction.on_commit(fail, using=self.alias)
            self.order(number)

    def transfer(self, number: int) -> None:
        """Two accounts in random order: threads may deadlock, and the server rolls one of them back."""
        first, second = self.chance.sample(range(ACCOUNTS), 2)
        with self.atomic():
            for account in (first, second):
                change = f"UPDATE accounts SET amount = amount + 1 WHERE id = {account}"
                django_kind.execute(self.connection(), change)
            self.order(number)

    def connection_breaks(self, number: int) -> None:
        breaks = self.chance.random() < 0.3
        with suppress(Exception if breaks else StumbleError), self.atomic():
            self.order(number)
            if breaks:
                self.connection().connection.close()
        if breaks:
            django_kind.disconnect(self.alias)

    def carry_on(self, number: int) -> None:
        """A statement fails, and the program continues: on PostgreSQL, nothing of the transaction is kept."""
        from django.db import Error

        with self.atomic():
            self.order(number)
            with suppress(Error):
                django_kind.execute(self.connection(), "SELECT * FROM nowhere")
            self.order(number + 1)


def accounts(kind: Kind) -> None:
    """Makes the table of `transfer`."""
    with django_kind.connection_of(kind.alias) as connection:
        django_kind.execute(connection, "CREATE TABLE accounts (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL)")
        for account in range(ACCOUNTS):
            django_kind.execute(connection, f"INSERT INTO accounts VALUES ({account}, 0)")


def bodies(broker: EmbeddedBroker) -> Counter[int]:
    """The numbers in all messages."""
    found: Counter[int] = Counter()
    for _, queue_id, offset, end in broker.queues("orders"):
        while offset < end:
            messages, offset = broker.read("orders", queue_id, offset, 256)
            found.update(int(message.body) for message in messages)
    return found


def wait_until_sent(kind: Kind) -> None:
    eventually(lambda: kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)], 120)


@pytest.mark.kill
def test_random_transactions_leave_order_and_message_consistent(kind: Kind, tmp_path: Path) -> None:
    from txstore.django import close, use_broker

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    accounts(kind)
    fates: Counter[str] = Counter()
    failed: list[BaseException] = []

    def work(thread: int) -> None:
        customer = Customer(kind.alias, seed + thread, fates)
        try:
            with django_kind.connection_of(kind.alias):
                for number in range(thread, RACES, THREADS):
                    customer.one(10 * number)
        except BaseException as error:
            failed.append(error)

    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 4)
        with use_broker(broker):
            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        close()
        assert failed == []
    print(dict(fates))
    assert fates.total() == RACES
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.producer("django", database=Database(kind.address))
        wait_until_sent(kind)
        assert bodies(broker) == Counter(kind.orders())


CHILD = """
import sys, threading
from collections import Counter
import txstore
from tests.database import django_kind
from tests.database.conftest import SMALL
from tests.database.test_django_random import Customer
from txstore.django import use_broker

address, store, seed, first = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
alias = django_kind.alias_of(address)
sent = threading.Event()

def work(thread):
    customer, number = Customer(alias, seed + thread, Counter()), first + thread
    while True:
        customer.one(10 * number)
        number += 3
        sent.set()

with txstore.open(store, shared=True, **SMALL) as broker, use_broker(broker):
    for thread in range(3):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    sent.wait()
    print("sent", flush=True)
    threading.Event().wait()
"""


@pytest.mark.kill
def test_kills_leave_order_and_message_consistent(kind: Kind, tmp_path: Path) -> None:
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")
    chance = random.Random(seed)
    accounts(kind)
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 4)
    for life in range(max(2, KILLS // 4)):
        arguments = [kind.address, str(tmp_path / "store"), str(chance.randrange(1 << 20)), str(life * 1_000_000)]
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.readline() == b"sent\n", child.stderr.read().decode()
            time.sleep(chance.uniform(0, 0.6))
            child.kill()
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.producer("django", database=Database(kind.address))
        wait_until_sent(kind)
        assert bodies(broker) == Counter(kind.orders())
    assert kind.orders()
