"""The pages of consumer groups: a list with lag and dead letters, and one group with its queues and members."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from txstore.console.messages import moment
from txstore.console.page import Action, Asked, Done, Page, Part, part_of
from txstore.console.text import counted, link, shown, utc
from txstore.errors import InvalidNameError, InvalidOptionError
from txstore.message import ConsumeFromWhere

__all__ = ["ACTIONS", "LIST", "PAGE", "groups_of", "must_read_group"]


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
    return {"group": asked.operator.group(group), "members": asked.operator.members(group), "targets": _TARGETS}


def _target(asked: Asked) -> ConsumeFromWhere | datetime:
    """Returns where a group is moved to. Raises InvalidOptionError."""
    if asked.need("to") == "time":
        at = moment(asked, "at")
        if at is None:
            raise InvalidOptionError("at is missing\nhint: a time, such as 2026-01-31T12:00", option="at")
        return at
    if asked.need("to") not in _TARGETS:
        raise InvalidOptionError(f"to must be one of {', '.join(_TARGETS)}, got {asked.get('to')!r}", option="to")
    return _TARGETS[asked.need("to")]


def _question(asked: Asked) -> str:
    to = _target(asked)
    lag = sum(row.lag for row in asked.operator.lag(asked.need("group")) if row.topic == asked.need("topic"))
    what = {
        ConsumeFromWhere.FIRST: "It reads all messages of the topic again that are left.",
        ConsumeFromWhere.LAST: f"It skips the {lag:,} messages that it has not acknowledged.",
    }
    moved = (
        what[to] if isinstance(to, ConsumeFromWhere) else f"It continues at the first message stored at {utc(to)} UTC."
    )
    return f"{moved} Connected consumers are told, and continue there."


def _reset(asked: Asked) -> Done:
    group, topic = asked.need("group"), asked.need("topic")
    offsets = asked.operator.reset_offsets(group, topic, _target(asked))
    return Done(
        f"group {shown(group)} was moved in {counted(len(offsets), 'queue')} of {shown(topic)}",
        link("/group", group=group),
    )


_TARGETS: Mapping[str, ConsumeFromWhere] = {"first": ConsumeFromWhere.FIRST, "last": ConsumeFromWhere.LAST}
ACTIONS: tuple[Action, ...] = (
    Action("/group/reset", "reset offsets", ("group", "topic", "to", "at"), _question, _reset, optional=("at",)),
)
LIST: Page = Page("/groups", "Consumer groups", "groups.html", _list)
PAGE: Page = Page("/group", "Consumer group", "group.html", _show)
