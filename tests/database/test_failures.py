"""Guards the table of failures by database in docs/operate/failures.md: with each driver and with Django, a message
follows its transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.database.conftest import DJANGO_KINDS, Kind, bodies, new_kind
from tests.database.test_outbox import execute, session_of
from tests.waiting import eventually
from txstore import EmbeddedBroker, InvalidOptionError, Message
from txstore.database import OutboxProducer

KINDS = ["sqlite3", "psycopg", pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix), *DJANGO_KINDS]
SERVERS = ["psycopg", pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix), *DJANGO_KINDS[1:]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as made:
        yield made


def server_of(kind: Kind) -> str:
    if "://" not in kind.address:
        return "sqlite"
    return "postgresql" if kind.address.startswith("postgresql") else "mariadb"


def settled(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> list[bytes]:
    """The messages after a last one, which a new session sends."""
    with session_of(kind) as session:
        producer.send(Message("orders", b"last"), session=session)
        session.commit()
    eventually(lambda: b"last" in bodies(broker))
    eventually(lambda: producer.outbox_status().rows == 0)
    return sorted(body for body in bodies(broker) if body != b"last")


def test_statement_that_fails(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    """On PostgreSQL it fails the whole transaction, elsewhere it alone is undone."""
    with session_of(kind) as session:
        producer.send(Message("orders", b"1"), session=session)
        with pytest.raises(Exception, match="nowhere"):
            execute(session, "SELECT * FROM nowhere")
        if server_of(kind) == "postgresql":
            with pytest.raises(Exception, match=r"(?i)transaction"):
                producer.send(Message("orders", b"2"), session=session)
            session.rollback()
        else:
            producer.send(Message("orders", b"2"), session=session)
            session.commit()
    expected = [] if server_of(kind) == "postgresql" else [b"1", b"2"]
    assert settled(broker, producer, kind) == expected


def test_tables_made_inside_the_transaction(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    """MariaDB commits what comes before."""
    with session_of(kind) as session:
        producer.send(Message("orders", b"1"), session=session)
        execute(session, "CREATE TABLE made (number INTEGER)")
        session.rollback()
    expected = [b"1"] if server_of(kind) == "mariadb" else []
    assert settled(broker, producer, kind) == expected


@pytest.mark.parametrize("kind", SERVERS, indirect=True)
def test_connections_that_break(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    """The server ends the connections of the session and of the forwarder. Nothing of the transaction is kept."""
    with session_of(kind) as session:
        producer.send(Message("orders", b"before"), session=session)
        session.commit()
    eventually(lambda: bodies(broker) == [b"before"])
    with contextlib.suppress(Exception), session_of(kind) as session:  # Closing it may fail, too.
        producer.send(Message("orders", b"broken"), session=session)
        break_connections(kind)
        with pytest.raises(Exception, match=r"(?i)server|connection|terminat|gone"):
            session.commit()
    assert settled(broker, producer, kind) == [b"before"]


def break_connections(kind: Kind) -> None:
    with contextlib.closing(kind.connect()) as other:
        if server_of(kind) == "postgresql":
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        found = other.execute(
            "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        )
        for (number,) in found.fetchall():
            with contextlib.suppress(Exception):  # It has just ended.
                other.execute(f"KILL {number}")


def test_failed_atomic_of_django_sends_nothing(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    """After a failure inside `atomic()`, Django refuses statements, and so does `send`."""
    if not kind.is_django:
        pytest.skip("other drivers leave the decision to the program")
    from django.db import IntegrityError, connections, transaction

    using: Any = kind.alias
    with transaction.atomic(using=using):
        producer.send(Message("orders", b"1"), session=connections[using])
        with contextlib.suppress(IntegrityError), transaction.atomic(using=using, savepoint=False):
            raise IntegrityError
        with pytest.raises(InvalidOptionError, match="transaction has failed"):
            producer.send(Message("orders", b"2"), session=connections[using])
    connections[using].close()
    assert settled(broker, producer, kind) == []
