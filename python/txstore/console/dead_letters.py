"""The pages of dead letters: the groups that have some, and those of one group, which can be sent again."""

from collections.abc import Mapping
from typing import Any

from txstore.console.groups import must_read_group
from txstore.console.page import ROWS, Action, Asked, Done, Page, Part
from txstore.console.text import counted, link, shown
from txstore.consumer.progress import DeadLetter
from txstore.errors import MessageNotFoundError

__all__ = ["ACTIONS", "LIST"]

_LIST = "/dead-letters"


def _list(asked: Asked) -> Mapping[str, Any]:
    group = asked.get("group")
    if group is None:
        counts = {
            name: count for name, count in asked.operator.dead_groups().items() if asked.viewer.may_read_group(name)
        }
        names = sorted(counts, key=lambda name: (-counts[name], name))
        start = min(asked.number("start", 0), len(names))
        rows = [(name, counts[name]) for name in names[start : start + ROWS]]
        return {"group": None, "part": Part(rows, start, len(names))}
    must_read_group(asked, group)
    page = asked.operator.dead_letter_page(group, asked.number("start", 0), ROWS)
    following = page.letters[-1].queue_offset + 1 if page.letters else page.end
    return {"group": group, "page": page, "next": following if following < page.end else None}


def _letter(asked: Asked) -> DeadLetter:
    group, offset = asked.need("group"), asked.number("queue_offset", 0)
    letters = asked.operator.dead_letter_page(group, offset, 1).letters
    if not letters or letters[0].queue_offset != offset:
        raise MessageNotFoundError(f"group {group} no longer has the dead letter at queue offset {offset}")
    return letters[0]


def _question(asked: Asked) -> str:
    letter = _letter(asked)
    return (
        f"Message {letter.message_id} of topic {letter.topic} failed {counted(letter.reconsume_times, 'time')}. "
        "It is delivered to this group again, and to no other. It stays in this list."
    )


def _resend(asked: Asked) -> Done:
    letter = _letter(asked)
    asked.operator.resend(letter)
    return Done(
        f"message {shown(letter.message_id)}: sent to {shown(letter.group)} again", link(_LIST, group=letter.group)
    )


LIST: Page = Page(_LIST, "Dead letters", "dead_letters.html", _list)
ACTIONS: tuple[Action, ...] = (Action(f"{_LIST}/resend", "resend", ("group", "queue_offset"), _question, _resend),)
