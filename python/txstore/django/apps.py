"""Apps: the app `txstore.django`, for INSTALLED_APPS."""

from django.apps import AppConfig

__all__ = ["TxstoreConfig"]


class TxstoreConfig(AppConfig):  # type: ignore[misc]
    """The app. Its tables are made by its migration."""

    name = "txstore.django"
    label = "txstore"
    verbose_name = "txstore"
    default_auto_field = "django.db.models.BigAutoField"
