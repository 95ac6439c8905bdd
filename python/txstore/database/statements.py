"""Statements: the two tables, and all SQL that uses them.

In:     the names of drivers' parameter styles.
Out:    the same text for SQLite and PostgreSQL.
Always: the row of a local transaction is inserted once and never changed. A row is inserted only if the identity row
        exists, which says that checks read this database, and since when rows are kept.
Not here: who executes the SQL, and when.

::

    txstore_transactions    transaction_id      outcome                       created_ms
                            <id>                committed | rolled_back       when it was written
                            txstore.identity    a random name of the database rows older than this were cleaned
    txstore_inbox           consumer_group, message_id                        when it was handled
"""

import re
import zlib

__all__ = ["CLEAN", "CLEAN_INBOX", "COMMITTED", "DDL", "DDL_SQLITE", "ROLLED_BACK", "Statement"]

_TABLE, _INBOX, _IDENTITY = "txstore_transactions", "txstore_inbox", "txstore.identity"
COMMITTED, ROLLED_BACK = "committed", "rolled_back"

DDL: tuple[str, ...] = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (transaction_id VARCHAR(255) NOT NULL PRIMARY KEY, "
    "outcome VARCHAR(64) NOT NULL, created_ms BIGINT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {_INBOX} (consumer_group VARCHAR(255) NOT NULL, message_id VARCHAR(255) NOT NULL, "
    "created_ms BIGINT NOT NULL, PRIMARY KEY (consumer_group, message_id))",
)
"""The SQL of `create_table()` for PostgreSQL, for migrations. It works in SQLite, too."""
DDL_SQLITE = tuple(f"{sql} WITHOUT ROWID" for sql in DDL)
"""The same for SQLite, where a row is then stored in one B-tree instead of two."""


class Statement:
    """One statement with named parameters, in the drivers' parameter styles."""

    __slots__ = ("changes", "name", "named", "numbered", "order", "pyformat")

    def __init__(self, text: str) -> None:
        self.changes: bool = text.startswith("INSERT")
        """Whether it writes rows and returns none."""
        self.named: str = text
        """With `:name`, for sqlite3 and SQLAlchemy."""
        self.pyformat: str = re.sub(r":(\w+)", r"%(\1)s", text)
        """With `%(name)s`, for psycopg."""
        self.order: tuple[str, ...] = tuple(dict.fromkeys(re.findall(r":(\w+)", text)))
        self.numbered: bytes = re.sub(r":(\w+)", lambda found: f"${self.order.index(found[1]) + 1}", text).encode()
        """With `$1`, for PostgreSQL itself, with the values in `order`."""
        self.name: bytes = b"txstore_%08x" % zlib.crc32(self.numbered)
        """The name under which it is prepared."""


def _insert(outcome: str, more: str = "") -> Statement:
    """Inserts a row if the identity row exists. The casts are for drivers that leave types to the server."""
    return Statement(
        f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
        f"SELECT CAST(:transaction_id AS VARCHAR(255)), '{outcome}', CAST(:now_ms AS BIGINT) FROM {_TABLE} "
        f"WHERE transaction_id = '{_IDENTITY}' AND outcome = CAST(:identity AS VARCHAR(64)){more} "
        "ON CONFLICT DO NOTHING"
    )


INSERT_COMMITTED = _insert(COMMITTED)
INSERT_ROLLED_BACK = _insert(ROLLED_BACK, " AND created_ms <= CAST(:born_ms AS BIGINT)")
SELECT_OUTCOME = Statement(f"SELECT outcome FROM {_TABLE} WHERE transaction_id = CAST(:transaction_id AS VARCHAR(255))")
MUST_BE_COMMITTED = Statement(
    f"SELECT 1 / count(*) FROM {_TABLE} WHERE transaction_id = :transaction_id AND outcome = '{COMMITTED}'"
)
"""Fails if the row is missing. Sent together with COMMIT, it prevents a commit without the row."""
INSERT_IDENTITY = Statement(
    f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
    f"VALUES ('{_IDENTITY}', CAST(:identity AS VARCHAR(64)), 0) ON CONFLICT DO NOTHING"
)
SELECT_IDENTITY = Statement(f"SELECT outcome FROM {_TABLE} WHERE transaction_id = '{_IDENTITY}'")
FORGET_BEFORE = Statement(
    f"UPDATE {_TABLE} SET created_ms = CAST(:before_ms AS BIGINT) "
    f"WHERE transaction_id = '{_IDENTITY}' AND created_ms < CAST(:before_ms AS BIGINT)"
)
# There is no index by age: every row would pay for it, and cleaning runs once an hour. So cleaning walks along the key:
# it finds the next part with old rows, then deletes them.
NEXT_TO_CLEAN = Statement(
    f"SELECT max(transaction_id) FROM (SELECT transaction_id FROM {_TABLE} "
    "WHERE transaction_id > CAST(:after AS VARCHAR(255)) AND created_ms < CAST(:before_ms AS BIGINT) "
    f"AND transaction_id <> '{_IDENTITY}' ORDER BY transaction_id LIMIT CAST(:rows AS BIGINT)) AS old"
)
CLEAN = Statement(
    f"DELETE FROM {_TABLE} WHERE transaction_id > CAST(:after AS VARCHAR(255)) "
    "AND transaction_id <= CAST(:last AS VARCHAR(255)) AND created_ms < CAST(:before_ms AS BIGINT) "
    f"AND transaction_id <> '{_IDENTITY}'"
)
NEXT_GROUP = Statement(f"SELECT min(consumer_group) FROM {_INBOX} WHERE consumer_group > CAST(:after AS VARCHAR(255))")
NEXT_TO_CLEAN_INBOX = Statement(
    f"SELECT max(message_id) FROM (SELECT message_id FROM {_INBOX} "
    "WHERE consumer_group = CAST(:consumer_group AS VARCHAR(255)) AND message_id > CAST(:after AS VARCHAR(255)) "
    "AND created_ms < CAST(:before_ms AS BIGINT) ORDER BY message_id LIMIT CAST(:rows AS BIGINT)) AS old"
)
CLEAN_INBOX = Statement(
    f"DELETE FROM {_INBOX} WHERE consumer_group = CAST(:consumer_group AS VARCHAR(255)) "
    "AND message_id > CAST(:after AS VARCHAR(255)) AND message_id <= CAST(:last AS VARCHAR(255)) "
    "AND created_ms < CAST(:before_ms AS BIGINT)"
)
INSERT_HANDLED = Statement(
    f"INSERT INTO {_INBOX} (consumer_group, message_id, created_ms) VALUES (CAST(:consumer_group AS VARCHAR(255)), "
    "CAST(:message_id AS VARCHAR(255)), CAST(:now_ms AS BIGINT)) ON CONFLICT DO NOTHING"
)
SELECT_HANDLED = Statement(
    f"SELECT message_id FROM {_INBOX} WHERE consumer_group = CAST(:consumer_group AS VARCHAR(255)) "
    "AND message_id = CAST(:message_id AS VARCHAR(255))"
)
WAIT_SHORTLY = Statement("SET LOCAL lock_timeout = '5s'")
"""PostgreSQL: limits how long a check waits for a local transaction in progress. It is asked again later."""
