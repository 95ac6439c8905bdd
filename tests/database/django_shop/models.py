"""The project's table."""

from django.db import models


class Order(models.Model):  # type: ignore[misc]
    """An order."""

    number = models.BigIntegerField(primary_key=True)
