"""Consumers: reading topics for a group, at least once, alone or as one of many members.

`consumer` is what a program holds; `queue` one queue of its share; `allocation` who gets which; `members` who is there;
`pool` runs a handler in threads; `groups` is the consumers' half of a broker. All others know that only by `interface`.
"""

from txstore.consumer.consumer import Consumer
from txstore.consumer.groups import ConsumerGroups
from txstore.consumer.pool import Handler

__all__ = ["Consumer", "ConsumerGroups", "Handler"]
