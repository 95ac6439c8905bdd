"""Admin: lists the rows that wait, and why one is parked.

Always: nothing is changed here. `txstore outbox retry` and `drop` decide about parked rows.
"""

from typing import Any

from django.contrib import admin

from txstore.django.models import WaitingMessage

__all__ = ["WaitingMessageAdmin"]


@admin.register(WaitingMessage)
class WaitingMessageAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The list of waiting messages."""

    list_display = ("message_id", "topic", "producer_group", "message_group", "sent", "size", "parked")
    fields = list_display
    readonly_fields = list_display
    show_full_result_count = False

    def message_id(self, waiting: WaitingMessage) -> str:
        """The id that the message has in the log."""
        return str(waiting)

    def topic(self, waiting: WaitingMessage) -> str:
        """The topic; empty if the row cannot be decoded."""
        return "" if waiting.row is None else waiting.row.topic

    def producer_group(self, waiting: WaitingMessage) -> str:
        """The producer group."""
        return "" if waiting.row is None else waiting.row.producer_group

    def sent(self, waiting: WaitingMessage) -> Any:
        """When `send` was called."""
        return None if waiting.row is None else waiting.row.born_timestamp

    def size(self, waiting: WaitingMessage) -> int:
        """The size of the row's message, in bytes."""
        return len(waiting.message)

    def has_add_permission(self, request: Any) -> bool:
        """Returns False."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns False."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns False."""
        return False
