"""Opens a store in the role that its epochs give it, and serves it.

In:     a path and options; what the store knows of epochs.
Out:    a server.
Always: a store that another node has replaced is opened without a writer, and so is one whose replicas know that. A
        replica becomes the source only by a promotion.
Not here: the server, which opens its store again after a promotion.
"""

import dataclasses
import ipaddress
import logging
import os
import socket
from pathlib import Path
from typing import Any, Unpack

from txstore._native import StoreEpochs
from txstore.broker import EmbeddedBroker
from txstore.broker.opening import open_as
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig
from txstore.errors import BrokerUnreachableError, InvalidOptionError, ReadOnlyError, TxStoreError
from txstore.server.config import BROKER_ADDRESS, ServeOptions, ServerConfig
from txstore.server.epochs import Epochs, epochs_of
from txstore.server.escaping import may_have_escaped
from txstore.server.listening import fields_of
from txstore.server.preflight import check_machine
from txstore.server.replication import Replica, Source
from txstore.server.server import Server
from txstore.server.validation import check_options

__all__ = ["Opening", "serve"]

_log = logging.getLogger("txstore.replica")
_ASK_SECONDS = 2.0


def serve(
    store: str | os.PathLike[str] | EmbeddedBroker,
    *,
    config: ServerConfig | None = None,
    broker_config: BrokerConfig | None = None,
    **options: Unpack[ServeOptions],
) -> Server:
    """Serves a store, or an open broker, to clients of any language.

    `options` are fields of `ServerConfig` or `BrokerConfig`. A store that is opened here is closed with the server.
    Raises what `txstore.open` raises, StoreIOError for an address that is in use or not available, InvalidOptionError.
    """
    names = {field.name for field in dataclasses.fields(ServerConfig)}
    given: dict[str, Any] = dict(options)
    mine = {name: given.pop(name) for name in list(given) if name in names}
    settings = dataclasses.replace(config if config is not None else ServerConfig(), **mine)
    check_options(fields_of(settings))
    if isinstance(store, EmbeddedBroker):
        if settings.replicas_required > 1 or settings.replica_of is not None:
            name = "replica_of" if settings.replica_of is not None else "replicas_required"
            text = (
                f"an open broker cannot be served with {name}\nhint: pass the path of its store, and close the broker"
            )
            raise InvalidOptionError(text, option=name)
        if given or broker_config is not None:
            raise InvalidOptionError(
                f"an open broker cannot be given other settings, got {', '.join(given) or 'broker_config'}",
                option="broker_config",
            )
        return Server(store, settings)
    host, port = _host_and_port(settings.advertise or settings.listen or BROKER_ADDRESS)
    # Offset message ids contain the address at which clients can query the message.
    opening: dict[str, Any] = {"broker_host": host, "broker_port": port} | given
    chosen = BrokerConfig.from_options(opening, broker_config)
    check_machine(settings, store)
    opener = Opening(store, settings, chosen)
    broker, replica = opener.open()
    try:
        return Server(broker, settings, close_broker=True, replica=replica, opening=opener)
    except BaseException:
        if replica is not None:
            replica.stop()
        broker.close()
        raise


class Opening:
    """Opens one store, again and again."""

    def __init__(self, path: str | os.PathLike[str], settings: ServerConfig, chosen: BrokerConfig) -> None:
        self._path, self._settings, self._chosen = path, settings, chosen

    def open(self, *, ask: bool = True) -> tuple[EmbeddedBroker, Replica | None]:
        """Opens the store. Returns its broker, and what copies another store into it.

        `ask`: other nodes are asked whether they know a higher epoch.

        Raises ReadOnlyError for a replica without `replica_of`, otherwise what `Replica` and `txstore.open` raise.
        """
        known = epochs_of(self._path)
        source = self._settings.replica_of
        if source is not None and not self._is_promoted(known, source, ask):
            name = self._settings.replica_name or self._settings.advertise
            name = name or f"{socket.gethostname()}:{Path(self._path).absolute()}"
            config = ConnectConfig.from_environment()
            replica = Replica(self._path, source, name=name, source=config, settings=self._chosen)
            replica.broker.listen_if_possible()
            return replica.broker, replica
        if known is not None:
            if known.is_replica:
                raise ReadOnlyError(
                    f"{self._path} is a replica of {known.source}\n"
                    "hint: pass --replica-of; then `txstore replica promote` makes it the source"
                )
            newer = _newer(known) if ask and known.role == "source" else None
            if known.role == "fenced" or newer is not None:
                return self._fenced(known, newer), None
        held = self._settings.replicas_required > 1
        broker = open_as(self._path, self._chosen, held=held, hold_ends=may_have_escaped(Path(self._path)))
        broker.listen_if_possible()
        return broker, None

    def _is_promoted(self, known: Epochs | None, source: str, ask: bool) -> bool:
        """Returns whether this node has replaced the source that its options still name."""
        if known is None or known.role != "source" or known.instead_of is None:
            return False
        there = _look(source) if ask else None
        if there is not None and there.accepted > known.number:
            return False
        text = "this node is the source in epoch %d: --replica-of %s is ignored, because that node has no later one"
        _log.warning(text, known.number, source, extra={"epoch": known.number})
        return True

    def _fenced(self, known: Epochs, newer: Epochs | None) -> EmbeddedBroker:
        """Opens a store that another node has replaced: it can be read."""
        broker = open_as(self._path, self._chosen, replica=True)
        if newer is not None:
            StoreEpochs(broker.store).accept(newer.accepted, newer.source)
        if known.required < 2:  # Otherwise, what lacks copies was never shown, and a rejoin may cut it.
            broker.store.show_up_to(broker.store.appended_end)
        broker.listen_if_possible()
        return broker


def _newer(known: Epochs) -> Epochs | None:
    """Returns what a node knows of which this one was replaced; None if no node that can be reached does."""
    for address in {*known.nodes.values(), known.instead_of or ""} - {""}:
        there = _look(address)
        if there is not None and there.accepted > known.accepted:
            return there
    return None


def _look(address: str) -> Epochs | None:
    try:
        with Source(address, ConnectConfig.from_environment(), seconds=_ASK_SECONDS) as node:
            return Epochs.parse(node.state()["epochs"])
    except (BrokerUnreachableError, TxStoreError) as error:
        _log.info("%s does not say which epoch it is in: %s", address, error)
        return None


def _host_and_port(address: str) -> tuple[str, int]:
    """Returns IP address and port. A host name becomes 127.0.0.1, since records store addresses only."""
    host, _, port = address.rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        return "127.0.0.1", int(port) if port.isascii() and port.isdigit() else 0
