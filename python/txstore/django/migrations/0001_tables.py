"""Creates txstore's tables, and the row that names the database, so that no later transaction waits for it."""

import uuid
from typing import Any

from django.db import migrations, models

from txstore.database.django import dialect_of
from txstore.database.statements import DDL_BY_DIALECT, INSERT_IDENTITY, is_duplicate

_TABLES = ("txstore_transactions", "txstore_inbox", "txstore_outbox", "txstore_sent")


def create(apps: Any, editor: Any) -> None:
    """Creates the tables, unless they exist."""
    dialect = dialect_of(editor.connection)
    for sql in DDL_BY_DIALECT[dialect]:
        editor.execute(sql, None)
    insert = INSERT_IDENTITY.mariadb if dialect == "mariadb" else INSERT_IDENTITY.pyformat
    try:
        editor.execute(insert, {"identity": uuid.uuid4().hex})
    except Exception as error:
        if not is_duplicate(error):
            raise


def drop(apps: Any, editor: Any) -> None:
    """Drops the tables, with all messages that wait."""
    for table in _TABLES:
        editor.execute(f"DROP TABLE {table}", None)


class Migration(migrations.Migration):  # type: ignore[misc]
    """The first migration."""

    initial = True
    operations = (
        migrations.RunPython(create, drop, atomic=False),  # MariaDB commits each statement of this kind.
        migrations.CreateModel(
            name="WaitingMessage",
            fields=(
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("destination", models.BigIntegerField()),
                ("message", models.BinaryField()),
                ("message_group", models.CharField(max_length=255, null=True)),
                ("group_seq", models.BigIntegerField(null=True)),
                ("parked", models.CharField(max_length=1000, null=True)),
            ),
            options={"db_table": "txstore_outbox", "ordering": ("id",), "managed": False},
        ),
    )
