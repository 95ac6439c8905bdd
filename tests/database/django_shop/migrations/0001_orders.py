"""Creates the project's table."""

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """The first migration."""

    initial = True
    operations = (migrations.CreateModel(name="Order", fields=[("number", models.BigIntegerField(primary_key=True))]),)
