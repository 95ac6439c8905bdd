"""Allocation: assigns a topic's queues to the members of a group; pure.

In:     all queues and all members, each sorted, the same for every member.
Out:    the queues of one member.
Always: every queue is assigned to exactly one member, and the numbers of queues differ by at most one (RocketMQ's
        AllocateMessageQueueAveragely).
"""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["allocate_averagely"]

Queue = TypeVar("Queue")
Member = TypeVar("Member")


def allocate_averagely(queues: Sequence[Queue], members: Sequence[Member], member: Member) -> Sequence[Queue]:
    """Returns the queues of `member`: a run of neighbours. If the division has a rest, the first members get one more.

    Empty if `member` is not in `members`, and for the last members if there are fewer queues than members.
    """
    if member not in members:
        return queues[:0]
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    begin = index * share + min(index, rest)
    return queues[begin : begin + share + (index < rest)]
