"""Consumers: read topics for a group, at least once, alone or together with other members.

`consumer` is the class that programs use; `queue` is one of its assigned queues; `allocation` assigns queues to
members; `members` lists the members; `pool` runs a handler in threads; `groups` is the consumers' part of a broker.
Other modules know consumers only through `interface`.
"""

from txstore.consumer.consumer import Consumer
from txstore.consumer.groups import ConsumerGroups
from txstore.consumer.pool import Handler

__all__ = ["Consumer", "ConsumerGroups", "Handler"]
