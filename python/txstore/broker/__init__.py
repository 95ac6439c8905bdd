"""The broker of a store in this process, and the rules of its parts.

`broker` wires the parts, `opening` opens the store, and `lifetime` closes them; `protocol` is what all kinds of
brokers offer. `local_socket` is how other processes reach it. `topics`, `queries` and `deletion` are about topics and
groups; `delay` delivers delayed messages; `retention` decides which of the log's files are removed; `housekeeping` runs
the background jobs.
"""

from txstore.broker.broker import EmbeddedBroker
from txstore.broker.opening import open

__all__ = ["EmbeddedBroker", "open"]
