"""`pack`: packs a parcel for each paid order, once, however often its message is delivered."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from examples.django_shop.models import Parcel
from txstore.django import broker, database

_GROUP = "packing"


class Command(BaseCommand):  # type: ignore[misc]
    """The command."""

    help = "Packs a parcel for each paid order."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the option."""
        parser.add_argument("--once", action="store_true", help="End when there is nothing to pack.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Packs until it is interrupted. The inbox's row commits together with the parcel."""
        inbox, packed = database().inbox(_GROUP), 0
        with broker().consumer(_GROUP, "orders", "paid") as consumer:
            while True:
                messages = consumer.poll(timeout=2.0)
                for message in messages:
                    with inbox.handle(message, connection) as first:
                        if first:
                            Parcel.objects.create(order=message.value(int))
                            packed += 1
                if options["once"] and not messages:
                    break
        self.stdout.write(f"packed {packed}")
