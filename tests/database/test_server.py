"""Guards the servers of the tests: what a test leaves in its database must not reach another test."""

from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.database.mariadb_server import connected
from tests.database.server import Server

LEFT = [
    "INSERT INTO orders VALUES (7, 'of another test')",
    "ALTER TABLE orders ADD COLUMN state VARCHAR(20)",
    "CREATE TABLE customers (id INTEGER PRIMARY KEY)",
    "CREATE TABLE bills (customer INTEGER REFERENCES customers (id))",
    "CREATE VIEW unpaid AS SELECT * FROM bills",
]
COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema"


def there(connection: Any, schemas: str) -> list[tuple[str, str]]:
    return sorted(tuple(row) for row in connection.execute(f"{COLUMNS} {schemas}").fetchall())


@pytest.mark.parametrize(
    ("name", "connect", "schemas", "left"),
    [
        (
            "postgres",
            psycopg.connect,
            "NOT IN ('pg_catalog', 'information_schema')",
            [*LEFT, "CREATE SCHEMA shop CREATE TABLE taxes (id INTEGER)"],
        ),
        pytest.param("mariadb", connected, "= database()", LEFT, marks=pytest.mark.matrix),
    ],
    ids=["postgres", "mariadb"],
)
def test_database_given_back_has_the_users_table_alone(
    name: str, connect: Any, schemas: str, left: list[str], request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(name)
    own = [("orders", "number"), ("orders", "transaction_id")]
    url = server.url(server.new())
    with closing(connect(url)) as connection:
        assert there(connection, schemas) == own
        for statement in left:
            connection.execute(statement)
        connection.commit()
        assert len(there(connection, schemas)) > len(own)
    server.give_back(url)
    assert server.url(server.new()) == url, "the next test gets it"
    with closing(connect(url)) as connection:
        assert there(connection, schemas) == own
        assert not connection.execute("SELECT * FROM orders").fetchall()
    server.give_back(url)
