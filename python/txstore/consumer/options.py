"""Options of consumers: their values, checked.

In:     what `broker.consumer` was given.
Out:    the values that a consumer uses.
Always: InvalidOptionError says what was given and what is accepted.
Not here: topics and tags (`subscription`).
"""

from datetime import datetime

from txstore._native import validate_group
from txstore.errors import InvalidOptionError
from txstore.message import ConsumeFromWhere, MessageModel

__all__ = ["checked_instance_name", "checked_reconsume_times", "checked_start"]


def checked_start(start: object) -> ConsumeFromWhere | datetime:
    """Returns where a group begins. Raises InvalidOptionError."""
    if isinstance(start, datetime):
        return start
    try:
        return ConsumeFromWhere(start)
    except ValueError:
        raise InvalidOptionError(
            f"unknown start {start!r}\nhint: ConsumeFromWhere.FIRST, ConsumeFromWhere.LAST, or a datetime",
            option="start",
        ) from None


def checked_instance_name(model: MessageModel, name: object) -> str | None:
    """Returns the name of a broadcasting member; None for another. Raises InvalidOptionError, InvalidNameError."""
    if model is MessageModel.CLUSTERING:
        if name is not None:
            raise InvalidOptionError(
                "instance_name needs message_model=MessageModel.BROADCASTING; other groups share their offsets",
                option="instance_name",
            )
        return None
    if not isinstance(name, str):
        raise InvalidOptionError(
            "a broadcasting consumer needs instance_name, under which its offsets are kept for the next start\n"
            'hint: instance_name="worker-1"',
            option="instance_name",
        )
    validate_group(name)
    return name


def checked_reconsume_times(value: object) -> int | None:
    """Returns the number of retries; None for the default. Raises InvalidOptionError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidOptionError(
            f"max_reconsume_times must be 0 or more, got {value!r}\nhint: RocketMQ's default is 16",
            option="max_reconsume_times",
        )
    return value
