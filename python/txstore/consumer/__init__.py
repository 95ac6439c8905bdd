"""Consumers: read topics for a group, at least once, alone or together with other members.

`consumer` is the class that programs use; `subscription` has its topics; `queue` is one of its assigned queues;
`unacknowledged` has the messages that it handed out; `allocation` assigns queues to
members; `members` lists the members; `pool` runs a handler in threads; `groups` is the consumers' part of a broker.
Other modules know consumers only through `interface`.
"""

from txstore.consumer.consumer import Consumer
from txstore.consumer.groups import ConsumerGroups
from txstore.consumer.pool import Handler
from txstore.consumer.subscription import Topics

__all__ = ["Consumer", "ConsumerGroups", "Handler", "Topics"]
