"""Pages: the table of all pages and actions."""

from txstore.console import groups, overview, topics
from txstore.console.page import Action, Page

__all__ = ["ACTIONS", "NAVIGATION", "PAGES"]

NAVIGATION: tuple[Page, ...] = (overview.PAGE, topics.LIST, groups.LIST)
"""The pages of the menu, in its order."""
PAGES: tuple[Page, ...] = (*NAVIGATION, topics.PAGE, groups.PAGE)
ACTIONS: tuple[Action, ...] = ()
