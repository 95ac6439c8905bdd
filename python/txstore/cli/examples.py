"""Examples: what the `--help` of each command shows at its end.

In:     a command as typer made it, and its name.
Out:    the same command, and its verbs, with their examples.
Always: each example is a whole line that the command accepts; a test parses all of them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["EXAMPLES", "add_examples"]

_ID = "AC11000100002A9F0000000000000001"

# Command → lines without `txstore COMMAND`.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "send": (
        'orders.store orders "order 17 is paid" --tags paid --key o-17',
        "orders.store orders < lines.txt",
        'orders.store orders "is order 17 paid?" --deliver-at 20h',
    ),
    "consume": ("orders.store orders --group shipping", "--server 127.0.0.1:9876 orders --group shipping"),
    "tail": ("orders.store orders -f", "orders.store orders --tags paid -n 50"),
    "top": ("orders.store", "--server 127.0.0.1:9876"),
    "topic list": ("orders.store",),
    "topic describe": ("orders.store orders",),
    "topic create": ("orders.store orders --queues 8",),
    "topic delete": ("orders.store orders --yes",),
    "group list": ("orders.store",),
    "group describe": ("orders.store shipping",),
    "group create": ("orders.store shipping",),
    "group reset": ("orders.store shipping orders --to first", "orders.store shipping orders --to 15m"),
    "group delete": ("orders.store shipping --yes",),
    "message get": (f"orders.store {_ID}",),
    "message by-key": ("orders.store orders o-17",),
    "message by-time": ("orders.store orders --from 15m", "orders.store orders --from 2026-01-31T12:00 -n 10"),
    "message recall": ("orders.store djEgb3JkZXJzIHR4c3RvcmUgMTc2NDEwMDAwMDAwMCBBQzEx",),
    "dlq list": ("orders.store shipping",),
    "dlq resend": (f"orders.store shipping {_ID}",),
    "tx list": ("orders.store", "orders.store --state discarded --json"),
    "tx show": ("orders.store AC11",),
    "tx explain": ("orders.store AC11",),
    "tx commit": ("orders.store AC11",),
    "tx rollback": ("orders.store AC11", "--server 127.0.0.1:9876 AC11"),
    "tx discard": ("orders.store AC11",),
    "tx resume": ("orders.store AC11",),
    "tx reconcile": ("orders.store --database postgresql://localhost/shop",),
    "tx report": ("orders.store report",),
    "outbox list": ("postgresql://localhost/shop", "orders.db --json"),
    "outbox show": (f"orders.db {_ID}",),
    "outbox retry": (f"orders.db {_ID}",),
    "outbox drop": (f"orders.db {_ID}",),
    "outbox resend": ("orders.db --to orders.store",),
    "forward": ("postgresql://localhost/shop --to 127.0.0.1:9876", "orders.db --to orders.store --once"),
    "serve": ("orders.store", "orders.store --listen 127.0.0.1:10911 --metrics 127.0.0.1:9100"),
    "console": ("orders.store",),
    "replica status": ("127.0.0.1:10911",),
    "replica promote": ("10.0.0.2:10911",),
    "replica forget": ("10.0.0.1:10911 10.0.0.2:10911",),
    "store create": ("orders.store",),
    "store stat": ("orders.store", "--server 127.0.0.1:9876 --json"),
    "store check": ("orders.store", "orders.store --deep"),
    "store repair": ("orders.store --dry-run", "orders.store --copy-to copies"),
    "store backup": ("orders.store backups --keep 7",),
    "store dump": ("orders.store",),
    "store heal": ("orders.store",),
    "store hand-over": ("orders.store",),
    "doctor": ("orders.store", "orders.store --json"),
}


def add_examples(command: Any, name: str) -> Any:
    """Adds the examples of a command, and of its verbs, to their help."""
    for verb, one in getattr(command, "commands", {}).items():
        add_examples(one, f"{name} {verb}")
    if lines := EXAMPLES.get(name):
        # \\b keeps the lines of a paragraph as they are.
        shown = "\n".join(["\b", "Examples:", *(f"  txstore {name} {line}" for line in lines)])
        command.epilog = "\n\n".join(filter(None, (command.epilog, shown)))
    return command
