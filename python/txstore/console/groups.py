"""The pages of consumer groups: a list with lag and dead letters, and one group with its queues and members."""

from collections.abc import Mapping
from typing import Any

from txstore.console.page import Asked, Page, Part, part_of
from txstore.errors import InvalidNameError

__all__ = ["LIST", "PAGE", "groups_of", "must_read_group"]


def groups_of(asked: Asked) -> list[str]:
    """Returns the consumer groups that the viewer may see, sorted."""
    return [group for group in asked.operator.groups() if asked.viewer.may_read_group(group)]


def must_read_group(asked: Asked, group: str) -> None:
    """Raises InvalidNameError for a group that the viewer may not read, as for an unknown one."""
    if not asked.viewer.may_read_group(group):
        raise InvalidNameError(f"there is no consumer group {group} that you may read")


def _list(asked: Asked) -> Mapping[str, Any]:
    part = part_of(groups_of(asked), asked)
    return {"part": Part(asked.operator.group_rows(part.rows), part.start, part.total)}


def _show(asked: Asked) -> Mapping[str, Any]:
    group = asked.need("group")
    must_read_group(asked, group)
    return {"group": asked.operator.group(group)}


LIST: Page = Page("/groups", "Consumer groups", "groups.html", _list)
PAGE: Page = Page("/group", "Consumer group", "group.html", _show)
