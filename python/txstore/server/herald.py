"""Tells the other nodes that this one is the source, until each of them knows.

In:     their addresses, and the epoch that this node has begun.
Out:    nodes that have accepted it: an old source that comes back stops writing.
Always: one thread, which ends when all of them know.
"""

import logging
import threading
from collections.abc import Iterable

from txstore.client.options import ConnectConfig
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, TxStoreError
from txstore.server.replication import NoTxstoreError, Source

__all__ = ["Herald"]

_log = logging.getLogger("txstore.replica")
_AGAIN_SECONDS = 1.0
_TELL_SECONDS = 2.0


class Herald:
    """Tells nodes of an epoch."""

    def __init__(self, number: int, own: str, others: Iterable[str], store_id: str | None) -> None:
        """`own` is this node's address, `others` are those of the nodes that must know."""
        self._number, self._own, self._store_id = number, own, store_id
        self._others = {address for address in others if address and address != own}
        self._refused: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txstore-herald", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops telling them. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        config = ConnectConfig.from_environment()
        while self._others and not self._stopped.is_set():
            for address in list(self._others):
                if not self._stopped.is_set() and self._tell(address, config):
                    self._others.discard(address)
            self._stopped.wait(_AGAIN_SECONDS)

    def _tell(self, address: str, config: ConnectConfig) -> bool:
        try:
            with Source(address, config, seconds=_TELL_SECONDS) as node:
                node.accept_epoch(self._number, self._own, self._store_id, timeout=_TELL_SECONDS)
        except (BrokerUnreachableError, BrokerTimeoutError):
            return False
        except NoTxstoreError:
            self._warn(address, "%s is a broker of RocketMQ, and this node has replaced it: stop it", address)
            return False
        except TxStoreError as error:
            self._warn(address, "%s does not accept epoch %d: %s", address, self._number, error)
            return False
        _log.info("%s knows that this node is the source in epoch %d", address, self._number)
        return True

    def _warn(self, address: str, text: str, *values: object) -> None:
        """Logs the first refusal of a node."""
        if address not in self._refused:
            self._refused.add(address)
            _log.warning(text, *values)
