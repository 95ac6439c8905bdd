"""`txstore doctor`: what a report of a fault needs to say about a machine and a store.

In:     the path of a store, or none.
Out:    text or JSON; the exit code tells whether anything is likely to cause trouble.
Always: takes no lock and writes nothing. Its output has no message, topic, account or key.
Not here: the facts (`txstore.inspection.doctor`).
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from txstore.cli.arguments import AsJson
from txstore.cli.exit_codes import EXIT_FINDING, EXIT_OK
from txstore.cli.output import paint, print_facts, print_json
from txstore.cli.target import PATH
from txstore.inspection.doctor import diagnose

__all__ = ["app"]

app: typer.Typer = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="A store's directory, or TXSTORE_PATH.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show versions, limits, clock, and a store's file system, lock and socket, for a report of a fault.

    Exits with 1 if something is likely to cause trouble. Nothing of the messages is shown.
    """
    found = diagnose(path or os.environ.get(PATH) or None)
    if as_json:
        print_json(found.as_facts())
    else:
        for name, facts in found.sections.items():
            print(paint(name.replace("_", " "), "bold"))
            print_facts({f"  {fact}": value for fact, value in facts.items()})
        for finding in found.findings:
            print(f"{paint('finding', 'yellow')}: {finding}")
        if not found.findings:
            print(paint("nothing is likely to cause trouble", "green"))
    return EXIT_FINDING if found.findings else EXIT_OK
