"""Pages: the table of all pages and actions."""

from txstore.console import dead_letters, groups, messages, outbox, overview, store, topics, transactions
from txstore.console.page import Action, Page

__all__ = ["ACTIONS", "NAVIGATION", "PAGES"]

NAVIGATION: tuple[Page, ...] = (
    overview.PAGE,
    transactions.LIST,
    topics.LIST,
    messages.LIST,
    groups.LIST,
    dead_letters.LIST,
    store.DELAYED,
    outbox.LIST,
    store.SETTINGS,
)
"""The pages of the menu, in its order."""
PAGES: tuple[Page, ...] = (*NAVIGATION, transactions.PAGE, topics.PAGE, messages.PAGE, groups.PAGE)
ACTIONS: tuple[Action, ...] = (*transactions.ACTIONS, *groups.ACTIONS, *dead_letters.ACTIONS, *outbox.ACTIONS)
