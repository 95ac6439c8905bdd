"""Ids: the numbers of an outbox's rows, each of which begins with its owner.

In:     an owner, which a forwarder chooses at random.
Out:    the range of its ids.
"""

import random

__all__ = ["ROW_ID_MAX", "ids_of", "new_owner"]

# An id is a positive number of 64 bits: its owner, then the number of the owner's row.
_OWNER_BITS, _NUMBER_BITS = 27, 36
ROW_ID_MAX = (1 << _OWNER_BITS + _NUMBER_BITS) - 1


def new_owner() -> range:
    """Returns the ids of a new owner. Not from a seed of the application, which two processes may share."""
    return ids_of(random.SystemRandom().getrandbits(_OWNER_BITS) << _NUMBER_BITS)


def ids_of(row_id: int) -> range:
    """Returns all ids of the owner of a row."""
    first = row_id >> _NUMBER_BITS << _NUMBER_BITS
    return range(first, first + (1 << _NUMBER_BITS))
