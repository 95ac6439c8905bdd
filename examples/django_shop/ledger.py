"""The layer below the views. It uses its caller's transaction, and does not know who commits it."""

from examples.django_shop.models import Booking
from txstore import Message
from txstore.django import send_batch


def book(order: int, amount: int) -> None:
    """Books an amount and sends its two messages. Raises ValueError for an amount that is not positive."""
    if amount <= 0:
        raise ValueError(f"the amount must be positive, got {amount}")
    Booking.objects.create(order=order, amount=amount)
    send_batch([Message.of("ledger", {"order": order, "amount": amount}), Message.of("receipts", order)])
