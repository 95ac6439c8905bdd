"""The commands: all nouns with their verbs, and the turning of errors into text and exit codes.

In:     arguments.
Out:    an exit code.
Always: a command returns its exit code (None means 0) and raises on errors. `--help` loads no command's module.
Not here: what a command does.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from txstore import __version__, errors
from txstore.cli.examples import add_examples
from txstore.cli.exit_codes import exit_code
from txstore.cli.flags import flags_of, in_flags
from txstore.cli.output import paint

__all__ = ["run"]

_EPILOG = (
    "Exit codes: 0 done, 1 a finding or nothing found, 2 wrong usage, 3 the store is unavailable (locked, missing, I/O "
    "error), 4 the store is damaged, 5 the store must be opened again."
)
# Each is a module in this package with an `app`. The list is here so that `--help` loads none of them.
_NOUNS = {
    "send": "Send a message, or many from a pipe.",
    "consume": "Read a topic for a group, and acknowledge.",
    "tail": "Show a topic's newest messages, and follow it.",
    "top": "Watch a store: rates, pending transactions, lag.",
    "topic": "Topics: list, describe, create, delete.",
    "group": "Consumer groups: list, describe, create, reset, delete.",
    "message": "Messages: get, by-key, by-time.",
    "dlq": "Dead letters: list, resend.",
    "tx": "Transactions: list, show, explain, commit, rollback, discard, resume, reconcile, report.",
    "outbox": "Messages that wait in a database: list, show, retry, drop.",
    "forward": "Send messages that wait in a database to a store or a broker.",
    "serve": "Serve a store to RocketMQ clients over the network.",
    "console": "Show a store in a browser.",
    "replica": "Copies of a served store: status, promote, forget.",
    "store": "A whole store: create, stat, check, repair, backup, dump, heal.",
    "doctor": "Show what a report of a fault needs: versions, limits, clock, file system, lock.",
}
_INTERRUPTED = 130  # 128 + SIGINT, as in shells.


class _Commands(TyperGroup):
    """The root command. It loads the noun that is called, and handles the errors of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _NOUNS:
            return None
        command = get_command(importlib.import_module(f"txstore.cli.{cmd_name}").app)
        command.name = cmd_name
        return add_examples(command, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_NOUNS.items()))

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`). Without this, Python would report it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except (errors.TxStoreError, OSError) as error:
            text = str(error)
            if isinstance(error, errors.InvalidOptionError) and ctx.invoked_subcommand in _NOUNS:
                text = in_flags(text, flags_of(self.get_command(ctx, ctx.invoked_subcommand)))
            typer.echo(f"txstore: {paint('error', 'red', sys.stderr)}: {text}", err=True)
            code = exit_code(error)
        except KeyboardInterrupt:
            typer.echo("txstore: interrupted", err=True)
            code = _INTERRUPTED
        raise typer.Exit(code or 0)


app: typer.Typer = typer.Typer(
    name="txstore",
    cls=_Commands,
    epilog=_EPILOG,
    no_args_is_help=True,
    # Plain help, because it starts faster and reads the same in a pipe.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"txstore {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Inspect, operate and serve txstore message stores."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        app(arguments, prog_name="txstore")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
