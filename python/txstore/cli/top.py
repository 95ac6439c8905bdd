"""`txstore top`: a live view of a store: rates, pending transactions, lag.

::

    orders.store
    log 1.2 GiB, 3.4 MiB/s ▁▂▅▇    3 pending, the oldest for 12s ▁▁▃
    topic   messages   per s   lately │ group   topic   lag   lately   per s
    ╭ pending longest ─────────────────────────────────╮

In:     a path, or the address of a server.
Out:    a screen that is redrawn each second, or one JSON line each.
Always: takes no lock and writes nothing. By a path, it shows what the writer has made visible to readers (offsets as
        of the last few seconds); a server answers from memory.
Not here: history, which the report of `spark/transaction_report.py` has.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore import errors
from txstore.cli.arguments import AsJson, StoreTarget, noun
from txstore.cli.output import age, age_colour, is_coloured, lag_colour, print_json, size
from txstore.cli.sparkline import Past, sparkline
from txstore.cli.target import Operated, reading
from txstore.inspection.activity import Sample, rates, sample

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["app"]

app: typer.Typer = noun()


@app.command()
def top(
    path: StoreTarget,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0.1, help="Seconds between views.")] = 1.0,
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N views.")] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a store: rates, pending transactions, lag. Stop it with Ctrl-C."""
    if not as_json and not sys.stdout.isatty():
        raise errors.InvalidOptionError("top needs a terminal to draw on\nhint: --json prints a line per view")
    with reading(path) as broker:
        if as_json:
            _print_lines(broker, interval, count)
        else:
            _draw(path.path or str(path.server), broker, interval, count)


def _print_lines(broker: Operated, interval: float, count: int | None) -> None:
    before: Sample | None = None
    shown = 0
    while True:
        now = sample(broker)
        print_json(rates(now, before))
        sys.stdout.flush()
        before, shown = now, shown + 1
        if shown == count:
            return
        time.sleep(interval)


def _draw(name: str, broker: Operated, interval: float, count: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not is_coloured(sys.stdout), highlight=False)
    before = sample(broker)
    past = Past()
    shown = 0
    with Live(view(name, rates(before, None), past), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while count is None or shown + 1 < count:
            time.sleep(interval)
            now = sample(broker)
            facts = rates(now, before)
            past.add(facts)
            live.update(view(name, facts, past), refresh=True)
            before, shown = now, shown + 1
        time.sleep(interval)


def view(name: str, facts: dict[str, Any], past: Past) -> RenderableType:
    """Returns the screen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(name, style="bold"),
        _head(facts, past),
        Text(),
        _table(
            ["topic", "messages", "per s", "lately"],
            [
                [row["topic"], row["messages"], row["per_second"], sparkline(past.of("topic", row["topic"]))]
                for row in facts["topics"]
            ],
        ),
        Text(),
        _table(
            ["group", "topic", "lag", "per s", "lag lately"],
            [
                [
                    row["group"],
                    row["topic"],
                    _coloured(row["lag"], lag_colour(row["lag"])),
                    row["per_second"],
                    sparkline(past.of("lag", (row["group"], row["topic"]))),
                ]
                for row in facts["groups"]
            ],
        ),
    ]
    if facts["oldest"]:
        parts += [Text(), _pending(facts["oldest"])]
    return Group(*parts)


def _head(facts: dict[str, Any], past: Past) -> Text:
    from rich.text import Text

    oldest = facts["oldest"]
    pending = f"{facts['pending']:,} pending"
    if oldest:
        pending += f", the oldest for {age(oldest[0]['age_ms'])}"
    colour = (age_colour(oldest[0]["age_ms"]) or "yellow") if oldest else "green"
    rate = facts["log_bytes_per_second"]
    return Text.assemble(
        f"log {size(facts['log_bytes'])}",
        "" if rate is None else f", {size(max(0, round(rate)))}/s",
        f" {sparkline(past.of('log', ''))}".rstrip(),
        "    ",
        (pending, colour),
        f" {sparkline(past.of('pending', ''))}".rstrip(),
    )


def _pending(oldest: list[dict[str, Any]]) -> RenderableType:
    """Returns the panel of the transactions that have been pending longest."""
    from rich import box
    from rich.panel import Panel

    rows = [
        [
            row["transaction_id"],
            row["topic"],
            row["producer_group"],
            _coloured(age(row["age_ms"]), age_colour(row["age_ms"])),
            row["checks"],
        ]
        for row in oldest
    ]
    table = _table(["transaction", "topic", "group", "age", "checks"], rows)
    return Panel(table, title="pending longest", title_align="left", box=box.ROUNDED, expand=False)


def _coloured(value: object, colour: str | None) -> Text:
    from rich.text import Text

    return Text(f"{value:,}" if isinstance(value, int) else str(value), style=colour or "")


def _table(columns: list[str], rows: list[list[Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        words = not rows or (isinstance(rows[0][number], str | Text) and column not in ("lag", "age"))
        made.add_column(column, justify="left" if words else "right", overflow="ellipsis", no_wrap=True)
    for row in rows:
        made.add_row(
            *(
                cell
                if isinstance(cell, Text)
                else Text("-" if cell is None else cell if isinstance(cell, str) else f"{cell:,}")
                for cell in row
            )
        )
    return made
