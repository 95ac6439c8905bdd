"""The pages `delayed` and `settings`: what waits for its time, and how the store and its server are configured."""

from collections.abc import Mapping
from typing import Any

from txstore._native import RETRY_PREFIX
from txstore.console.page import ROWS, Asked, Page

__all__ = ["DELAYED", "SETTINGS"]


def _delayed(asked: Asked) -> Mapping[str, Any]:
    levels = asked.operator.delayed_levels(ROWS)
    following = sorted((row for level in levels for row in level.next), key=lambda row: row.due)
    waiting = sum(level.waiting for level in levels)
    return {"levels": levels, "following": following[:ROWS], "waiting": waiting, "retry_prefix": RETRY_PREFIX}


def _settings(asked: Asked) -> Mapping[str, Any]:
    return {"settings": asked.operator.settings()}


DELAYED: Page = Page("/delayed", "Delayed", "delayed.html", _delayed, is_admin_only=True)
SETTINGS: Page = Page("/settings", "Settings", "settings.html", _settings, is_admin_only=True)
