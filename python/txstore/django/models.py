"""Models: the rows that wait, for the admin.

Always: read only. The table is made and written by txstore, so Django does not manage it.
"""

from functools import cached_property

from django.db import models

from txstore._native import OutboxRow
from txstore.errors import TxStoreError

__all__ = ["WaitingMessage"]


class WaitingMessage(models.Model):  # type: ignore[misc]
    """A message that was sent in a transaction, and is not known to be durable in the log yet."""

    id = models.BigIntegerField(primary_key=True)
    destination = models.BigIntegerField()
    message = models.BinaryField()
    message_group = models.CharField(max_length=255, null=True)
    group_seq = models.BigIntegerField(null=True)
    parked = models.CharField(max_length=1000, null=True)

    class Meta:
        managed = False
        db_table = "txstore_outbox"
        ordering = ("id",)

    def __str__(self) -> str:
        return str(self.row.message_id if self.row is not None else self.pk)

    @cached_property
    def row(self) -> OutboxRow | None:
        """The message; None if this version cannot decode it."""
        try:
            return OutboxRow(bytes(self.message))
        except TxStoreError:
            return None
