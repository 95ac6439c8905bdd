"""Arguments that many commands take: the store, the topic, the limit, the time.

In:     text.
Out:    checked values.
Always: a name means the same in every command. Shell completion finds topics and groups in the command's store.
Not here: arguments of a single command.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from txstore.cli.target import SERVER, Operated, Target, reading, target_of
from txstore.errors import InvalidOptionError, TxStoreError
from txstore.selector import Sql

__all__ = [
    "AsJson",
    "Filter",
    "GroupName",
    "Limit",
    "StorePath",
    "StoreTarget",
    "Tags",
    "TopicName",
    "coming",
    "moment",
    "noun",
    "selector_of",
]


def _directory(path: str) -> Target:
    return Target(path)


_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = r"(\d{1,9})(ms|s|m|h|d)"


def _known(
    names: Callable[[Operated], Iterable[str]],
) -> Callable[[Any, list[str], str], list[str | tuple[str, str]]]:
    """Completes with names from the command's store; with nothing if it cannot be read."""

    def complete(ctx: typer.Context, args: list[str], incomplete: str) -> list[str | tuple[str, str]]:
        found = ctx.params.get("path")
        target = Target(found) if isinstance(found, str) else found
        if not isinstance(target, Target):
            return []
        try:
            with reading(target) as broker:
                return [name for name in names(broker) if name.startswith(incomplete)]
        except (TxStoreError, OSError):
            return []

    return complete


StorePath: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="The store's directory, or TXSTORE_PATH.")]
StoreTarget: TypeAlias = Annotated[
    Target,
    typer.Argument(
        metavar="PATH", help="The store's directory, or TXSTORE_PATH. None with a server.", parser=_directory
    ),
]
TopicName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="A topic of the store.", autocompletion=_known(lambda broker: broker.topics())
    ),
]
GroupName: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="A consumer group.", autocompletion=_known(lambda broker: broker.groups())),
]
_SERVER: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="ADDRESS",
        help="Operate the store that this server has open: HOST:PORT or unix:FILE; or TXSTORE_SERVER.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N.")]
Tags: TypeAlias = Annotated[
    str | None, typer.Option("--tags", metavar="TAGS", help="Only messages with one of these tags: 'a || b'.")
]
Filter: TypeAlias = Annotated[
    str | None,
    typer.Option("--sql", metavar="EXPRESSION", help="Only messages whose properties fulfil this: 'price > 10'."),
]


class _StoreCommand(TyperCommand):
    """A command whose first argument is the PATH of a store, unless a variable replaces it."""

    of_server = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts a PATH before the arguments if an option or a variable replaces it."""
        if all(one.name != "path" for one in self.params):
            return super().parse_args(ctx, args)
        try:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
        except typer.TyperException:
            if not self.of_server and any(one.partition("=")[0] == "--server" for one in args):
                raise _needs_files(ctx) from None
            return super().parse_args(ctx, args)  # It raises the same, with the command's usage.
        target = target_of(given.get("path"), given.get("server"), of_server=self.of_server)
        if target is None:
            if not self.of_server and given.get("path") is None and os.environ.get(SERVER):
                raise _needs_files(ctx)
            return super().parse_args(ctx, args)
        rest = super().parse_args(ctx, [target.path or "(server)", *args])
        ctx.params["path"] = target if self.of_server else target.path
        return rest


def _needs_files(ctx: Any) -> InvalidOptionError:
    return InvalidOptionError(
        f"`{ctx.command_path}` needs the files of a store, so no server can do it\nhint: pass the store's PATH, on its "
        "machine",
        option="server",
    )


class _ServerCommand(_StoreCommand):
    """A command that can also operate the store that a server has open."""

    of_server = True


class _Noun(typer.Typer):
    """An app whose commands are store commands. Those that take a `StoreTarget` get the option `--server`."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        def add(run: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(run, eval_str=True)
            if all(one.annotation != StoreTarget for one in signature.parameters.values()):
                super(_Noun, self).command(name, **{"cls": _StoreCommand, **options})(run)
            else:
                super(_Noun, self).command(name, **{"cls": _ServerCommand, **options})(_with_server(run, signature))
            return run

        return add


def _with_server(run: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Returns the command with the option `--server`, of which `_StoreCommand` has made the target."""

    @functools.wraps(run)
    def called(*, server: str | None, **arguments: Any) -> Any:
        return run(**arguments)

    by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
    option = inspect.Parameter("server", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_SERVER)
    parameters = [*by_name, option]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": signature.return_annotation}
    return called


def noun(text: str | None = None) -> typer.Typer:
    """Creates the app that a noun's verbs are added to; `text` is its help. A command without verbs has no text."""
    # Plain help, as for the root.
    return _Noun(help=text, no_args_is_help=text is not None, add_completion=False, rich_markup_mode=None)


def selector_of(tags: str | None, sql: str | None) -> str | Sql | None:
    """Returns what `--tags` or `--sql` selects. Raises InvalidOptionError for both, and for a wrong expression."""
    if tags is not None and sql is not None:
        raise InvalidOptionError(
            f"--tags {tags!r} and --sql {sql!r} are two filters\nhint: an expression can name the tag: TAGS = 'paid'",
            option="--sql",
        )
    return tags if sql is None else Sql(sql)


def coming(text: str, option: str) -> datetime:
    """Parses a time that is to come: `2026-01-31T12:00+02:00`, or `15m` from now.

    Raises InvalidOptionError for a time without a zone, and for one that has passed.
    """
    hint = "hint: 2026-01-31T12:00+02:00, 2026-01-31T12:00Z, or 15m, 2h, 1d from now"
    span, now = re.fullmatch(_SPAN, text.strip()), datetime.now(UTC)
    try:
        found = now + _length(span) if span is not None else datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise InvalidOptionError(f"{option} {text!r} is not a time\n{hint}", option=option) from None
    if found.tzinfo is None:
        raise InvalidOptionError(f"{option} {text!r} has no time zone\n{hint}", option=option)
    if found < now:
        shown = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise InvalidOptionError(f"{option} {text!r} has passed: it is {shown}\n{hint}", option=option)
    return found


def moment(text: str, option: str) -> datetime:
    """Parses a time: `2026-01-31 12:00` (UTC unless it names a zone), or an age such as `15m`."""
    ago = re.fullmatch(_SPAN, text.strip())
    try:
        if ago is not None:
            return datetime.now(UTC) - _length(ago)
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise InvalidOptionError(
            f"{option} {text!r} is not a time\nhint: 2026-01-31T12:00, 2026-01-31T12:00+02:00, or 15m, 2h, 1d ago",
            option=option,
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _length(span: re.Match[str]) -> timedelta:
    return timedelta(**{_UNITS[span[2]]: int(span[1])})
