"""Replicas: a server that copies another server's store, and what that one tells it.

In:     the address of the source: a `txstore serve` that this account may administer, or a master of RocketMQ.
Out:    a broker on a copy of the store, whose log follows the source's.
Always: the copy is a store of its own, which any command reads. It appends nothing itself, shows what the source shows,
        follows no source of a lower epoch than it has accepted, and refuses one whose log differs. What its log has
        after the beginning of a later epoch is kept aside, with a report, and cut.
Not here: what a copy is worth (`rust/src/server/copies.rs`), who becomes the source (`promotion`), what a master of
        RocketMQ is asked (`following_rocketmq`).

One request asks for the log from a physical offset on (TXSTORE_COPY); it also says how far the copy goes. The source
holds it until there is more. Topics, groups, offsets and settings come once a second by a call of operators, over a
connection of its own: on the same one, each of them would hold up the copy, and who waits for it.
"""

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from txstore._native import RequestCode, ResponseCode, Store, StoreEpochs, begin_replica
from txstore.broker import EmbeddedBroker
from txstore.broker.opening import open_as
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    ProtocolError,
    TxStoreError,
)
from txstore.remoting.administration import decode, decode_error, encode
from txstore.remoting.replication import ReplicationStatus
from txstore.server.epochs import Epochs, epochs_of
from txstore.server.following_rocketmq import FollowingRocketMQ, begin_copy_of_rocketmq
from txstore.server.node_channel import open_channel
from txstore.server.replica_copy import ReplicaCopy

__all__ = ["NoTxstoreError", "Replica", "Source", "SourceWatcher", "state_of"]

_log = logging.getLogger("txstore.replica")
_CALL_SECONDS = 10.0
_HELD_MS = 1_000
_AGAIN_SECONDS = 1.0
_STATE_SECONDS = 1.0
_PIECE_BYTES = 1 << 20
_SETTINGS = "txstore/settings.json"
_OWN_FILES = ("consumerOffset.json", "delayOffset.json")  # The engine writes them, from what it has.


def state_of(broker: EmbeddedBroker, address: str | None, known: str) -> dict[str, Any]:
    """Returns what a replica needs of a store besides its log. `address`: where clients and other nodes reach it.

    If that is what the replica knows already by the state's digest, returns the digest alone.
    """
    state = _state_of(broker, address)
    digest = hashlib.sha256(encode(state)).hexdigest()
    if digest == known:
        return {"digest": digest}
    # These change with each write, so they are no part of the digest.
    mark = StoreEpochs(broker.store).last_mark()
    return state | {"digest": digest, "end": broker.store.appended_end, "last": None if mark is None else list(mark)}


def _state_of(broker: EmbeddedBroker, address: str | None) -> dict[str, Any]:
    path, stat = Path(broker.path), broker.stat()
    # The settings first: if a source has closed them because it was replaced, its epochs say so.
    settings = (path / _SETTINGS).read_text()
    epochs = StoreEpochs(broker.store).text
    files = {
        file.name: text
        for file in sorted((path / "config").glob("*.json"))
        if file.name not in _OWN_FILES and (text := broker.store.config_text(file.name)) is not None
    }
    return {
        "store_id": broker.store.store_id,
        "settings": settings,
        "first": stat.min_physical_offset,
        "epochs": epochs,
        "role": Epochs.parse(epochs).role,
        "writes": not broker.read_only,
        "address": address,
        "broker_name": broker.config.broker_name,
        "cluster_name": broker.config.cluster_name,
        "config": files,
        "offsets": [list(one) for one in broker.store.consumer_offsets()],
    }


class NoTxstoreError(InvalidOptionError):
    """The node does not know the requests of replicas: it is a broker of RocketMQ, or a server of another release."""


class Source:
    """One connection to the server whose store is copied. Used by one thread."""

    def __init__(self, address: str, config: ConnectConfig, *, seconds: float = _CALL_SECONDS) -> None:
        """Connects within some seconds. Raises BrokerUnreachableError."""
        self.address = address
        self._channel = open_channel(address, config, seconds=seconds)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def interrupt(self) -> None:
        """Ends a request that another thread makes."""
        self._channel.interrupt()

    def state(self, replica: str = "", address: str | None = None, known: str = "") -> dict[str, Any]:
        """Returns what `state_of` returns there. A replica tells the source its name, and where clients reach it."""
        found = self.call("replication_state", replica=replica, address=address, known=known)
        assert isinstance(found, dict)
        return found

    def status(self) -> ReplicationStatus:
        """Returns the server's part in replication."""
        found = self.call("replication_status")
        assert isinstance(found, ReplicationStatus)
        return found

    def accept_epoch(self, number: int, source: str, store_id: str | None, *, timeout: float = _CALL_SECONDS) -> int:
        """Lets that node accept an epoch, whose source is at `source`. Returns the end of its log."""
        end = self.call("accept_epoch", timeout=timeout, epoch=number, source=source, store_id=store_id or "")
        assert isinstance(end, int)
        return end

    def call(self, name: str, /, *, timeout: float = _CALL_SECONDS, **arguments: object) -> object:
        """Makes a call of operators there. Raises its errors, BrokerUnreachableError, BrokerTimeoutError."""
        answer = self._channel.call(RequestCode.TXSTORE_ADMIN, {"call": name}, encode(arguments), timeout=timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refused(answer.code, answer.remark, answer.ext_fields)
        return decode(answer.body or b"{}")

    def copy(self, fields: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
        """Returns the fields and the bytes of an answer to TXSTORE_COPY."""
        answer = self._channel.call(RequestCode.TXSTORE_COPY, fields, timeout=_CALL_SECONDS + _HELD_MS / 1_000)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refused(answer.code, answer.remark, answer.ext_fields)
        return answer.ext_fields, answer.body or b""

    def _refused(self, code: int, remark: str | None, fields: Mapping[str, str]) -> TxStoreError:
        told = decode_error(fields, remark or "")
        if told is not None:
            return told
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            hint = "pass the address of a txstore serve of this release, or of a RocketMQ master"
            return NoTxstoreError(f"{self.address} cannot be copied: {remark}\nhint: {hint}", option="replica_of")
        if code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.NO_PERMISSION):
            hint = (
                "pass an account that is an administrator there"
                if code == ResponseCode.NO_PERMISSION
                else "start with an empty directory, or promote the replica that has more"
            )
            return InvalidOptionError(f"{self.address} refuses: {remark}\nhint: {hint}", option="replica_of")
        return BrokerUnreachableError(f"{self.address} answers {code}: {remark}", address=self.address)


class SourceWatcher(Protocol):
    """Is told when a replica reaches its source, and when it no longer does."""

    def source_answers(self, source: Source, replica: str) -> None: ...
    def tell(self, source: Source, replica: str) -> None: ...
    def source_left(self) -> None: ...


class Replica:
    """Follows a source, in a thread, from `start` on. `broker` is open on the copy."""

    def __init__(
        self, path: str | os.PathLike[str], address: str, *, name: str, source: ConnectConfig, settings: BrokerConfig
    ) -> None:
        """Opens the copy. If there is none yet, it is begun with what the source says now.

        `name` tells the source which of its replicas this is. Raises BrokerUnreachableError if the source cannot be
        reached and there is no copy yet, or a store that was a source itself; otherwise what `txstore.open` raises.
        """
        self.name: str = name
        """How the source tells its replicas apart."""
        self.config: ConnectConfig = source
        """How nodes are connected to."""
        self.own_address: str | None = None
        """Where clients and other nodes reach this replica. The source names it in routes."""
        self.failure: TxStoreError | None = None
        """Why it has stopped following; None while it follows or tries to."""
        self.source_address: str | None = None
        """Where clients reach the source; None before it has told."""
        self.must_reopen = False
        """Whether the store must be opened again, because a part of its log is to be cut."""
        self.watcher: SourceWatcher | None = None
        """Is told about the source, before anything is copied from it."""
        self._configured = address
        self._referred: str | None = None  # By a node that is a replica itself.
        if not (Path(path) / _SETTINGS).exists():
            _must_be_empty(Path(path))
            try:
                with Source(address, source) as begun:
                    _begin(Path(path), begun.state(name, None), address)
            except NoTxstoreError:
                begin_copy_of_rocketmq(Path(path), address, source)
        else:
            _must_know_a_higher_epoch(path, address, source)
        self.broker: EmbeddedBroker = open_as(path, settings, replica=True)
        self._store: Store = self.broker.store
        self._epochs = StoreEpochs(self._store)
        self._epoch = 0
        self._copy = ReplicaCopy(self.broker)
        self._known = ""  # The digest of the source's state that this copy has.
        self._told: str | None = None
        self._durable = True
        self._stopped = threading.Event()
        self._source: Source | FollowingRocketMQ | None = None
        self._thread = threading.Thread(target=self._run, name="txstore-replica", daemon=True)

    def start(self, own_address: str | None) -> None:
        """Starts to follow. `own_address`: where others reach this one. The source remembers it."""
        self.own_address = own_address
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of the source: the one that has the accepted epoch, or the configured one."""
        known = Epochs.parse(self._epochs.text)
        return known.source if known.source and known.is_replica else self._configured

    @property
    def connected(self) -> bool:
        """Whether the source answers."""
        return self._source is not None

    @property
    def missing_bytes(self) -> int | None:
        """How many bytes the copy lacked at the last answer; None before the first one."""
        return self._copy.missing_bytes

    @property
    def lag_seconds(self) -> float:
        """How long ago the copy had all that its source had, in seconds; 0 while it has all."""
        if self.connected and self.missing_bytes == 0:
            return 0.0
        return time.monotonic() - self._copy.complete_at

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stops following. Idempotent."""
        self._stopped.set()
        source = self._source
        if source is not None:
            source.interrupt()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            # The configured node comes first, but another one may have been promoted since.
            for address in dict.fromkeys((self._configured, self._referred or self.address, self.address)):
                if not self._stopped.is_set() and not self._follow_at(address):
                    return
            self._stopped.wait(_AGAIN_SECONDS)

    def _follow_at(self, address: str) -> bool:
        """Follows the node at an address while it answers. Returns False if there is nothing more to follow."""
        try:
            try:
                with Source(address, self.config) as source:
                    self._follow(source, address)
            except NoTxstoreError:
                self._follow_rocketmq(address)
        except (BrokerUnreachableError, BrokerTimeoutError, ProtocolError) as error:
            self._tell(address, str(error))
        except TxStoreError as error:
            if isinstance(error, InvalidOptionError) and error.option == "epoch":
                self._tell(address, str(error))
                return True
            self.failure = error
            _log.error("no longer following %s: %s", address, error, extra={"source": address})
            return False
        except Exception as error:
            _log.exception("the copy failed", extra={"source": address})
            self.failure = TxStoreError(f"the copy failed: {type(error).__name__}: {error}")
            return False
        finally:
            self._source = None
            if self.watcher is not None:
                self.watcher.source_left()
        return not self.must_reopen

    def _follow(self, source: Source, address: str) -> None:
        self._copy.begin()
        state = source.state(self.name, self.own_address)
        is_source = state["store_id"] == self._store.store_id and Epochs.parse(state["epochs"]).role == "source"
        if self.watcher is not None and is_source:
            self.watcher.source_answers(source, self.name)
        if not self._compare(source, state, address):
            return
        self._adopt(state, address)
        self._source = source
        self._tell(address, None)
        failed: list[BaseException] = []
        with Source(address, self.config) as second:
            ended = threading.Event()
            adopting = threading.Thread(target=self._adopt_changes, args=(second, ended, failed), daemon=True)
            adopting.start()
            try:
                while not self._stopped.is_set() and not failed:
                    if self._epochs.accepted > self._epoch:
                        self._replace(source)
                    self._take(source)
            finally:
                ended.set()
                second.interrupt()
                adopting.join()
        if failed:
            raise failed[0]

    def _follow_rocketmq(self, address: str) -> None:
        """Follows a master of RocketMQ, which knows no epochs: the log has the one that this replica has."""
        known = Epochs.parse(self._epochs.text)
        if known.accepted > known.number:
            why = f"another node is the source in epoch {known.accepted}"
            raise BrokerUnreachableError(why, address=known.source or "")
        following = FollowingRocketMQ(self._copy, address, self.config, self._stopped)

        def begun(client_address: str) -> None:
            self._epochs.follow(self._epochs.text, address)
            self.source_address, self._source = client_address, following
            self._tell(address, None)

        following.run(known.number, begun)

    def _adopt_changes(self, source: Source, ended: threading.Event, failed: list[BaseException]) -> None:
        """Takes over changes of the source's state, until the copying ends. An error ends the copying."""
        try:
            while not ended.wait(_STATE_SECONDS):
                self._adopt(source.state(self.name, self.own_address, self._known), source.address)
                if self.watcher is not None:
                    self.watcher.tell(source, self.name)
        except Exception as error:
            if not ended.is_set():
                failed.append(error)

    def _replace(self, source: Source) -> None:
        """Tells a source that another node has a higher epoch."""
        known = Epochs.parse(self._epochs.text)
        with contextlib.suppress(TxStoreError):
            source.accept_epoch(known.accepted, known.source or "", self._store.store_id)
        raise BrokerUnreachableError(
            f"another node is the source in epoch {known.accepted}", address=known.source or ""
        )

    def _compare(self, source: Source, state: dict[str, Any], address: str) -> bool:
        """Compares the logs. Refuses a source that is another store, of a lower epoch, or whose log differs.

        Returns False if the store must be opened again, because its log goes beyond the beginning of a later epoch.
        """
        if state["store_id"] != self._store.store_id:
            raise InvalidOptionError(
                f"{address} serves store {state['store_id']}, and this is a copy of {self._store.store_id}\n"
                "hint: follow the store that was copied, or start with an empty directory",
                option="replica_of",
            )
        self._copy.must_have_names(state["broker_name"], state["cluster_name"], address)
        theirs = Epochs.parse(state["epochs"])
        if theirs.is_replica:
            self._referred = theirs.source
            raise BrokerUnreachableError(f"it is a replica of {theirs.source}", address=address)
        if theirs.number < self._epochs.accepted:
            self._replace(source)
        common = self._epochs.common_end(state["epochs"], state["end"])
        if self._store.appended_end > common and theirs.number > self._epochs.number:
            self._keep(state, address, common)
            return False
        self._compare_last(source, state, address)
        self._epochs.follow(state["epochs"], address)
        self._epoch = theirs.number
        return True

    def _keep(self, state: dict[str, Any], address: str, common: int) -> None:
        """Keeps aside what this log has after `common`. The next opening cuts it."""
        mark = next((last for start, last in _beginnings(state) if start == common and last is not None), None)
        if common < self.broker.stat().min_physical_offset or (mark is not None and not self._epochs.has_record(mark)):
            raise InvalidOptionError(
                f"the log differs from that of {address} before {common}, where the later epoch begins\n"
                "hint: start with an empty directory to follow it; keep this one until you have looked at it",
                option="replica_of",
            )
        directory = f"txstore/diverged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        records, size = self._epochs.keep_diverged(common, state["epochs"], address, directory)
        self.must_reopen = True
        _log.warning(
            "%d records (%d bytes) that %s does not have are cut from the log; %s has them and a report",
            records, size, address, directory, extra={"records": records, "kept": directory, "cut_at": common},
        )  # fmt: skip

    def _compare_last(self, source: Source, state: dict[str, Any], address: str) -> None:
        last = self._store.last_record()
        if last is None:
            return
        offset, record = last
        if offset < state["first"]:
            return
        there = b""
        while len(there) < len(record):
            asked = {"bytes": str(len(record) - len(there))}
            _, more = source.copy(self._asked(offset + len(there), **asked))
            if not more:
                break
            there += more
        if there != record:
            raise InvalidOptionError(
                f"the last record of this copy, at {offset}, is another one at {address}\n"
                "hint: one of the two has records that the other lacks; start with an empty directory to follow it",
                option="replica_of",
            )

    def _asked(self, offset: int, **more: str) -> dict[str, str]:
        known = str(self.broker.stat().visible_physical_offset)
        own = {"replica": self.name, "address": self.own_address or ""}
        return {**own, "offset": str(offset), "visible": known, **more}

    def _take(self, source: Source) -> None:
        end = self._store.appended_end
        acknowledged = self._store.durable_end if self._durable else end
        fields, piece = source.copy(
            self._asked(
                self._copy.next_offset,
                acknowledged=str(acknowledged),
                heldMillis=str(_HELD_MS),
                bytes=str(_PIECE_BYTES),
                epoch=str(self._epoch),
            )
        )
        if int(fields["epoch"]) != self._epoch:
            raise BrokerUnreachableError("the source has begun another epoch", address=source.address)
        self._durable = fields["durable"] == "true"
        if piece:
            self._copy.add(piece, self._epoch)
            if self._durable:
                self._store.flush()
        self._copy.show_up_to(int(fields["visible"]), int(fields["maxOffset"]))
        self._copy.remove_below(int(fields["minOffset"]))

    def _adopt(self, state: dict[str, Any], address: str) -> None:
        """Takes over topics, groups, offsets, settings and the addresses of the other replicas, unless this copy has
        them already."""
        store = self._store
        if state["digest"] == self._known:
            return
        self.source_address = state["address"]
        theirs = Epochs.parse(state["epochs"])
        if theirs.number == self._epoch == self._epochs.accepted:
            self._epochs.follow(state["epochs"], address)
        # A source that was replaced has closed its log, and its settings look as if another broker continued it.
        if theirs.role != "fenced" and not store.adopt_settings(state["settings"]):
            raise InvalidOptionError(
                f"the log at {address} was continued by another broker\nhint: start with an empty directory",
                option="replica_of",
            )
        self._copy.adopt_config(state["config"])
        is_complete = self._copy.adopt_offsets(state["offsets"])
        self._known = state["digest"] if is_complete else ""

    def _tell(self, address: str, why: str | None) -> None:
        if why != self._told:
            self._told = why
            if why is None:
                _log.info("following %s", address, extra={"source": address})
            else:
                _log.warning("not following %s: %s", address, why, extra={"source": address})


def _beginnings(state: dict[str, Any]) -> list[tuple[int, tuple[int, int, int] | None]]:
    """Returns where each epoch of a node begins, with the record before it; also the end of its log."""
    found: list[tuple[int, tuple[int, int, int] | None]] = []
    for epoch in json.loads(state["epochs"])["epochs"]:
        last = epoch["last"]
        found.append((epoch["start"], None if last is None else (last["offset"], last["size"], last["crc"])))
    end = state["last"]
    return [*found, (state["end"], None if end is None else (end[0], end[1], end[2]))]


def _must_know_a_higher_epoch(path: str | os.PathLike[str], address: str, source: ConnectConfig) -> None:
    """Refuses to make a source follow a node that has not replaced it.

    A store of which no epoch is known is a copy of an earlier release, or a source that nobody has copied: their logs
    are compared.
    """
    own = epochs_of(path)
    if own is None or own.role != "source":
        return
    try:
        with Source(address, source) as there:
            theirs = Epochs.parse(there.state()["epochs"])
    except NoTxstoreError:
        raise InvalidOptionError(
            f"this store is the source in epoch {own.number}, and {address} is another kind of broker\n"
            "hint: start it without --replica-of; or begin a replica with an empty directory",
            option="replica_of",
        ) from None
    if theirs.number <= own.number:
        raise InvalidOptionError(
            f"this store is the source in epoch {own.number}, and {address} is in epoch {theirs.number}\n"
            f"hint: start it without --replica-of; or promote that one first: `txstore replica promote {address}`",
            option="replica_of",
        )


def _must_be_empty(path: Path) -> None:
    if any(file.is_file() for file in path.rglob("*")):
        raise InvalidOptionError(
            f"{path} is not empty\nhint: a replica begins with an empty directory, or continues its own", option="path"
        )


def _begin(path: Path, state: dict[str, Any], address: str) -> None:
    """Begins a copy: the settings last, so that a directory with settings is one."""
    for folder in ("commitlog", "config", "txstore"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    size = json.loads(state["settings"])["mappedFileSizeCommitLog"]
    if state["first"] > 0:
        with (path / "commitlog" / f"{state['first']:020}").open("wb") as file:
            file.truncate(size)
    for name, text in state["config"].items():
        (path / "config" / name).write_text(text)
    begin_replica(path, state["epochs"], address)
    new = path / f"{_SETTINGS}.tmp"
    with new.open("w") as settings:
        settings.write(state["settings"])
        settings.flush()
        os.fsync(settings.fileno())
    new.rename(path / _SETTINGS)
