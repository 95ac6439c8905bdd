"""Lets a replica follow a RocketMQ master.

In:     the address of a RocketMQ broker, as its clients have it.
Out:    a copy of its log, with its topics, groups, offsets and progress.
Always: nothing is copied before the last record of the copy was compared with the master's: a master that has lost
        messages, or has others, is not followed, and nothing is cut. A progress of the master is taken over when the
        copy has all that the progress has passed.
Not here: the bytes of the protocol (`ha_channel`), what becomes of them (`replica_copy`).

RocketMQ tells its slaves nothing by itself: they ask for its tables, and so does a replica, at the port of its clients.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from txstore._native import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    RequestCode,
    begin_replica_of_rocketmq,
)
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerUnreachableError, InvalidOptionError, ProtocolError
from txstore.server.ha_channel import HAChannel
from txstore.server.replica_copy import ReplicaCopy
from txstore.server.rocketmq_node import RocketMQNode

__all__ = ["FollowingRocketMQ", "begin_copy_of_rocketmq", "copies_txstore", "is_running_master"]

_log = logging.getLogger("txstore.replica")
_CALL_SECONDS = 10.0
_STATE_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_ENTRY = 20  # Bytes.
_TABLES = {
    "topics.json": (RequestCode.GET_ALL_TOPIC_CONFIG, ("topicConfigTable", "dataVersion")),
    "subscriptionGroup.json": (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None),
}
# The engine keeps the progress of transactions, and a master's is taken over by `adopt_progress`.
_PROGRESS = (HALF_TOPIC, OP_TOPIC)
# Topics of transactions whose state RocketMQ keeps outside of its log.
_NOT_CONTINUED = ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC")
_EMPTY = "hint: start with an empty directory to follow it; keep this one if it may have messages that only it has"


class _Master(NamedTuple):
    """What a master's configuration says."""

    broker_name: str
    cluster_name: str
    ha_address: str
    sizes: dict[str, int]
    client_address: str


class _Progress(NamedTuple):
    """How far a master is, and the end of its log after it told."""

    half: int
    delays: list[tuple[int, int]]
    end: int


def begin_copy_of_rocketmq(path: Path, address: str, config: ConnectConfig) -> None:
    """Begins a copy of a master in a directory. Raises InvalidOptionError for a broker that cannot be copied."""
    with RocketMQNode(address, config, seconds=_CALL_SECONDS) as node:
        master = _master(node)
        first = _first(node)
    for folder in ("commitlog", "config", "txstore"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    if first > 0:
        with (path / "commitlog" / f"{first:020}").open("wb") as file:
            file.truncate(master.sizes["mapped_file_size_commit_log"])
    begin_replica_of_rocketmq(path, address, **master.sizes)


def _first(node: RocketMQNode) -> int:
    """Returns where a master's log begins. Waits for a master that has just started."""
    until = time.monotonic() + _CALL_SECONDS
    while True:
        try:
            return node.extent()[0]
        except BrokerUnreachableError:
            if time.monotonic() > until:
                raise
            time.sleep(_AGAIN_SECONDS)


def is_running_master(address: str, config: ConnectConfig) -> bool:
    """Returns whether a broker of RocketMQ answers at an address. Raises what connections raise."""
    with RocketMQNode(address, config, seconds=_CALL_SECONDS) as node:
        return "brokerRole" in node.properties()


class FollowingRocketMQ:
    """Follows one master, over one connection to its HA port. Used by one thread."""

    def __init__(self, copy: ReplicaCopy, address: str, config: ConnectConfig, stopped: threading.Event) -> None:
        """`stopped` is set when following is to end."""
        self._copy, self._address, self._config = copy, address, config
        self._store = copy.store
        self._node: RocketMQNode | None = None
        self._channel: HAChannel | None = None
        self._stopped = stopped
        self._waiting: _Progress | None = None
        self._end = 0

    def interrupt(self) -> None:
        """Lets `run`, which another thread runs, see that it is to end."""
        for one in (self._channel, self._node):
            if one is not None:
                one.interrupt()

    def run(self, epoch: int, following: Callable[[str], None]) -> None:
        """Follows until the connection ends or is to end.

        `epoch` is the copy's; `following` is called with the master's address for clients when copying begins. Raises
        BrokerUnreachableError, BrokerTimeoutError, and InvalidOptionError if this master must not be followed.
        """
        with RocketMQNode(self._address, self._config, seconds=_CALL_SECONDS) as node:
            self._node = node
            master = _master(node)
            self._copy.must_have_names(master.broker_name, master.cluster_name, self._address)
            self._compare(node, master)
            self._adopt(node)
            asked, known = self._begin()
            with HAChannel(master.ha_address, asked, seconds=_CALL_SECONDS) as channel:
                self._channel = channel
                if self._config.tls_context is not None:
                    _log.warning("the log of %s is copied without TLS: RocketMQ's HA port has none", self._address)
                following(master.client_address)
                self._follow(node, channel, epoch, known)

    def _follow(self, node: RocketMQNode, channel: HAChannel, epoch: int, known: bytes) -> None:
        failed: list[Exception] = []
        ended = threading.Event()

        def adopt_changes() -> None:
            try:
                while not ended.wait(_STATE_SECONDS):
                    self._adopt(node)
            except Exception as error:
                if not ended.is_set():
                    failed.append(error)
                    channel.interrupt()

        adopting = threading.Thread(target=adopt_changes, name="txstore-replica-state", daemon=True)
        adopting.start()
        try:
            self._copy.begin(known)
            while not self._stopped.is_set():
                self._take(channel, epoch)
        except BrokerUnreachableError:
            if failed:
                raise failed[0] from None
            if not self._stopped.is_set():
                raise
        finally:
            ended.set()
            node.interrupt()
            adopting.join()

    def _begin(self) -> tuple[int, bytes]:
        """Returns from where on the log is asked for, and the bytes of it that are known without asking."""
        end = self._store.appended_end
        # Asked for 0, a master sends its last file. The first byte of a record is the highest one of its size: 0.
        return (end, b"") if end > 0 else (1, b"\0")

    def _take(self, channel: HAChannel, epoch: int) -> None:
        at, data = channel.receive()
        if data:
            # What follows the last record of a log file is sent, and was skipped.
            data = data[max(0, self._copy.next_offset - at) :]
            self._copy.add(data, epoch)
            self._store.flush()
            channel.report(self._store.durable_end)
            self._end = max(self._end, self._store.appended_end)
        self._copy.show_up_to(self._store.appended_end, self._end)

    def _compare(self, node: RocketMQNode, master: _Master) -> None:
        """Refuses a master whose log does not continue the copy's."""
        first, self._end = node.extent()
        end = self._store.appended_end
        own_size, size = self._copy.file_size, master.sizes["mapped_file_size_commit_log"]
        if own_size != size:
            raise _refused(f"the log files of {self._address} have {size} bytes, and those of this copy {own_size}")
        if copies_txstore(self._copy.broker.path):
            raise _refused(f"a txstore writes the store that was copied here, and {self._address} is another broker")
        if end > self._end:
            raise _refused(
                f"the log of {self._address} ends at {self._end}, and this copy at {end}: the master has lost messages "
                "that the copy has, or is another one"
            )
        last = self._store.last_record()
        if end < first or (last is not None and last[0] < first):
            raise _refused(f"the log of {self._address} begins at {first}, and this copy ends at {end}")
        if last is not None and node.record(last[0]) != last[1]:
            raise _refused(
                f"the last record of this copy, at {last[0]}, is another one at {self._address}: one of the two has "
                "messages that the other lacks"
            )

    def _adopt(self, node: RocketMQNode) -> None:
        """Takes over topics, groups, offsets, progress, and where the log begins."""
        copy = self._copy
        for name, (code, fields) in _TABLES.items():
            table = node.table(code)
            kept = table if fields is None else {field: table[field] for field in fields if field in table}
            copy.adopt_config({name: json.dumps(kept, sort_keys=True)})
        offsets = node.table(RequestCode.GET_ALL_CONSUMER_OFFSET).get("offsetTable", {})
        delays = node.table(RequestCode.GET_ALL_DELAY_OFFSET).get("offsetTable", {})
        first, self._end = node.extent()
        copy.adopt_offsets(
            (topic, group, int(queue_id), offset)
            for name, queues in offsets.items()
            for topic, _, group in (name.partition("@"),)
            if topic and group and topic not in _PROGRESS
            for queue_id, offset in queues.items()
        )
        half = offsets.get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get("0", 0)
        rows = [(int(level) - 1, offset) for level, offset in delays.items() if int(level) > 0]
        self._pass(_Progress(half, rows, self._end))
        copy.remove_below(first)
        copy.show_up_to(self._store.appended_end, self._end)
        self._must_be_continued()

    def _pass(self, progress: _Progress) -> None:
        """Takes over a progress, or an earlier one that waits. What it has passed is in the copy only when that has the
        log up to the end of that moment: otherwise a transaction could be lost."""
        waiting, end = self._waiting, self._store.appended_end
        self._waiting = None
        for one in (waiting, progress):
            if one is not None and end >= one.end:
                self._store.adopt_progress(one.half, one.delays)
            elif one is not None and self._waiting is None:
                self._waiting = one

    def _must_be_continued(self) -> None:
        for topic, _, first, end in self._store.queues():
            if topic in _NOT_CONTINUED and end > first:
                raise InvalidOptionError(
                    f"the log of {self._address} has messages of {topic}, whose state RocketMQ keeps elsewhere\n"
                    "hint: the copy can be read, and not continued by txstore; transRocksDBEnable=false at the master",
                    option="replica_of",
                )


def _master(node: RocketMQNode) -> _Master:
    """Reads the configuration of a broker. Raises InvalidOptionError if it cannot be followed."""
    found = node.properties()
    if "brokerRole" not in found or "haListenPort" not in found:
        raise InvalidOptionError(
            f"{node.address} must be a txstore serve of this release or a RocketMQ master, got another server",
            option="replica_of",
        )
    why = _unfit(found)
    if why is not None:
        raise InvalidOptionError(f"{node.address} cannot be copied: {why}", option="replica_of")
    try:
        sizes = {
            "mapped_file_size_commit_log": int(found["mappedFileSizeCommitLog"]),
            # A broker rounds it up to whole entries.
            "mapped_file_size_consume_queue": -(-int(found["mappedFileSizeConsumeQueue"]) // _ENTRY) * _ENTRY,
            "max_hash_slot_num": int(found["maxHashSlotNum"]),
            "max_index_num": int(found["maxIndexNum"]),
        }
        return _Master(
            found["brokerName"],
            found["brokerClusterName"],
            f"{found['brokerIP2']}:{int(found['haListenPort'])}",
            sizes,
            f"{found['brokerIP1']}:{int(found['listenPort'])}",
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"{node.address} has a configuration without {error}") from error


def _unfit(found: dict[str, Any]) -> str | None:
    if found["brokerRole"] not in ("ASYNC_MASTER", "SYNC_MASTER"):
        return f"it is a {found['brokerRole']}\nhint: pass the address of its master"
    if found.get("enableControllerMode") == "true":
        return "it runs with a controller, whose protocol is another one\nhint: enableControllerMode=false"
    if found.get("enableDLegerCommitLog") == "true":
        return "its log is DLedger's\nhint: a broker without enableDLegerCommitLog"
    return None


def copies_txstore(path: str) -> bool:
    """Returns whether the settings of a copy say that a txstore writes the log."""
    written = json.loads((Path(path) / "txstore" / "settings.json").read_text())["written"]
    return bool(written) and written[-1]["end"] is None


def _refused(what: str) -> InvalidOptionError:
    return InvalidOptionError(f"{what}\n{_EMPTY}", option="replica_of")
