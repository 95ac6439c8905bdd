"""Compares transactions that survive a power failure with RocketMQ's, and measures what they cost concurrent sends.

In:     `python -m benches.peers.durable [--quick]`.
Out:    rows.
Always: as in `engine`, RocketMQ's store is called within its warm Java process and txstore from Python, and each turn
        of both writes a new store of its own.

- *half synced*: txstore's default (a check would repeat an end that a power failure loses), compared with RocketMQ's
`SYNC_FLUSH`.
- *everything synced*: `flush_disk_type="SYNC_FLUSH"`, compared with RocketMQ's `SYNC_FLUSH`.
- *99th percentile of sends*: ordinary sends of one thread during transactions of 64 threads, whose halves are synced or
not.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import txstore
from benches.peers.engine import GROUP, OURS, THEIRS, TOPIC, Theirs, transact
from benches.peers.table import Row, against, alone
from benches.python.loads import NOT_SYNCED, Commits
from benches.python.measure import Scale, in_turns, scratch
from tests.peer import rocketmq
from txstore import Message

_SIZE = 1024
_THREADS = 64
_HALF_SYNCED: dict[str, Any] = {}
"""The default settings."""
_ALL_SYNCED: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"}
_PAUSE_SECONDS = 0.001
_THREADS_PAUSE_SECONDS = 0.05
"""Pause of each thread after a transaction: both rows have the same concurrent load, which fills no disk."""


def _transactions(theirs: Theirs, scale: Scale) -> Iterator[Row]:
    for what, options in (("half synced", _HALF_SYNCED), ("everything synced", _ALL_SYNCED)):
        for threads, count in ((1, scale.count(10_000)), (_THREADS, scale.count(100_000, 6_400))):
            found = in_turns(
                scale.turns,
                {
                    OURS: lambda: transact(count, _SIZE, threads, **options),  # noqa: B023 - called within the turn.
                    THEIRS: lambda: theirs.run("transact", count, sync=True, body_bytes=_SIZE, threads=threads),  # noqa: B023
                },
            )
            work = f"whole transaction {_SIZE} B, {threads} thread{'s' * (threads > 1)}, {what} against SYNC_FLUSH"
            yield from against("durable", work, found, OURS, [THEIRS])


def slow_send_ms(sends: int, **options: Any) -> float:
    """The 99th percentile of ordinary sends, in ms, while 64 threads run transactions in the same store."""
    body, over = bytes(_SIZE), threading.Event()
    with scratch() as folder, txstore.open(folder / "store", **options) as broker:
        producer, checked = broker.producer(GROUP), broker.transaction_producer(f"{GROUP}-checked", Commits())
        producer.send(Message(TOPIC, body))

        def transactions() -> None:
            while not over.is_set():
                checked.send_in_transaction(Message(TOPIC, body))
                time.sleep(_THREADS_PAUSE_SECONDS)

        others = [threading.Thread(target=transactions) for _ in range(_THREADS)]
        for thread in others:
            thread.start()
        times = []
        try:
            for _ in range(sends):
                start = time.perf_counter()
                producer.send(Message(TOPIC, body))
                times.append(time.perf_counter() - start)
                time.sleep(_PAUSE_SECONDS)
        finally:
            over.set()
            for thread in others:
                thread.join()
        return sorted(times)[len(times) * 99 // 100] * 1000


def _sends_during(scale: Scale) -> Iterator[Row]:
    sends = scale.count(20_000)
    synced, not_synced = "halves synced", "halves not synced"
    found = in_turns(
        scale.turns,
        {
            synced: lambda: slow_send_ms(sends, **_HALF_SYNCED),
            not_synced: lambda: slow_send_ms(sends, **NOT_SYNCED),
        },
    )
    work = f"99th percentile of sends during {_THREADS} threads of transactions"
    yield from against("durable", work, found, synced, [not_synced], unit="ms", less_is_better=True)


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows."""
    yield from _sends_during(scale)
    with scratch() as folder, rocketmq.Home.build(folder).start(rocketmq.FAST_MACHINE) as peer:
        theirs = Theirs(peer)
        for _ in range(scale.turns):  # The compiler sees all of it before the measurement.
            theirs.run("transact", 100_000, body_bytes=_SIZE)
        yield from _transactions(theirs, scale)


if __name__ == "__main__":
    alone("durable", __doc__, rows)
