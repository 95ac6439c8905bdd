"""The project's settings."""

import os
from datetime import timedelta
from pathlib import Path

_DIRECTORY = Path(os.environ.get("SHOP_DIRECTORY", "."))
_DIRECTORY.mkdir(parents=True, exist_ok=True)

# On PostgreSQL and MariaDB, nothing else changes. On SQLite, tests need a file: the forwarder reads it, too.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _DIRECTORY / "shop.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "TEST": {"NAME": _DIRECTORY / "test.sqlite3"},
    }
}
INSTALLED_APPS = ["txstore.django", "examples.django_shop"]
TXSTORE = {"STORE": _DIRECTORY / "shop.store", "GROUP": "shop", "KEEP_SENT": timedelta(days=7)}

ROOT_URLCONF = "examples.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for this example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
DEBUG = False
USE_TZ = True
