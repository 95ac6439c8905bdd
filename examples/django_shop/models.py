"""The shop's tables."""

from django.db import models


class Payment(models.Model):  # type: ignore[misc]
    """An order that is paid."""

    order = models.BigIntegerField(primary_key=True)


class Booking(models.Model):  # type: ignore[misc]
    """An amount in the ledger."""

    order = models.BigIntegerField(primary_key=True)
    amount = models.BigIntegerField()


class Parcel(models.Model):  # type: ignore[misc]
    """A parcel that is packed."""

    order = models.BigIntegerField(primary_key=True)
