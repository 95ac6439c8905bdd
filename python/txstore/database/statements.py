"""Statements: the tables, and all SQL that uses them.

In:     the names of drivers' parameter styles.
Out:    the same text for SQLite and PostgreSQL, and for MariaDB one that is derived from it, or given.
Always: the row of a local transaction is inserted once and never changed. A row is inserted only if the identity row
        exists, which says that checks read this database, and since when rows are kept.
Not here: who executes the SQL, and when.

::

    txstore_transactions    transaction_id      outcome                       created_ms
                            <id>                committed | rolled_back       when it was written
                            txstore.identity    a random name of the database rows older than this were cleaned
                            txstore.version     the version of all tables     never: no cleaning removes it
                            txstore.cleaned     MariaDB: that of the identity row, which is never locked so
                            txstore.log.<addr>  which log a remote broker has never, too
    txstore_inbox           consumer_group, message_id                        when it was handled
    txstore_outbox          id, destination     message                       parked
                            whose row, what log as OutboxRow encodes it       why it cannot be sent; NULL: it waits
    txstore_sent            id, destination     message                       sent_ms: by the database's clock
                            the same, of rows that were sent, if the `Database` keeps them
"""

import re
import zlib
from collections.abc import Iterable

__all__ = [
    "CLEAN",
    "CLEAN_INBOX",
    "COMMITTED",
    "DDL",
    "DDL_BY_DIALECT",
    "DDL_MARIADB",
    "DDL_SQLITE",
    "ROLLED_BACK",
    "UPDATE_BY_DIALECT",
    "Statement",
    "delete_from_outbox",
    "finish",
    "is_duplicate",
]

_TABLE, _INBOX, _OUTBOX = "txstore_transactions", "txstore_inbox", "txstore_outbox"
_SENT = "txstore_sent"
_IDENTITY, _VERSION, _CLEANED = "txstore.identity", "txstore.version", "txstore.cleaned"
VERSION = 2
"""The version of the tables. Version 1 had no row with its version."""
COMMITTED, ROLLED_BACK = "committed", "rolled_back"
_SKIPS = " ON CONFLICT DO NOTHING"

_OUTBOX_COLUMNS = (
    "id {number} NOT NULL PRIMARY KEY, destination BIGINT NOT NULL, message {binary} NOT NULL, "
    "message_group VARCHAR(255), group_seq BIGINT, parked VARCHAR(1000)"
)
_OUTBOX_GROUPS = (
    f"CREATE INDEX IF NOT EXISTS {_OUTBOX}_groups ON {_OUTBOX} (message_group, group_seq) "
    "WHERE message_group IS NOT NULL"
)
_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (transaction_id VARCHAR(255) NOT NULL PRIMARY KEY, "
    "outcome VARCHAR(64) NOT NULL, created_ms BIGINT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {_INBOX} (consumer_group VARCHAR(255) NOT NULL, message_id VARCHAR(255) NOT NULL, "
    "created_ms BIGINT NOT NULL, PRIMARY KEY (consumer_group, message_id))",
)
UPDATE = (
    f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
    f"VALUES ('{_VERSION}', '{VERSION}', {2**63 - 1}) ON CONFLICT DO NOTHING"
)
"""Updates tables of version 1. Its time is later than any that programs of version 1 clean."""
_OUTBOX_TABLE = f"CREATE TABLE IF NOT EXISTS {_OUTBOX} ({_OUTBOX_COLUMNS})"
_SENT_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {_SENT} (id {{number}} NOT NULL PRIMARY KEY, destination BIGINT NOT NULL, "
    "message {binary} NOT NULL, sent_ms BIGINT NOT NULL)"
)
_SENT_TIMES = f"CREATE INDEX IF NOT EXISTS {_SENT}_times ON {_SENT} (sent_ms, id)"

DDL: tuple[str, ...] = (
    *_TABLES,
    _OUTBOX_TABLE.format(number="BIGINT", binary="BYTEA"),
    _OUTBOX_GROUPS,
    _SENT_TABLE.format(number="BIGINT", binary="BYTEA"),
    _SENT_TIMES,
    UPDATE,
)
"""The SQL of `create_table()` for PostgreSQL, for migrations. Skips what exists, and updates tables of version 1."""
DDL_SQLITE: tuple[str, ...] = (
    *(f"{sql} WITHOUT ROWID" for sql in _TABLES),
    _OUTBOX_TABLE.format(number="INTEGER", binary="BLOB"),
    _OUTBOX_GROUPS,
    _SENT_TABLE.format(number="INTEGER", binary="BLOB"),
    _SENT_TIMES,
    UPDATE,
)
"""The same for SQLite. Each row is stored in one B-tree instead of two; one with a message by its number, because
WITHOUT ROWID would put each body of more than a kilobyte on a page of its own."""

_INNODB = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin"
_UPDATE_MARIADB = (
    f"INSERT IGNORE INTO {_TABLE} (transaction_id, outcome, created_ms) "
    f"VALUES ('{_VERSION}', '{VERSION}', {2**63 - 1}), ('{_CLEANED}', '', 0)"
)
DDL_MARIADB: tuple[str, ...] = (
    *(f"{sql} {_INNODB}" for sql in _TABLES),
    f"{_OUTBOX_TABLE.format(number='BIGINT', binary='LONGBLOB')[:-1]}, "
    f"KEY {_OUTBOX}_groups (message_group, group_seq)) {_INNODB}",
    f"{_SENT_TABLE.format(number='BIGINT', binary='LONGBLOB')[:-1]}, KEY {_SENT}_times (sent_ms, id)) {_INNODB}",
    _UPDATE_MARIADB,
)
"""The same for MariaDB. Names and ids are compared byte by byte, whatever the database's own collation is."""
DDL_BY_DIALECT = {"postgresql": DDL, "sqlite": DDL_SQLITE, "mariadb": DDL_MARIADB}
UPDATE_BY_DIALECT = {"postgresql": UPDATE, "sqlite": UPDATE, "mariadb": _UPDATE_MARIADB}


def _json_table(ids: str) -> str:
    """Returns MariaDB's table of a JSON list."""
    return f"JSON_TABLE({ids}, '$[*]' COLUMNS (id BIGINT PATH '$')) AS finished"


class Statement:
    """One statement with named parameters, in the drivers' parameter styles. `mariadb` is the text for MariaDB, if it
    cannot be derived, `sqlite` that for SQLite, if another one takes less time."""

    __slots__ = (
        "changes",
        "dollar",
        "mariadb",
        "mariadb_named",
        "name",
        "named",
        "numbered",
        "order",
        "pyformat",
        "skips",
        "sqlite",
    )

    def __init__(self, text: str, mariadb: str | None = None, sqlite: str | None = None) -> None:
        self.changes: bool = text.startswith("INSERT") and "RETURNING" not in text
        """Whether it writes rows and returns none."""
        self.skips: bool = text.endswith(_SKIPS)
        """Whether it inserts nothing if the key exists. On MariaDB, whose INSERT IGNORE would also cut off values, that
        is an error of the driver, which `is_duplicate` finds."""
        self.named: str = text
        """With `:name`, for SQLAlchemy."""
        self.sqlite: str = sqlite or text
        """With `:name`, for SQLite."""
        self.pyformat: str = re.sub(r":(\w+)", r"%(\1)s", text)
        """With `%(name)s`, for psycopg."""
        self.mariadb_named: str = mariadb or _for_mariadb(text)
        self.mariadb: str = re.sub(r":(\w+)", r"%(\1)s", self.mariadb_named)
        """With `%(name)s`, for the drivers of MariaDB."""
        self.order: tuple[str, ...] = tuple(dict.fromkeys(re.findall(r":(\w+)", text)))
        self.dollar: str = re.sub(r":(\w+)", self._numbered, text)
        """With `$1`, for asyncpg, with the values in `order`."""
        self.numbered: bytes = self.dollar.encode()
        """The same for PostgreSQL itself."""
        self.name: bytes = b"txstore_%08x" % zlib.crc32(self.numbered)
        """The name under which it is prepared."""

    def _numbered(self, found: re.Match[str]) -> str:
        """A message has no cast in the text, because SQLite would read the name of PostgreSQL's type as a number's."""
        return f"${self.order.index(found[1]) + 1}{'::bytea' if found[1] == 'message' else ''}"


def _for_mariadb(text: str) -> str:
    """Derives the text for MariaDB, whose drivers write the values into the text."""
    return re.sub(r"CAST\((:\w+) AS \w+(?:\(\d+\))?\)", r"\1", text).removesuffix(_SKIPS)


def is_duplicate(error: BaseException) -> bool:
    """Tells whether a driver of MariaDB says that a key exists."""
    return getattr(error, "args", ())[:1] == (1062,)


def _insert(outcome: str, more: str = "") -> str:
    """Inserts a row if the identity row exists. The casts are for drivers that leave types to the server."""
    return (
        f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
        f"SELECT CAST(:transaction_id AS VARCHAR(255)), '{outcome}', CAST(:now_ms AS BIGINT) FROM {_TABLE} "
        f"WHERE transaction_id = '{_IDENTITY}' AND outcome = CAST(:identity AS VARCHAR(64)){more} "
        "ON CONFLICT DO NOTHING"
    )


# On MariaDB, INSERT … SELECT locks the rows that it reads until the user's transaction ends, for others to read. So
# nothing ever changes the identity row there, and what was cleaned is in a row of its own.
_NOT_CLEANED = (
    f" AND NOT EXISTS (SELECT 1 FROM {_TABLE} AS cleaned WHERE cleaned.transaction_id = '{_CLEANED}' "
    "AND cleaned.created_ms > :born_ms)"
)
INSERT_COMMITTED = Statement(_insert(COMMITTED))
INSERT_ROLLED_BACK = Statement(
    _insert(ROLLED_BACK, " AND created_ms <= CAST(:born_ms AS BIGINT)"),
    "SET STATEMENT innodb_lock_wait_timeout = 5 FOR " + _for_mariadb(_insert(ROLLED_BACK, _NOT_CLEANED)),
)
SELECT_OUTCOME = Statement(f"SELECT outcome FROM {_TABLE} WHERE transaction_id = CAST(:transaction_id AS VARCHAR(255))")
SELECT_OUTCOME_NOW = Statement(SELECT_OUTCOME.named, f"{SELECT_OUTCOME.mariadb_named} LOCK IN SHARE MODE")
"""Finds a row that another transaction has committed. MariaDB's plain SELECT may read an older snapshot."""
MUST_BE_COMMITTED = Statement(
    f"SELECT 1 / count(*) FROM {_TABLE} WHERE transaction_id = :transaction_id AND outcome = '{COMMITTED}'"
)
"""Fails if the row is missing. Sent together with COMMIT, it prevents a commit without the row."""
INSERT_IDENTITY = Statement(
    f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
    f"VALUES ('{_IDENTITY}', CAST(:identity AS VARCHAR(64)), 0) ON CONFLICT DO NOTHING"
)
SELECT_IDENTITY = Statement(f"SELECT outcome FROM {_TABLE} WHERE transaction_id = '{_IDENTITY}'")
FORGET_LOG = Statement(f"DELETE FROM {_TABLE} WHERE transaction_id = CAST(:name AS VARCHAR(255))")
REMEMBER_LOG = Statement(
    f"INSERT INTO {_TABLE} (transaction_id, outcome, created_ms) "
    f"VALUES (CAST(:name AS VARCHAR(255)), CAST(:log AS VARCHAR(64)), {2**63 - 1}) ON CONFLICT DO NOTHING"
)
SELECT_VERSION = Statement(f"SELECT outcome FROM {_TABLE} WHERE transaction_id = '{_VERSION}'")
_FORGET_BEFORE = (
    f"UPDATE {_TABLE} SET created_ms = CAST(:before_ms AS BIGINT) "
    f"WHERE transaction_id = '{_IDENTITY}' AND created_ms < CAST(:before_ms AS BIGINT)"
)
FORGET_BEFORE = Statement(_FORGET_BEFORE, _for_mariadb(_FORGET_BEFORE.replace(_IDENTITY, _CLEANED)))
_NOT_OURS = f"transaction_id NOT IN ('{_IDENTITY}', '{_VERSION}', '{_CLEANED}')"
# There is no index by age: every row would pay for it, and cleaning runs once an hour. So cleaning walks along the key:
# it finds the next part with old rows, then deletes them.
NEXT_TO_CLEAN = Statement(
    f"SELECT max(transaction_id) FROM (SELECT transaction_id FROM {_TABLE} "
    "WHERE transaction_id > CAST(:after AS VARCHAR(255)) AND created_ms < CAST(:before_ms AS BIGINT) "
    f"AND {_NOT_OURS} ORDER BY transaction_id LIMIT CAST(:rows AS BIGINT)) AS old"
)
CLEAN = Statement(
    f"DELETE FROM {_TABLE} WHERE transaction_id > CAST(:after AS VARCHAR(255)) "
    "AND transaction_id <= CAST(:last AS VARCHAR(255)) AND created_ms < CAST(:before_ms AS BIGINT) "
    f"AND {_NOT_OURS}"
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

# The outbox. A row is inserted in the user's own transaction, and only if checks and the forwarder read this database.
_FROM_IDENTITY = f"FROM {_TABLE} WHERE transaction_id = '{_IDENTITY}' AND outcome = CAST(:identity AS VARCHAR(64))"
# SQLite prepares INSERT … SELECT for many rows, and copies each page that it changes. So there a NULL skips the row.
_SQLITE_DESTINATION = f"(SELECT :destination {_FROM_IDENTITY.replace('CAST(:identity AS VARCHAR(64))', ':identity')})"
INSERT_OUTBOX = Statement(
    f"INSERT INTO {_OUTBOX} (id, destination, message) "
    f"SELECT CAST(:id AS BIGINT), CAST(:destination AS BIGINT), :message {_FROM_IDENTITY}",
    sqlite=f"INSERT OR IGNORE INTO {_OUTBOX} (id, destination, message) VALUES (:id, {_SQLITE_DESTINATION}, :message)",
)
_SAME_GROUP = (
    f"FROM {_OUTBOX} WHERE message_group = CAST(:message_group AS VARCHAR(255)) "
    "AND destination = CAST(:destination AS BIGINT)"
)
_INSERT_GROUP = (
    f"INSERT INTO {_OUTBOX} (id, destination, message, message_group, group_seq) "
    "SELECT CAST(:id AS BIGINT), CAST(:destination AS BIGINT), :message, CAST(:message_group AS VARCHAR(255)), "
    f"{{sequence}} {_FROM_IDENTITY} RETURNING group_seq"
)
INSERT_OUTBOX_GROUP = Statement(
    _INSERT_GROUP.format(sequence=f"(SELECT coalesce(max(group_seq), 0) + 1 {_SAME_GROUP})"),
    _for_mariadb(_INSERT_GROUP.format(sequence=f"UUID_SHORT() & {2**56 - 1}")),
    f"INSERT OR IGNORE INTO {_OUTBOX} (id, destination, message, message_group, group_seq) VALUES (:id, "
    f"{_SQLITE_DESTINATION}, :message, :message_group, (SELECT coalesce(max(group_seq), 0) + 1 {_SAME_GROUP})) "
    "RETURNING group_seq",
)
"""Returns 1 if no earlier row of the message group is left. On MariaDB, reading the group's largest number would lock
the gap after it, and the senders of a group would deadlock. There it is the server's own counter, without the server's
number: the second in which it was started, then how often it was called."""
_OWN = "id BETWEEN CAST(:first AS BIGINT) AND CAST(:last AS BIGINT) AND parked IS NULL"
SELECT_OUTBOX = Statement(
    f"SELECT id, message, message_group, group_seq FROM {_OUTBOX} WHERE {_OWN} ORDER BY id LIMIT CAST(:rows AS BIGINT)"
)
SELECT_IDS = Statement(f"SELECT id FROM {_OUTBOX} WHERE {_OWN} ORDER BY id LIMIT CAST(:rows AS BIGINT)")
SELECT_IDS_SQLITE = Statement(f"SELECT CAST(group_concat(id) AS BLOB) FROM ({SELECT_IDS.named})")
"""The same in one value."""
SELECT_EARLIER = Statement(
    f"SELECT id, group_seq, parked {_SAME_GROUP} AND group_seq < CAST(:group_seq AS BIGINT) ORDER BY group_seq"
)
SELECT_GROUP = Statement(
    f"SELECT id, message, message_group, group_seq {_SAME_GROUP} "
    "AND group_seq BETWEEN CAST(:first AS BIGINT) AND CAST(:last AS BIGINT) "
    "ORDER BY group_seq LIMIT CAST(:rows AS BIGINT)"
)
NEXT_ROW = Statement(
    f"SELECT id, destination FROM {_OUTBOX} WHERE id > CAST(:after AS BIGINT) AND id <= CAST(:last AS BIGINT) "
    "ORDER BY id LIMIT 1"
)
_WAITING = "destination = CAST(:destination AS BIGINT) AND parked IS NULL"
COUNT_WAITING = Statement(f"SELECT count(*) FROM {_OUTBOX} WHERE {_WAITING}")
FIRST_WAITING = Statement(
    f"SELECT id, message FROM {_OUTBOX} WHERE id > CAST(:after AS BIGINT) AND {_WAITING} ORDER BY id LIMIT 1"
)
SQLITE_FILES = Statement("PRAGMA database_list")
# `xmin` has the lower half of a transaction's number. That of a savepoint is above that of the transaction around it.
_ABOVE = (
    "mod(CAST(CAST(xmin AS VARCHAR) AS BIGINT) - mod(txid_current_if_assigned(), 4294967296) + 4294967296, 4294967296)"
)
SELECT_OWN_POSTGRES = Statement(
    f"SELECT id, message FROM {_OUTBOX} WHERE parked IS NULL AND CASE WHEN {_ABOVE} < 2147483648 "
    f"THEN txid_status(txid_current_if_assigned() + {_ABOVE}) = 'in progress' ELSE false END"
)
"""A row that is visible although its transaction is in progress was inserted by the session's own, or a savepoint."""
SQLITE_JOURNAL, SQLITE_SYNCHRONOUS = Statement("PRAGMA journal_mode"), Statement("PRAGMA synchronous")
POSTGRES_SYNCHRONOUS = Statement("SHOW synchronous_commit")
MARIADB_SYNCHRONOUS = Statement("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog")
MARIADB_PACKET = Statement("SELECT @@max_allowed_packet")
MARIADB_ENGINES = Statement(
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = database() "
    f"AND table_name IN ('{_TABLE}', '{_INBOX}', '{_OUTBOX}', '{_SENT}') AND engine <> 'InnoDB'"
)
SELECT_WAITING = Statement(f"SELECT id, message FROM {_OUTBOX} WHERE parked IS NULL")
SELECT_NUMBERS = Statement(f"SELECT id FROM {_OUTBOX}")
READ_UNCOMMITTED = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
"""MariaDB: for the next transaction of the connection."""
PARK = Statement(f"UPDATE {_OUTBOX} SET parked = CAST(:parked AS VARCHAR(1000)) WHERE id = CAST(:id AS BIGINT)")
NEXT_ROWS = Statement(
    f"SELECT id, message, parked FROM {_OUTBOX} WHERE id > CAST(:after AS BIGINT) ORDER BY id "
    "LIMIT CAST(:rows AS BIGINT)"
)
UNPARK = Statement(f"UPDATE {_OUTBOX} SET parked = NULL WHERE id = CAST(:id AS BIGINT) AND parked IS NOT NULL")
DROP_PARKED = Statement(f"DELETE FROM {_OUTBOX} WHERE id = CAST(:id AS BIGINT) AND parked IS NOT NULL")
LOCK_FREE = Statement(
    f"SELECT id FROM {_OUTBOX} WHERE id IN (SELECT CAST(value AS BIGINT) "
    "FROM json_array_elements_text(CAST(:ids AS JSON)) AS finished(value)) FOR UPDATE SKIP LOCKED",
    f"SELECT sent.id FROM {_json_table(':ids')} STRAIGHT_JOIN {_OUTBOX} AS sent FORCE INDEX (PRIMARY) "
    "ON sent.id = finished.id FOR UPDATE SKIP LOCKED",
)
"""Locks those of some rows, a JSON list of their ids, that no other transaction has locked. Not for SQLite."""
NOT_DURABLE = Statement("SET LOCAL synchronous_commit = off")
"""PostgreSQL: a deletion need not be durable, because a row that returns is found in the log."""


# What a `Database` keeps of rows that were sent.
_NOW_MS = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "mariadb": "UNIX_TIMESTAMP() * 1000",  # Without an argument it is not affected by time zones.
}
MUST_KEEP_SENT = Statement(f"SELECT count(*) FROM {_SENT} WHERE id < 0")
"""Fails if the table is missing."""
_EXPIRED = (
    f"SELECT id FROM {_SENT} WHERE sent_ms < {{now}} - CAST(:keep_ms AS BIGINT) "
    "ORDER BY sent_ms, id LIMIT CAST(:rows AS BIGINT) FOR UPDATE SKIP LOCKED"
)
SELECT_EXPIRED = Statement(
    _EXPIRED.format(now=_NOW_MS["postgresql"]), _for_mariadb(_EXPIRED.format(now=_NOW_MS["mariadb"]))
)
"""Rows that were kept for long enough, and that nobody else removes. Not for SQLite, which has one writer."""
SELECT_SENT = Statement(
    f"SELECT id, destination, message, sent_ms FROM {_SENT} WHERE sent_ms >= CAST(:after_ms AS BIGINT) "
    "AND (sent_ms > CAST(:after_ms AS BIGINT) OR id > CAST(:after AS BIGINT)) "
    "ORDER BY sent_ms, id LIMIT CAST(:rows AS BIGINT)"
)
SELECT_COMMITTED = Statement(
    f"SELECT transaction_id, created_ms FROM {_TABLE} WHERE transaction_id > CAST(:after AS VARCHAR(255)) "
    f"AND outcome = '{COMMITTED}' AND created_ms >= CAST(:since_ms AS BIGINT) "
    "ORDER BY transaction_id LIMIT CAST(:rows AS BIGINT)"
)


def delete_from_outbox(ids: Iterable[int], dialect: str) -> str:
    """Returns the statement that deletes finished rows."""
    return _delete(_OUTBOX, ids, dialect)


def delete_from_sent(ids: Iterable[int], dialect: str) -> str:
    """Returns the statement that deletes kept rows."""
    return _delete(_SENT, ids, dialect)


def finish(ids: Iterable[int], dialect: str, keep_ms: int | None) -> tuple[str, ...]:
    """Returns the statements that delete finished rows. With `keep_ms` they move to the table of sent rows; on SQLite,
    rows that were kept for that time are removed there."""
    known = sorted(ids)
    delete = delete_from_outbox(known, dialect)
    if keep_ms is None or not known:
        return (delete,)
    ignore, skips = (" IGNORE", "") if dialect == "mariadb" else ("", _SKIPS)
    source = f"{_finished(known)} STRAIGHT_JOIN {_OUTBOX} AS sent" if dialect == "mariadb" else f"{_OUTBOX} AS sent"
    where = "sent.id = finished.id" if dialect == "mariadb" else _among("sent.id", known)
    keep = (
        f"INSERT{ignore} INTO {_SENT} (id, destination, message, sent_ms) "
        f"SELECT sent.id, sent.destination, sent.message, {_NOW_MS[dialect]} FROM {source} WHERE {where}{skips}"
    )
    if dialect != "sqlite":
        return keep, delete
    # More than come, so that those of a busier time are removed, too.
    expire = (
        f"DELETE FROM {_SENT} WHERE id IN (SELECT id FROM {_SENT} WHERE sent_ms < {_NOW_MS[dialect]} - {keep_ms:d} "
        f"ORDER BY sent_ms, id LIMIT {max(100, 2 * len(known))})"
    )
    return keep, delete, expire


def _delete(table: str, ids: Iterable[int], dialect: str) -> str:
    if dialect == "mariadb":  # With IN (…), it may scan the whole table, and wait for rows of open transactions.
        return (
            f"DELETE sent FROM {_finished(ids)} STRAIGHT_JOIN {table} AS sent FORCE INDEX (PRIMARY) "
            "ON sent.id = finished.id"
        )
    return f"DELETE FROM {table} WHERE {_among('id', ids)}"


def _among(column: str, ids: Iterable[int]) -> str:
    """Returns the condition that finds rows by id. Ids without gaps are a range, which takes the database less time
    than a list."""
    known = sorted(set(ids))
    if known and known[-1] - known[0] == len(known) - 1:
        return f"{column} BETWEEN {known[0]:d} AND {known[-1]:d}"
    return f"{column} IN ({_listed(known)})"


def _finished(ids: Iterable[int]) -> str:
    return _json_table(f"'[{_listed(ids)}]'")


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(f"{row_id:d}" for row_id in ids)
