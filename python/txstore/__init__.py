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
from txstore._native import EndResult, OpenReport, Sql, StoreStat, TransactionRow, __version__, unique_id
from txstore.arrow import Scan, scan
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

if TYPE_CHECKING:
    from txstore.broker import EmbeddedBroker
    from txstore.broker.protocol import Broker
    from txstore.broker.queries import QueueExtent, QueueRange, TopicDescription
    from txstore.client.broker import RemoteBroker
    from txstore.client.connect import connect
    from txstore.client.options import ConnectConfig, ConnectOptions
    from txstore.config import BrokerConfig, BrokerOptions, FlushDiskType
    from txstore.consumer import Consumer
    from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
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
    from txstore.server import ServeOptions, Server, ServerConfig, serve
    from txstore.shared import open
    from txstore.shared.broker import SharedBroker
    from txstore.transactions.history import CheckRecord
    from txstore.transactions.pending import PendingTransaction
    from txstore.transactions.trace import EventKind, TraceEvent, TransactionTrace

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
    "Sql",
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

# Loaded on first use: a program that scans a log, as Spark's planning does, needs neither producers nor consumers, and
# most need no client or server, with asyncio, TLS and HTTP.
_NAMES = {
    "txstore.broker": "EmbeddedBroker",
    "txstore.broker.protocol": "Broker",
    "txstore.broker.queries": "QueueExtent QueueRange TopicDescription",
    "txstore.client.broker": "RemoteBroker",
    "txstore.client.connect": "connect",
    "txstore.client.options": "ConnectConfig ConnectOptions",
    "txstore.config": "BrokerConfig BrokerOptions FlushDiskType",
    "txstore.consumer": "Consumer",
    "txstore.consumer.progress": "DeadLetter GroupDescription QueueLag",
    "txstore.lazy": "LazyOptions dataset scan_polars",
    "txstore.listener": "LocalTransactionExecuter TransactionCheckListener TransactionListener",
    "txstore.message": (
        "ConsumeFromWhere ConsumeResult HalfMessage LocalTransactionState Message MessageModel "
        "MessageQueue ReceivedMessage SendResult SendStatus SentMessage StoredMessage TransactionMessage "
        "TransactionSendResult TransactionState"
    ),
    "txstore.producer": "Producer Transaction TransactionProducer",
    "txstore.serialization": "JsonSerializer Serializer",
    "txstore.server": "ServeOptions Server ServerConfig serve",
    "txstore.shared": "open",
    "txstore.shared.broker": "SharedBroker",
    "txstore.transactions.history": "CheckRecord",
    "txstore.transactions.pending": "PendingTransaction",
    "txstore.transactions.trace": "EventKind TraceEvent TransactionTrace",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Loads a public name on its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
