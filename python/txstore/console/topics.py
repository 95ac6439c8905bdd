"""The pages of topics: a list, and one topic with its queues and the groups that read it."""

from collections.abc import Mapping
from typing import Any

from txstore.console.page import Asked, Page, Part, part_of
from txstore.errors import InvalidNameError

__all__ = ["LIST", "PAGE", "must_read_topic", "topics_of"]


def topics_of(asked: Asked) -> list[str]:
    """Returns the topics that the viewer may see, sorted."""
    return [topic for topic in asked.operator.topics() if asked.viewer.may_read_topic(topic)]


def must_read_topic(asked: Asked, topic: str) -> None:
    """Raises InvalidNameError for a topic that the viewer may not read, as for an unknown one."""
    if not asked.viewer.may_read_topic(topic):
        raise InvalidNameError(f"there is no topic {topic} that you may read")


def _list(asked: Asked) -> Mapping[str, Any]:
    part = part_of(topics_of(asked), asked)
    return {"part": Part(asked.operator.topic_rows(part.rows), part.start, part.total)}


def _show(asked: Asked) -> Mapping[str, Any]:
    topic = asked.need("topic")
    must_read_topic(asked, topic)
    found = asked.operator.topic(topic)
    return {"topic": found, "groups": [group for group in found.groups if asked.viewer.may_read_group(group)]}


LIST: Page = Page("/topics", "Topics", "topics.html", _list)
PAGE: Page = Page("/topic", "Topic", "topic.html", _show)
