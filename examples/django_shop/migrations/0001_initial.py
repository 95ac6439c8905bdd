"""Creates the shop's tables. Those of txstore are created by the migrations of its app."""

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """The first migration."""

    initial = True
    operations = (
        migrations.CreateModel("Payment", [("order", models.BigIntegerField(primary_key=True, serialize=False))]),
        migrations.CreateModel(
            "Booking",
            [
                ("order", models.BigIntegerField(primary_key=True, serialize=False)),
                ("amount", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel("Parcel", [("order", models.BigIntegerField(primary_key=True, serialize=False))]),
    )
