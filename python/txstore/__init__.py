"""txstore: RocketMQ's transactional message as an embedded engine.

A producer stores a half message that no consumer sees, runs its local transaction, then commits or rolls back. If the
process crashes in between, a check asks the service later how the local transaction ended. `txstore.open(path)` opens a
store, alone or with other processes, `txstore.connect(address)` connects to a broker elsewhere. The names in `__all__`
are the public API.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

if sys.platform != "linux":
    raise ImportError(f"txstore runs on Linux; this is {sys.platform}\nhint: use WSL, a container or a virtual machine")

from txstore import _native
from txstore._native import EndResult, OpenReport, StoreStat, TransactionRow, __version__, unique_id
from txstore.arrow import Scan, scan
from txstore.broker import EmbeddedBroker
from txstore.broker.protocol import Broker
from txstore.broker.queries import QueueExtent, QueueRange, TopicDescription
from txstore.client import connect
from txstore.config import BrokerConfig, BrokerOptions, FlushDiskType
from txstore.consumer import Consumer
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.errors import (
    AlreadyEndedError,
    BrokerBusyError,
    BrokerRefusedError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    DecodeError,
    DiskFullError,
    EmbeddedOnlyError,
    ForeignStoreError,
    InUseError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    LateEndError,
    MessageNotFoundError,
    MissingFileError,
    OffsetTooOldError,
    ProtocolError,
    ReadOnlyError,
    RouteNotFoundError,
    StillPendingError,
    StoreClosedError,
    StoreCorruptError,
    StoreForkedError,
    StoreIOError,
    StoreLockedError,
    StorePoisonedError,
    TooManyFilesError,
    TooManyPendingError,
    TransactionNotFoundError,
    TxStoreError,
    WrongGroupError,
)
from txstore.lazy import LazyOptions, dataset, scan_polars
from txstore.listener import LocalTransactionExecuter, TransactionCheckListener, TransactionListener
from txstore.message import (
    ConsumeFromWhere,
    ConsumeResult,
    HalfMessage,
    LocalTransactionState,
    Message,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
    SentMessage,
    StoredMessage,
    TransactionMessage,
    TransactionSendResult,
    TransactionState,
)
from txstore.producer import Producer, Transaction, TransactionProducer
from txstore.serialization import JsonSerializer, Serializer
from txstore.shared import open
from txstore.transactions.history import CheckRecord
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.trace import EventKind, TraceEvent, TransactionTrace

if TYPE_CHECKING:
    from txstore.client.broker import RemoteBroker
    from txstore.client.options import ConnectConfig, ConnectOptions
    from txstore.server import ServeOptions, Server, ServerConfig, serve
    from txstore.shared.broker import SharedBroker

__all__ = [
    "AlreadyEndedError",
    "Broker",
    "BrokerBusyError",
    "BrokerConfig",
    "BrokerOptions",
    "BrokerRefusedError",
    "BrokerTimeoutError",
    "BrokerUnreachableError",
    "CheckRecord",
    "ConnectConfig",
    "ConnectOptions",
    "ConsumeFromWhere",
    "ConsumeResult",
    "Consumer",
    "DeadLetter",
    "DecodeError",
    "DiskFullError",
    "EmbeddedBroker",
    "EmbeddedOnlyError",
    "EndResult",
    "EventKind",
    "FlushDiskType",
    "ForeignStoreError",
    "GroupDescription",
    "HalfMessage",
    "InUseError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidOptionError",
    "JsonSerializer",
    "LateEndError",
    "LazyOptions",
    "LocalTransactionExecuter",
    "LocalTransactionState",
    "Message",
    "MessageModel",
    "MessageNotFoundError",
    "MessageQueue",
    "MissingFileError",
    "OffsetTooOldError",
    "OpenReport",
    "PendingTransaction",
    "Producer",
    "ProtocolError",
    "QueueExtent",
    "QueueLag",
    "QueueRange",
    "ReadOnlyError",
    "ReceivedMessage",
    "RemoteBroker",
    "RouteNotFoundError",
    "Scan",
    "SendResult",
    "SendStatus",
    "SentMessage",
    "Serializer",
    "ServeOptions",
    "Server",
    "ServerConfig",
    "SharedBroker",
    "StillPendingError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreForkedError",
    "StoreIOError",
    "StoreLockedError",
    "StorePoisonedError",
    "StoreStat",
    "StoredMessage",
    "TooManyFilesError",
    "TooManyPendingError",
    "TopicDescription",
    "TraceEvent",
    "Transaction",
    "TransactionCheckListener",
    "TransactionListener",
    "TransactionMessage",
    "TransactionNotFoundError",
    "TransactionProducer",
    "TransactionRow",
    "TransactionSendResult",
    "TransactionState",
    "TransactionTrace",
    "TxStoreError",
    "WrongGroupError",
    "__version__",
    "connect",
    "dataset",
    "open",
    "scan",
    "scan_polars",
    "serve",
    "unique_id",
]

if getattr(_native, "__debug_build__", False):
    warnings.warn(
        "txstore._native is a debug build and slow\nhint: maturin develop --release", RuntimeWarning, stacklevel=2
    )

_LAZY_MODULES = {
    "ConnectConfig": "txstore.client.options",
    "ConnectOptions": "txstore.client.options",
    "RemoteBroker": "txstore.client.broker",
    "ServeOptions": "txstore.server",
    "Server": "txstore.server",
    "ServerConfig": "txstore.server",
    "SharedBroker": "txstore.shared.broker",
    "serve": "txstore.server",
}


def __getattr__(name: str) -> object:
    """Loads the names of the client and the server on first use: they need asyncio, TLS and an HTTP server."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY_MODULES[name]), name)
