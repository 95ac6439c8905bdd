"""Compares appending 1 KiB with embedded logs and stores that a user might pick instead, and with the machine's
limits.

In:     `python -m benches.peers.others [--quick]`.
Out:    rows: one call each and by 100, each with and without a sync.
Always: each stores the same bodies under a number of 8 bytes, in one process with one thread, and does not do more than
        is compared: no sync where ours waits for none.

| name | not synced | synced |
|---|---|---|
| LMDB | `sync=False, writemap=True, map_async=True` | `sync=True` |
| rocksdict | with its log, `sync=False` | `sync=True` |
| sqlite3 | WAL, `synchronous=NORMAL` | WAL, `synchronous=FULL` |
| Chronicle Queue, in Java | `writeBytes` | `SyncMode.SYNC` and `sync()` |
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from benches.peers import chronicle
from benches.peers.table import Row, against, alone
from benches.python import loads, peers
from benches.python.loads import BATCH, BODY, TOPIC
from benches.python.measure import Scale, in_turns, per_second, scratch
from txstore import FlushDiskType

_MAP_BYTES = 64 << 30  # Of addresses; the file is as large as what is in it.
_INSERT = "INSERT INTO messages (topic, body) VALUES (?, ?)"
Load = Callable[[int], float]


def _ranges(count: int, batch: int) -> Iterator[range]:
    return (range(first, first + batch) for first in range(0, count, batch))


def lmdb(count: int, batch: int, sync: bool) -> float:
    """Puts at the end, in transactions of `batch`."""
    import lmdb

    def run(folder: Path) -> float:
        environment = lmdb.open(
            str(folder / "lmdb"), map_size=_MAP_BYTES, sync=sync, metasync=sync, writemap=not sync, map_async=not sync
        )

        def work() -> None:
            for numbers in _ranges(count, batch):
                with environment.begin(write=True) as transaction:
                    for number in numbers:
                        transaction.put(number.to_bytes(8, "big"), BODY, append=True)

        rate = per_second(count, work)
        assert environment.stat()["entries"] == count
        environment.close()
        return rate

    with scratch() as folder:
        return run(folder)


def rocksdict(count: int, batch: int, sync: bool) -> float:
    """Puts, or batches of them, into the log and the memory table."""
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    with scratch() as folder:
        store = Rdict(str(folder / "rocks"), Options(raw_mode=True))
        how = WriteOptions()
        how.sync = sync

        def one_by_one() -> None:
            for number in range(count):
                store.put(number.to_bytes(8, "big"), BODY, write_opt=how)

        def by_batch() -> None:
            for numbers in _ranges(count, batch):
                group = WriteBatch(raw_mode=True)
                for number in numbers:
                    group.put(number.to_bytes(8, "big"), BODY)
                store.write(group, write_opt=how)

        rate = per_second(count, one_by_one if batch == 1 else by_batch)
        assert store[(count - 1).to_bytes(8, "big")] == BODY
        store.close()
        return rate


def sqlite(count: int, batch: int, sync: bool) -> float:
    """Inserts, in transactions of `batch`."""
    with scratch() as folder:
        database = peers.sqlite_table(folder / "messages.db", "FULL" if sync else "NORMAL")

        def work() -> None:
            for numbers in _ranges(count, batch):
                _insert(database, len(numbers))

        rate = per_second(count, work)
        database.close()
        return rate


def _insert(database: sqlite3.Connection, count: int) -> None:
    if count == 1:
        database.execute(_INSERT, (TOPIC, BODY))
        return
    database.execute("BEGIN")
    database.executemany(_INSERT, ((TOPIC, BODY) for _ in range(count)))
    database.execute("COMMIT")


def _works(count: int, batch: int, sync: bool) -> dict[str, Callable[[], float]]:
    """All that is compared in one set of turns, ours first."""
    size = loads.record_bytes()
    mode = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    ours = loads.send if batch == 1 else loads.send_batch
    works = {
        "send" if batch == 1 else "send_batch": lambda: ours(count, mode),
        "LMDB": lambda: lmdb(count, batch, sync),
        "rocksdict": lambda: rocksdict(count, batch, sync),
        f"sqlite3, WAL, {'FULL' if sync else 'NORMAL'}": lambda: sqlite(count, batch, sync),
        # It has no batches: unsynced messages are written one by one.
        "Chronicle Queue, in Java": lambda: chronicle.append(count, len(BODY), batch if sync else 0),
    }
    if sync:
        limit = "limit: pwrite and fdatasync in Rust, zeros written before"
        works[limit] = lambda: batch * peers.limit("fdatasync", count // batch, size * batch)
    else:
        works["limit: pwrite to fresh pages, in Rust"] = lambda: peers.limit("pwrite", count, size)
        works["limit: copies to fresh memory, in Rust"] = lambda: peers.limit("memcpy", count, size)
    return works


def rows(scale: Scale) -> Iterator[Row]:
    """Measures all rows."""
    for sync, batch, most in ((False, 1, 400_000), (False, BATCH, 400_000), (True, 1, 5_000), (True, BATCH, 100_000)):
        count = scale.count(most) // batch * batch
        works = _works(count, batch, sync)
        found = in_turns(scale.turns, works)
        how = "one call each" if batch == 1 else f"by {BATCH}"
        ours, *theirs = works
        yield from against("others", f"append 1 KiB, {how}, {'synced' if sync else 'not synced'}", found, ours, theirs)


if __name__ == "__main__":
    alone("others", __doc__, rows)
