"""Arguments that many commands take: the store, the topic, the limit, the time.

In:     text.
Out:    checked values.
Always: a name means the same in every command. Shell completion finds topics and groups in the store at PATH.
Not here: arguments of a single command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import typer

from txstore.broker import EmbeddedBroker
from txstore.errors import InvalidOptionError, TxStoreError

__all__ = ["AsJson", "GroupName", "Limit", "StorePath", "Tags", "TopicName", "moment", "noun"]

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _known(
    names: Callable[[EmbeddedBroker], Iterable[str]],
) -> Callable[[Any, list[str], str], list[str | tuple[str, str]]]:
    """Completes with names from the store at PATH; with nothing if it cannot be read."""

    def complete(ctx: typer.Context, args: list[str], incomplete: str) -> list[str | tuple[str, str]]:
        from txstore.inspection.opening import reading_broker

        path = ctx.params.get("path")
        if not isinstance(path, str):
            return []
        try:
            with reading_broker(path) as broker:
                return [name for name in names(broker) if name.startswith(incomplete)]
        except (TxStoreError, OSError):
            return []

    return complete


StorePath: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="The store's directory.")]
TopicName: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic of the store.", autocompletion=_known(EmbeddedBroker.topics))
]
GroupName: TypeAlias = Annotated[
    str, typer.Argument(metavar="GROUP", help="A consumer group.", autocompletion=_known(EmbeddedBroker.groups))
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N.")]
Tags: TypeAlias = Annotated[
    str | None, typer.Option("--tags", metavar="TAGS", help="Only messages with one of these tags: 'a || b'.")
]


def noun(text: str | None = None) -> typer.Typer:
    """Creates the app that a noun's verbs are added to; `text` is its help. A command without verbs has no text."""
    # Plain help, as for the root.
    return typer.Typer(help=text, no_args_is_help=text is not None, add_completion=False, rich_markup_mode=None)


def moment(text: str, option: str) -> datetime:
    """Parses a time: `2026-01-31 12:00` (UTC unless it names a zone), or an age such as `15m`."""
    ago = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text.strip())
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise InvalidOptionError(
            f"{option} {text!r} is not a time\nhint: 2026-01-31T12:00, 2026-01-31T12:00+02:00, or 15m, 2h, 1d ago",
            option=option,
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
