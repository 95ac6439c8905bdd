"""Replicas: a server that copies another server's store, and what that one tells it.

In:     the address of the source: a `txstore serve` that this account may administer.
Out:    a broker on a copy of the store, whose log follows the source's.
Always: the copy is a store of its own, which any command reads. It appends nothing itself, shows what the source shows,
        and refuses to follow a source whose log differs.
Not here: what a copy is worth (`rust/src/server/copies.rs`).

One request asks for the log from a physical offset on (TXSTORE_COPY); it also says how far the copy goes. The source
holds it until there is more. Topics, groups, offsets and settings come once a second by a call of operators, over a
connection of its own: on the same one, each of them would hold up the copy, and who waits for it.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txstore._native import RequestCode, ResponseCode, Store
from txstore.broker import EmbeddedBroker
from txstore.broker.opening import open_as
from txstore.client.channel import Channel
from txstore.client.dial import connect
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    TxStoreError,
)
from txstore.remoting.administration import decode, decode_error, encode
from txstore.remoting.replication import ReplicationStatus

__all__ = ["Replica", "Source", "state_of"]

_log = logging.getLogger("txstore.replica")
_CALL_SECONDS = 10.0
_HELD_MS = 1_000
_AGAIN_SECONDS = 1.0
_STATE_SECONDS = 1.0
_PIECE_BYTES = 1 << 20
_SETTINGS = "txstore/settings.json"
_OWN_FILES = ("consumerOffset.json", "delayOffset.json")  # The engine writes them, from what it has.


def state_of(broker: EmbeddedBroker, address: str | None, known: str) -> dict[str, Any]:
    """Returns what a replica needs of a store besides its log. `address`: where clients reach the source.

    If that is what the replica knows already by the state's digest, returns the digest alone.
    """
    state = _state_of(broker, address)
    digest = hashlib.sha256(encode(state)).hexdigest()
    return {"digest": digest} if digest == known else state | {"digest": digest}


def _state_of(broker: EmbeddedBroker, address: str | None) -> dict[str, Any]:
    path, stat = Path(broker.path), broker.stat()
    files = {
        file.name: text
        for file in sorted((path / "config").glob("*.json"))
        if file.name not in _OWN_FILES and (text := broker.store.config_text(file.name)) is not None
    }
    return {
        "store_id": broker.store.store_id,
        "settings": (path / _SETTINGS).read_text(),
        "first": stat.min_physical_offset,
        "address": address,
        "broker_name": broker.config.broker_name,
        "cluster_name": broker.config.cluster_name,
        "config": files,
        "offsets": [list(one) for one in broker.store.consumer_offsets()],
    }


class Source:
    """One connection to the server whose store is copied. Used by one thread."""

    def __init__(self, address: str, config: ConnectConfig) -> None:
        """Connects. Raises BrokerUnreachableError."""
        self._address = address
        credentials = config.credentials
        try:
            connected = connect(address, _CALL_SECONDS, config.tls_context)
        except OSError as error:
            text = f"{address} cannot be reached: {error}\nhint: start it, or check the address"
            raise BrokerUnreachableError(text, address=address) from error

        def signed(fields: Mapping[str, str], body: bytes | None) -> dict[str, str]:
            return dict(fields) if credentials is None else credentials.signed(fields, body)

        self._channel = Channel(address, connected, signed)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def interrupt(self) -> None:
        """Ends a request that another thread makes."""
        self._channel.interrupt()

    def state(self, replica: str, address: str | None, known: str = "") -> dict[str, Any]:
        """Returns what `state_of` returns there. Tells the source at which address clients reach this replica."""
        found = self.call("replication_state", replica=replica, address=address, known=known)
        assert isinstance(found, dict)
        return found

    def status(self) -> ReplicationStatus:
        """Returns the server's part in replication."""
        found = self.call("replication_status")
        assert isinstance(found, ReplicationStatus)
        return found

    def call(self, name: str, **arguments: object) -> object:
        """Makes a call of operators there. Raises its errors, BrokerUnreachableError, BrokerTimeoutError."""
        answer = self._channel.call(RequestCode.TXSTORE_ADMIN, {"call": name}, encode(arguments), timeout=_CALL_SECONDS)
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
            hint = "pass the address of a txstore serve of this release"
            return InvalidOptionError(f"{self._address} cannot be copied: {remark}\nhint: {hint}", option="replica_of")
        if code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.NO_PERMISSION):
            hint = (
                "pass an account that is an administrator there"
                if code == ResponseCode.NO_PERMISSION
                else "start with an empty directory, or promote the replica that has more"
            )
            return InvalidOptionError(f"{self._address} refuses: {remark}\nhint: {hint}", option="replica_of")
        return BrokerUnreachableError(f"{self._address} answers {code}: {remark}", address=self._address)


class Replica:
    """Follows a source, in a thread. `broker` is open on the copy."""

    def __init__(
        self, path: str | os.PathLike[str], address: str, *, name: str, source: ConnectConfig, settings: BrokerConfig
    ) -> None:
        """Opens the copy. If there is none yet, it is begun with what the source says now.

        `name` tells the source which of its replicas this is. Raises BrokerUnreachableError if there is no copy yet
        and the source cannot be reached, otherwise what `txstore.open` raises.
        """
        self.address: str = address
        """The source's address, as this replica was given it."""
        self.name: str = name
        """How the source tells its replicas apart."""
        self._config = source
        self.failure: TxStoreError | None = None
        """Why it has stopped following; None while it follows or tries to."""
        self.missing_bytes: int | None = None
        """How many bytes the copy lacked at the last answer; None before the first one."""
        self.source_address: str | None = None
        """Where clients reach the source; None before it has told."""
        self.own_address: str | None = None
        """Where clients reach this replica. The source names it in routes."""
        self._complete_at = time.monotonic()
        if not (Path(path) / _SETTINGS).exists():
            with Source(address, source) as begun:
                _begin(Path(path), begun.state(name, None))
        self.broker: EmbeddedBroker = open_as(path, settings, replica=True)
        self._store: Store = self.broker.store
        self._rest = b""
        self._known = ""  # The digest of the source's state that this copy has.
        self._told: str | None = None
        self._minimum = self.broker.stat().min_physical_offset
        self._durable = True
        self._stopped = threading.Event()
        self._source: Source | None = None
        self._thread = threading.Thread(target=self._run, name="txstore-replica", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the source answers."""
        return self._source is not None

    @property
    def lag_seconds(self) -> float:
        """How long ago the copy had all that its source had, in seconds; 0 while it has all."""
        if self.connected and self.missing_bytes == 0:
            return 0.0
        return time.monotonic() - self._complete_at

    def stop(self) -> None:
        """Stops following. Idempotent."""
        self._stopped.set()
        source = self._source
        if source is not None:
            source.interrupt()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with Source(self.address, self._config) as source:
                    self._follow(source)
            except (BrokerUnreachableError, BrokerTimeoutError) as error:
                self._tell(str(error))
            except TxStoreError as error:
                self.failure = error
                _log.error("no longer following %s: %s", self.address, error, extra={"source": self.address})
                return
            except Exception as error:
                _log.exception("the copy failed", extra={"source": self.address})
                self.failure = TxStoreError(f"the copy failed: {type(error).__name__}: {error}")
                return
            finally:
                self._source = None
            self._stopped.wait(_AGAIN_SECONDS)

    def _follow(self, source: Source) -> None:
        self._rest = b""
        state = source.state(self.name, self.own_address)
        self._compare(source, state)
        self._adopt(state)
        self._source = source
        self._tell(None)
        failed: list[BaseException] = []
        with Source(self.address, self._config) as second:
            ended = threading.Event()
            adopting = threading.Thread(target=self._adopt_changes, args=(second, ended, failed), daemon=True)
            adopting.start()
            try:
                while not self._stopped.is_set() and not failed:
                    self._take(source)
            finally:
                ended.set()
                second.interrupt()
                adopting.join()
        if failed:
            raise failed[0]

    def _adopt_changes(self, source: Source, ended: threading.Event, failed: list[BaseException]) -> None:
        """Takes over changes of the source's state, until the copying ends. An error ends the copying."""
        try:
            while not ended.wait(_STATE_SECONDS):
                self._adopt(source.state(self.name, self.own_address, self._known))
        except Exception as error:
            if not ended.is_set():
                failed.append(error)

    def _compare(self, source: Source, state: Mapping[str, Any]) -> None:
        """Refuses a source that is another store, or whose log differs."""
        if state["store_id"] != self._store.store_id:
            raise InvalidOptionError(
                f"{self.address} serves store {state['store_id']}, and this is a copy of {self._store.store_id}\n"
                "hint: follow the store that was copied, or start with an empty directory",
                option="replica_of",
            )
        self._must_have_names_of(state)
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
                f"the last record of this copy, at {offset}, is another one at {self.address}\n"
                "hint: one of the two has records that the other lacks; start with an empty directory to follow it",
                option="replica_of",
            )

    def _must_have_names_of(self, state: Mapping[str, Any]) -> None:
        """Refuses a source under another name: clients would take the two for different brokers."""
        config = self.broker.config
        for option, own in (("broker_name", config.broker_name), ("cluster_name", config.cluster_name)):
            if state[option] != own:
                raise InvalidOptionError(
                    f"{self.address} has {option} {state[option]!r}, and this replica has {own!r}\n"
                    f"hint: start it with --set {option}={state[option]}",
                    option=option,
                )

    def _asked(self, offset: int, **more: str) -> dict[str, str]:
        known = str(self.broker.stat().visible_physical_offset)
        return {"replica": self.name, "offset": str(offset), "visible": known, **more}

    def _take(self, source: Source) -> None:
        end = self._store.appended_end
        acknowledged = self._store.durable_end if self._durable else end
        fields, piece = source.copy(
            self._asked(
                end + len(self._rest),
                acknowledged=str(acknowledged),
                heldMillis=str(_HELD_MS),
                bytes=str(_PIECE_BYTES),
            )
        )
        self._durable = fields["durable"] == "true"
        if piece:
            self._rest += piece
            now = self._store.append_copied(end, self._rest)
            # The rest of a log file after its last record has been skipped.
            self._rest = self._rest[now - end :]
            if self._durable:
                self._store.flush()
        self._store.show_up_to(int(fields["visible"]))
        if int(fields["minOffset"]) > self._minimum:
            self._minimum = self._store.remove_log_files(int(fields["minOffset"]), keep_unread=False).minimum
        self.missing_bytes = max(0, int(fields["maxOffset"]) - self._store.appended_end)
        if self.missing_bytes == 0:
            self._complete_at = time.monotonic()

    def _adopt(self, state: dict[str, Any]) -> None:
        """Takes over topics, groups, offsets and settings, unless this copy has them already."""
        store = self._store
        if state["digest"] == self._known:
            return
        self.source_address = state["address"]
        if not store.adopt_settings(state["settings"]):
            raise InvalidOptionError(
                f"the log at {self.address} was continued by another broker\nhint: start with an empty directory",
                option="replica_of",
            )
        for name, text in state["config"].items():
            if store.config_text(name) != text:
                store.set_config_text(name, text)
        missing = False
        for topic, group, queue_id, offset in state["offsets"]:
            missing |= not self._set_offset(topic, group, queue_id, offset)
        self._known = "" if missing else state["digest"]

    def _set_offset(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Sets a group's offset. Returns False for one above the copy's end, which is set with the next state."""
        if self._store.consumer_offset(topic, group, queue_id) != offset:
            try:
                self._store.set_consumer_offset(topic, group, queue_id, offset)
            except InvalidOptionError:
                return False
        return True

    def _tell(self, why: str | None) -> None:
        if why != self._told:
            self._told = why
            if why is None:
                _log.info("following %s", self.address, extra={"source": self.address})
            else:
                _log.warning("not following %s: %s", self.address, why, extra={"source": self.address})


def _begin(path: Path, state: dict[str, Any]) -> None:
    """Begins a copy: the settings last, so that a directory with settings is one."""
    if any(file.is_file() for file in path.rglob("*")):
        raise InvalidOptionError(
            f"{path} is not empty\nhint: a replica begins with an empty directory, or continues its own", option="path"
        )
    for folder in ("commitlog", "config", "txstore"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    size = json.loads(state["settings"])["mappedFileSizeCommitLog"]
    if state["first"] > 0:
        with (path / "commitlog" / f"{state['first']:020}").open("wb") as file:
            file.truncate(size)
    for name, text in state["config"].items():
        (path / "config" / name).write_text(text)
    new = path / f"{_SETTINGS}.tmp"
    with new.open("w") as settings:
        settings.write(state["settings"])
        settings.flush()
        os.fsync(settings.fileno())
    new.rename(path / _SETTINGS)
