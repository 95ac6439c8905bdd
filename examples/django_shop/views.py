"""The shop's views."""

from typing import Any

from django.db import IntegrityError, transaction
from django.http import JsonResponse

from examples.django_shop.ledger import book
from examples.django_shop.models import Parcel, Payment
from txstore import Message
from txstore.django import send


def pay(request: Any, order: int, amount: int) -> Any:
    """Pays an order. Three messages are published with the commit, or none."""
    if request.method != "POST":
        return JsonResponse({"error": "POST pays an order"}, status=405)
    try:
        with transaction.atomic():
            receipt = send(Message.of("orders", order, tags="paid", keys=[f"order-{order}"]))
            Payment.objects.create(order=order)
            book(order, amount)
    except IntegrityError:
        return JsonResponse({"error": f"order {order} is paid already"}, status=409)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"message_id": receipt.message_id}, status=201)


def orders(request: Any) -> Any:
    """Lists what is paid and what is packed."""
    paid = Payment.objects.order_by("order").values_list("order", flat=True)
    packed = Parcel.objects.order_by("order").values_list("order", flat=True)
    return JsonResponse({"paid": list(paid), "packed": list(packed)})
