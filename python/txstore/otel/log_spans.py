"""The spans of a server: one for each record of its log that carries the context of a trace.

In:     a writer's store, from its visible end on.
Out:    spans `store TOPIC`, as children of the spans that sent the messages.
Always: runs in a thread of its own and reads what is visible, so no client waits for it. It skips records when it is
        far from the log's end, and logs how many bytes.
Not here: how long a client's request took: the engine answers those without Python, so these spans have the time at
        which the record was stored, and no length.
"""

import logging
import threading

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from txstore._native import Store, StoredMessage
from txstore.errors import StoreClosedError, TxStoreError
from txstore.otel.context import carried
from txstore.otel.spans import PRODUCER_GROUP, TRANSACTION_ID, Spans

__all__ = ["LogSpans"]

_log = logging.getLogger("txstore.otel")
_WAIT_MS = 500
_RECORDS = 256
_LAG_BYTES_MAX = 64 << 20
_KINDS = {"none": "message", "prepared": "half", "commit": "committed", "rollback": "discarded"}


class LogSpans:
    """Follows a log until it is stopped."""

    def __init__(self, store: Store, provider: trace.TracerProvider | None = None) -> None:
        """`provider`: None for the program's."""
        self._store = store
        self._spans = Spans(provider)
        self._at = store.stat().visible_physical_offset
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txstore-otel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Notes what is visible by now, and ends the thread. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            last = False
            while not last:
                last = self._stopped.is_set()
                end = self._store.wait_for_messages(self._at, 0 if last else _WAIT_MS)
                self._read_to(end)
        except StoreClosedError:
            return
        except TxStoreError as error:
            _log.error("no more spans of records: the log cannot be read: %s", error)

    def _read_to(self, end: int) -> None:
        if end - self._at > _LAG_BYTES_MAX:
            _log.warning("no spans for %d bytes of the log: reading is slower than writing", end - self._at)
            self._at = end
        while self._at < end:
            records, self._at = self._store.scan(self._at, _RECORDS)
            for record in records:
                self._note(record)
            if not records:
                return

    def _note(self, record: StoredMessage) -> None:
        properties = record.properties
        parent = carried(properties)
        if parent is None or not parent.trace_flags.sampled:
            return
        at = record.store_timestamp_ms * 1_000_000
        attributes: dict[str, AttributeValue | None] = {
            "messaging.message.id": record.message_id,
            "messaging.message.body.size": len(record.stored_body),
            "messaging.destination.partition.id": str(record.real_queue_id),
            TRANSACTION_ID: record.transaction_id,
            PRODUCER_GROUP: record.producer_group,
            "txstore.record": _KINDS[record.transaction_type],
            "txstore.physical_offset": record.physical_offset,
        }
        self._spans.at("store", None, record.real_topic, SpanKind.SERVER, parent, attributes, (at, at))
