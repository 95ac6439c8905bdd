"""Opens a store in this process, and nothing else: no socket, no server.

In:     a path and settings.
Out:    an `EmbeddedBroker`.
Not here: sharing a store among processes (`txstore.shared`).
"""

import os
from typing import Unpack

from txstore._native import MemoryStorage, Store
from txstore.broker.broker import EmbeddedBroker
from txstore.broker.retention import check_store_bytes_max
from txstore.config import BrokerConfig, BrokerOptions, FlushDiskType, milliseconds
from txstore.errors import InvalidOptionError

__all__ = ["open", "open_as", "open_store"]


def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> EmbeddedBroker:
    """Opens the store at `path`. A writer creates it if it does not exist, recovers and heals it.

    `options` are settings of `BrokerConfig` and override `config`. With `read_only`, any number of processes may open
    the store, with or without a writer, and nothing is written.

    Raises InvalidOptionError (unknown option, invalid value, or a size that differs from the store's), StoreLockedError
    (another process writes it), ForeignStoreError, StoreCorruptError, MissingFileError, and the system's OSErrors.
    """
    return open_as(path, BrokerConfig.from_options(options, config), read_only=read_only)


def open_as(
    path: str | os.PathLike[str],
    settings: BrokerConfig,
    *,
    read_only: bool = False,
    replica: bool = False,
    held: bool = False,
    hold_ends: bool = False,
) -> EmbeddedBroker:
    """Does the same as `open`, also for a server that has replicas or is one (see `open_store`).

    `hold_ends`: no transaction is checked or ended before `Store.hold_ends` is called.
    """
    directory = os.fspath(path)
    if not isinstance(directory, str):
        raise InvalidOptionError("path must be a str or an os.PathLike of str", option="path")
    if "\0" in directory or not directory:
        raise InvalidOptionError(f"path {directory!r} is not a valid path of a directory", option="path")
    store = open_store(directory, settings, read_only=read_only, replica=replica, held=held)
    try:
        if hold_ends:
            store.hold_ends()
        check_store_bytes_max(settings, store)
        return EmbeddedBroker(store, settings)
    except BaseException:
        store.close()
        raise


def open_store(
    where: str | MemoryStorage,
    settings: BrokerConfig,
    *,
    read_only: bool = False,
    replica: bool = False,
    held: bool = False,
) -> Store:
    """Opens the engine's store in a directory or in memory. Raises the errors of `open`.

    A `replica` takes only what is copied into it; in it and with `held`, `Store.show_up_to` says what is visible.
    """
    return Store.open(
        where,
        read_only=read_only,
        replica=replica,
        held=held,
        flush_disk_type=FlushDiskType(settings.flush_disk_type).value,
        transaction_flush_disk_type=FlushDiskType(settings.transaction_flush_disk_type).value,
        mapped_file_size_commit_log=settings.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=settings.mapped_file_size_consume_queue,
        max_hash_slot_num=settings.max_hash_slot_num,
        max_index_num=settings.max_index_num,
        max_message_size=settings.max_message_size,
        flush_interval_commit_log_ms=milliseconds(settings.flush_interval_commit_log),
        transaction_op_msg_max_size=settings.transaction_op_msg_max_size,
        enabled_append_prop_crc=settings.enabled_append_prop_crc,
        transaction_timeout_ms=milliseconds(settings.transaction_timeout),
        reject_late_end=settings.reject_late_end,
        pending_transactions_max=settings.pending_transactions_max,
        timer_max_delay_sec=milliseconds(settings.timer_max_delay_sec) // 1000,
        timed_messages_max=settings.timed_messages_max,
        broker_host=settings.broker_host,
        broker_port=settings.broker_port,
    )
