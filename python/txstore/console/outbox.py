"""The page `outbox`: messages that wait in databases, those that cannot be sent, and actions on these."""

from collections.abc import Mapping
from typing import Any

from txstore.console.page import ROWS, Action, Asked, Done, Page
from txstore.console.text import link, shown

__all__ = ["ACTIONS", "LIST"]

_LIST = "/outbox"


def _list(asked: Asked) -> Mapping[str, Any]:
    known = asked.operator.outbox_facts()
    database = asked.get("database")
    rows = None if database is None else asked.operator.outbox_rows(database, ROWS + 1)
    return {
        "known": known,
        "database": database,
        "rows": None if rows is None else rows[:ROWS],
        "has_more": rows is not None and len(rows) > ROWS,
    }


def _retry(asked: Asked) -> Done:
    database, name = asked.need("database"), asked.need("id")
    asked.operator.outbox_retry(database, name)
    return Done(f"message {shown(name)} will be sent", link(_LIST, database=database))


def _drop(asked: Asked) -> Done:
    database, name = asked.need("database"), asked.need("id")
    asked.operator.outbox_drop(database, name)
    return Done(f"message {shown(name)} is dropped", link(_LIST, database=database))


LIST: Page = Page(_LIST, "Outbox", "outbox.html", _list, is_admin_only=True)
ACTIONS: tuple[Action, ...] = (
    Action(
        f"{_LIST}/retry",
        "retry",
        ("database", "id"),
        lambda _: "The row is no longer parked: the forwarder of a running program sends its message.",
        _retry,
    ),
    Action(
        f"{_LIST}/drop",
        "drop",
        ("database", "id"),
        lambda _: "The row is deleted, and its message is never sent. This cannot be undone.",
        _drop,
    ),
)
