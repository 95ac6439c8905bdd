"""A project of Django with orders, whose own tests `tests/database/test_django.py` runs on each database."""
