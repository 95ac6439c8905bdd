"""The project's settings. The variable SHOP has the database and the store, as JSON."""

import json
import os

_SHOP = json.loads(os.environ["SHOP"])
if _SHOP["database"]["ENGINE"].endswith("mysql") and not _SHOP.get("mysqlclient"):
    import pymysql

    pymysql.install_as_MySQLdb()

DATABASES = {"default": _SHOP["database"]}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "txstore.django",
    "tests.database.django_shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.database.django_shop.urls"
SECRET_KEY = "tests only"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TXSTORE = {"STORE": _SHOP["store"], "GROUP": "shop", "OPTIONS": _SHOP["options"]}
