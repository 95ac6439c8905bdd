"""Selectors: which messages of a topic a consumer wants.

In:     tags as text, an SQL92 expression, or what RocketMQ's clients say of their subscriptions.
Out:    tags, an expression, or None for all messages; the same in RocketMQ's words.
Always: what cannot be understood is refused.
Not here: evaluation, which is the engine's.
"""

from collections.abc import Sequence
from typing import TypeAlias

from txstore._native import Sql
from txstore.errors import InvalidOptionError

__all__ = ["Selector", "Sql", "expression", "expression_type", "parse_selector", "parse_subscription", "parse_tags"]

Selector: TypeAlias = Sequence[str] | Sql | None
"""Tags, an SQL92 expression over the properties, or None for all messages."""


def parse_tags(tags: str | None) -> tuple[str, ...] | None:
    """Parses RocketMQ's tag expression: `"a || b"` → `("a", "b")`; None, "" and "*" → None, which is every message.

    Raises InvalidOptionError for an expression without a tag.
    """
    if tags is not None and not isinstance(tags, str):
        raise InvalidOptionError(
            f'tags must be a str or Sql, got {tags!r}\nhint: "a || b", "*" for all, or Sql("price > 10")', option="tags"
        )
    if tags is None or tags.strip() in ("", "*"):
        return None
    found = tuple(dict.fromkeys(word.strip() for word in tags.split("||") if word.strip()))
    if not found:
        raise InvalidOptionError(f'tags {tags!r} contain no tag\nhint: "a || b", or "*" for all', option="tags")
    return None if "*" in found else found


def parse_selector(tags: str | Sql | None) -> Selector:
    """Returns what `tags` selects. Raises InvalidOptionError for an expression without a tag."""
    return tags if isinstance(tags, Sql) else parse_tags(tags)


def parse_subscription(kind: str, text: str | None) -> Selector:
    """Returns what a subscription of a RocketMQ client selects. Raises InvalidOptionError."""
    if kind == "SQL92":
        return Sql(text or "")
    if kind != "TAG":
        raise InvalidOptionError(
            f"expression type {kind} is not supported\nhint: TAG and SQL92 are", option="expression_type"
        )
    return parse_tags(text)


def expression(selector: Selector) -> str:
    """Returns RocketMQ's subscription expression, such as `a || b`; `*` for all."""
    if isinstance(selector, Sql):
        return selector.expression
    return "*" if selector is None else " || ".join(selector)


def expression_type(selector: Selector) -> str:
    """Returns RocketMQ's name of the kind of a selector's expression."""
    return "SQL92" if isinstance(selector, Sql) else "TAG"
