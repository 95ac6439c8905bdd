"""`manage.py txstore_forward`: sends messages that other processes left in a database.

In:     the alias of a database, the setting TXSTORE.
Out:    messages in the log, and a line for each step.
Always: rows of a process that may be alive are taken over when they have waited for long; with `--once`, at once.
"""

import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from txstore.database.outbox import Forwarder
from txstore.django.sending import broker, database
from txstore.signals import STOP, handled

__all__ = ["Command"]

_LOOK_SECONDS = 1.0
_LOOK_SECONDS_ONCE = 0.05


class Command(BaseCommand):  # type: ignore[misc]
    """The command."""

    help = "Sends messages that wait in a database, until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options."""
        parser.add_argument("--database", default="default", help="The alias of the database.")
        parser.add_argument("--once", action="store_true", help="End when no message waits any more.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Forwards until a signal, or until nothing waits."""
        stopped = threading.Event()
        with handled(dict.fromkeys(STOP, stopped.set)):
            self._forward(stopped, **options)

    def _forward(self, stopped: threading.Event, **options: Any) -> None:
        source, once = database(options["database"]), options["once"]
        source.identity()  # Raises TableError.

        def make(log: Any, choose: Any) -> Forwarder:
            now = once and log.appends_once
            return Forwarder(source, log, choose, take_over_seconds=0.0 if now else None)

        forwarder = broker().outboxes.forwarder(source, make)
        forwarder.start()
        self.stdout.write(f"forwards messages of {source!r}")
        told = 0
        while not stopped.wait(_LOOK_SECONDS_ONCE if once else _LOOK_SECONDS):
            done = forwarder.taken_over
            if done > told:
                self.stdout.write(f"forwarded {done - told} messages")
                told = done
            if once and forwarder.status().rows == 0:
                break
