"""Settings: Django's setting TXSTORE.

::

    TXSTORE = {
        "STORE": BASE_DIR / "orders.store",    # a directory, which the processes of this machine share
        "ADDRESS": "127.0.0.1:10911",          # or a broker's address, as `txstore.connect` takes it
        "GROUP": "orders",                     # the producer group; "django" if it is missing
        "OPTIONS": {"flush_disk_type": "SYNC_FLUSH"},   # of txstore.open or txstore.connect
        "KEEP_SENT": timedelta(days=7),        # how long rows of sent messages are kept; deleted if it is missing
    }
"""

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

__all__ = ["Settings", "read_keep_sent", "read_settings"]

_KEYS = ("ADDRESS", "GROUP", "KEEP_SENT", "OPTIONS", "STORE")


@dataclass(frozen=True, slots=True)
class Settings:
    """What TXSTORE contains."""

    store: str | None
    address: str | None
    group: str
    options: dict[str, Any] = field(default_factory=dict)


def read_settings() -> Settings:
    """Returns the settings. Raises ImproperlyConfigured if they are missing or wrong."""
    found: Any = getattr(django_settings, "TXSTORE", None)
    if not isinstance(found, dict):
        raise ImproperlyConfigured('the setting TXSTORE must be a dict, such as {"STORE": BASE_DIR / "orders.store"}')
    unknown = sorted(set(found) - set(_KEYS))
    if unknown:
        raise ImproperlyConfigured(f"TXSTORE has an unknown key {unknown[0]!r}, expected some of {', '.join(_KEYS)}")
    store, address = found.get("STORE"), found.get("ADDRESS")
    if (store is None) == (address is None):
        raise ImproperlyConfigured("TXSTORE must have one of STORE and ADDRESS")
    return Settings(
        None if store is None else str(store), address, found.get("GROUP", "django"), dict(found.get("OPTIONS", {}))
    )


def read_keep_sent() -> Any:
    """Returns how long rows of sent messages are kept; None if they are deleted, or there is no setting TXSTORE."""
    found: Any = getattr(django_settings, "TXSTORE", None)
    return found.get("KEEP_SENT") if isinstance(found, dict) else None
