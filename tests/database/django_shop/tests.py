"""Guards messages within transactions of Django: published if, and only if, `atomic()` commits.

Run by `tests/database/test_django.py`, on SQLite, PostgreSQL and MariaDB.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase

from tests.database.django_shop.models import Order
from txstore import AlreadyEndedError, Message, errors
from txstore.django import broker, close, database, producer, send, send_batch
from txstore.django.sending import _process


def eventually(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < until, "it did not happen within 20 s"
        time.sleep(0.01)


def bodies(topic: str) -> list[bytes]:
    if topic not in broker().topics():
        return []
    return sorted(
        message.body
        for queue in broker().describe_topic(topic).queues
        for message in broker().read(topic, queue.queue_id, 0, 1000)[0]
    )


def tearDownModule() -> None:
    close()  # A database to which the forwarder has a connection cannot be dropped.


class Published(TransactionTestCase):  # type: ignore[misc]
    """With real commits."""

    def topic(self) -> str:
        return str(self.id()).rsplit(".", 1)[1]

    def test_message_is_published_with_the_commit(self) -> None:
        with transaction.atomic():
            Order.objects.create(number=1)
            receipt = send(Message(self.topic(), b"1", keys=["o-1"]))
            assert [message.body for message in database().pending(connection)] == [b"1"]
            assert bodies(self.topic()) == []
        eventually(lambda: bodies(self.topic()) == [b"1"])
        assert len(receipt.message_id) == 32
        with transaction.atomic():
            send_batch([Message(self.topic(), b"2"), Message(self.topic(), b"3", message_group="g")])
        eventually(lambda: bodies(self.topic()) == [b"1", b"2", b"3"])

    def test_rollback_and_savepoints(self) -> None:
        try:
            with transaction.atomic():
                send(Message(self.topic(), b"rolled back"))
                raise KeyError
        except KeyError:
            pass
        with transaction.atomic():
            send(Message(self.topic(), b"1"))
            try:
                with transaction.atomic():
                    Order.objects.create(number=1)
                    send(Message(self.topic(), b"in a savepoint"))
                    raise KeyError
            except KeyError:
                pass
            with transaction.atomic():
                send(Message(self.topic(), b"2"))
        eventually(lambda: len(bodies(self.topic())) >= 2)
        assert bodies(self.topic()) == [b"1", b"2"]
        assert not Order.objects.exists()

    def test_send_is_refused_outside_atomic_and_after_a_failure(self) -> None:
        with pytest.raises(errors.InvalidOptionError, match=r"commits each statement at once.*\n.*atomic\(using="):
            send(Message(self.topic(), b"1"))
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(errors.InvalidOptionError, match="transaction has failed"):
                send(Message(self.topic(), b"1"))
        assert bodies(self.topic()) == []

    def test_block_and_inbox(self) -> None:
        with broker().transaction_producer("blocks", database=database()) as blocks:
            with blocks.transaction(Message(self.topic(), b"1"), session=connection):
                Order.objects.create(number=1)
            with contextlib.suppress(KeyError), blocks.transaction(Message(self.topic(), b"2"), session=connection):
                Order.objects.create(number=2)
                raise KeyError
            with transaction.atomic():
                refused = blocks.transaction(Message(self.topic(), b"3"), session=connection)
                with pytest.raises(errors.InvalidOptionError, match=r"inside transaction.atomic"):
                    refused.__enter__()
            block = blocks.transaction(Message(self.topic(), b"4"), session=connection)
            with pytest.raises(AlreadyEndedError, match="rolled back inside"), block, connection.cursor() as cursor:
                cursor.execute("DELETE FROM txstore_transactions WHERE transaction_id = %s", [block.transaction_id])
        eventually(lambda: bodies(self.topic()) == [b"1"])
        with broker().consumer("readers", self.topic()) as consumer:
            [message] = consumer.poll(timeout=10)
        firsts = []
        for _ in range(2):
            with database().inbox("readers").handle(message, connection) as first:
                firsts.append(first)
                if first:
                    Order.objects.create(number=10)
        assert firsts == [True, False]
        assert sorted(Order.objects.values_list("number", flat=True)) == [1, 10]

    def test_forked_child_opens_the_store_itself(self) -> None:
        with transaction.atomic():
            send(Message(self.topic(), b"1"))
        eventually(lambda: bodies(self.topic()) == [b"1"])
        connections.close_all()  # As a server does before it forks: Django's connections are the parent's.
        held, released = threading.Event(), threading.Event()

        def another_thread() -> None:
            with _process._lock:  # In the middle of a call, when the process forks.
                held.set()
                released.wait()

        thread = threading.Thread(target=another_thread)
        thread.start()
        held.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Newer versions warn of threads.
            child = os.fork()
        if child == 0:
            signal.alarm(30)
            status = 1
            try:
                with transaction.atomic():
                    send(Message(self.topic(), b"2"))
                close()
                status = 0
            finally:
                os._exit(status)
        released.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        eventually(lambda: bodies(self.topic()) == [b"1", b"2"])

    def test_threads_of_a_server_each_have_a_connection(self) -> None:
        failed: list[BaseException] = []

        def request(number: int) -> None:
            try:
                with transaction.atomic():
                    Order.objects.create(number=number)
                    send(Message(self.topic(), b"%02d" % number))
                    if number % 3 == 0:
                        transaction.set_rollback(True)
            except BaseException as error:
                failed.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=request, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        wanted = [number for number in range(12) if number % 3]
        eventually(lambda: bodies(self.topic()) == [b"%02d" % number for number in wanted])
        assert sorted(Order.objects.values_list("number", flat=True)) == wanted

    def test_message_in_an_embedded_store_is_visible_at_once_on_sqlite(self) -> None:
        if connection.vendor != "sqlite":
            return
        options = {**settings.TXSTORE["OPTIONS"], "shared": False}
        with tempfile.TemporaryDirectory() as folder, self.settings(TXSTORE={"STORE": folder, "OPTIONS": options}):
            with transaction.atomic():
                send(Message("orders", b"1"))
                assert bodies("orders") == []
            assert bodies("orders") == [b"1"]
            both = {"STORE": folder, "ADDRESS": "127.0.0.1:1"}
            with self.settings(TXSTORE=both), pytest.raises(ImproperlyConfigured, match="one of STORE and ADDRESS"):
                send(Message("orders", b"2"))

    def test_command_and_admin(self) -> None:
        with transaction.atomic():
            send(Message(self.topic(), b"waits", tags="paid"))
            # A row of another process, with owner 0, for a log that nobody forwards to.
            with connection.cursor() as cursor:
                cursor.execute("UPDATE txstore_outbox SET destination = destination + 1, id = id & 68719476735")
        User.objects.create_superuser("admin", password="admin")
        self.client.login(username="admin", password="admin")
        page = self.client.get("/admin/txstore/waitingmessage/")
        assert page.status_code == 200
        assert self.topic() in page.content.decode()
        assert self.client.get("/admin/txstore/waitingmessage/add/").status_code == 403
        with connection.cursor() as cursor:
            cursor.execute("UPDATE txstore_outbox SET destination = destination - 1")
        out, handler = io.StringIO(), signal.getsignal(signal.SIGINT)
        call_command("txstore_forward", "--once", stdout=out)
        assert signal.getsignal(signal.SIGINT) == handler
        assert "forwards messages of Database(Django's database 'default')" in out.getvalue()
        eventually(lambda: bodies(self.topic()) == [b"waits"])
        # The row is deleted after the message is durable.
        eventually(lambda: producer().outbox_status().rows == 0)


class RolledBack(TestCase):  # type: ignore[misc]
    """Within the transaction of a TestCase, which rolls back."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        producer()  # Reads the database's name, before a test's transaction locks SQLite.

    def test_messages_of_the_open_transaction_are_listed(self) -> None:
        Order.objects.create(number=1)
        with transaction.atomic():
            send(Message("never", b"1", tags="paid"))
        with self.captureOnCommitCallbacks(execute=True):
            send(Message("never", b"2"))
        assert [message.body for message in database().pending(connection)] == [b"1", b"2"]
        assert bodies("never") == []

    def test_nothing_of_another_test_is_there(self) -> None:
        assert (Order.objects.count(), database().pending(connection), bodies("never")) == (0, [], [])


class Migrations(TestCase):  # type: ignore[misc]
    """The app's migration and its model."""

    def test_model_and_migration_agree(self) -> None:
        call_command("makemigrations", "txstore", "--check", "--dry-run", stdout=io.StringIO())
