"""Allocation: which queues of a topic a member of a group reads; pure.

In: all queues and all members, each sorted, the same for every member. Out: one member's share. Always: every queue
belongs to exactly one member, and shares differ by one at most (RocketMQ's AllocateMessageQueueAveragely).
"""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["allocate_averagely"]

Queue = TypeVar("Queue")
Member = TypeVar("Member")


def allocate_averagely(queues: Sequence[Queue], members: Sequence[Member], member: Member) -> Sequence[Queue]:
    """The share of `member`: a run of neighbours; the first members get one more where it does not come out even.

    Empty for one who is no member, and where there are fewer queues than members in front of it.
    """
    if member not in members:
        return queues[:0]
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    begin = index * share + min(index, rest)
    return queues[begin : begin + share + (index < rest)]
