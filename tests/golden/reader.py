"""A second opinion: a small reader of RocketMQ's commit log, written from docs/internals/format.md alone.

In:     a store directory.
Out:    its records in log order, its consume-queue units, and the outcome of each transaction.
Always: shares no code with the engine, so one mistake cannot hide in both. It does not write, recover or decompress
        (the manifests carry hashes of both the stored and the decompressed body).
"""

from __future__ import annotations

import ipaddress
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
PROGRESS_GROUP = "CID_RMQ_SYS_TRANS"
MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
TRANSACTION_BITS, COMMIT_BITS = 0xC, 0x8
UNIT_BYTES = 20


@dataclass(frozen=True)
class Record:
    """One record of the commit log, field by field."""

    physical_offset: int
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_bytes: bytes
    raw: bytes = field(repr=False)

    @cached_property
    def properties(self) -> dict[str, str]:
        """Names and values; of equal names the last counts."""
        pairs = (item.split("\x01", 1) for item in self.properties_bytes.decode().split("\x02") if item)
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    @property
    def key(self) -> tuple[str, str, str, int] | None:
        """What makes records one transaction; None: a transaction alone."""
        group, unique = self.properties.get("PGROUP"), self.properties.get("UNIQ_KEY")
        if not group or not unique:
            return None
        real = self.properties.get("REAL_TOPIC", "") if self.topic in (HALF_TOPIC, DISCARD_TOPIC) else self.topic
        return group, unique, real, self.body_crc


def _host(raw: bytes, at: int, ipv6: bool) -> tuple[str, int]:
    width = 16 if ipv6 else 4
    address = ipaddress.ip_address(raw[at : at + width])
    (port,) = struct.unpack_from(">i", raw, at + width)
    return (f"[{address}]:{port}" if ipv6 else f"{address}:{port}"), at + width + 4


def decode(raw: bytes) -> Record:
    """The record that `raw` holds exactly. Raises ValueError if it is not one."""
    size, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born = struct.unpack_from(">iIiiiqqiq", raw)
    born_host, at = _host(raw, 48, bool(sys_flag & 0x10))
    (stored,) = struct.unpack_from(">q", raw, at)
    store_host, at = _host(raw, at + 8, bool(sys_flag & 0x20))
    reconsumed, prepared, length = struct.unpack_from(">iqi", raw, at)
    body, at = raw[at + 16 : at + 16 + length], at + 16 + length
    wide = magic == MAGIC_V2
    (length,) = struct.unpack_from(">h" if wide else ">b", raw, at)
    at += 2 if wide else 1
    topic, at = raw[at : at + length].decode(), at + length
    (length,) = struct.unpack_from(">h", raw, at)
    properties = raw[at + 2 : at + 2 + length]
    if at + 2 + length != size or size != len(raw):
        raise ValueError(f"record at {physical}: lengths do not add up")
    return Record(
        physical, size, magic, crc, queue_id, flag, queue_offset, sys_flag, born, stored, born_host, store_host,
        reconsumed, prepared, body, topic, properties, raw,
    )  # fmt: skip


def records(store: Path, end: int | None = None) -> Iterator[Record]:
    """Every record of the log in order; stops at the first offset without one, or at `end`."""
    for path in sorted(path for path in (store / "commitlog").iterdir() if re.fullmatch(r"\d{20}", path.name)):
        data, base, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= len(data) and (end is None or base + at < end):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == MAGIC_BLANK:
                break
            if magic not in (MAGIC_V1, MAGIC_V2):
                return
            record = decode(data[at : at + size])
            if record.physical_offset != base + at:
                raise ValueError(f"record at {base + at} names the offset {record.physical_offset}")
            yield record
            at += size


def units(store: Path, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    """The units of one consume queue: (physical offset, size, tags code)."""
    found: list[tuple[int, int, int]] = []
    for path in sorted((store / "consumequeue" / topic / str(queue_id)).iterdir()):
        found += [unit for unit in struct.iter_unpack(">qiq", path.read_bytes()) if unit[1] > 0]
    return found


def half_progress(store: Path) -> int:
    """The progress of the broker's checks in the half queue (its JSON has bare numbers as keys)."""
    path = store / "config" / "consumerOffset.json"
    if not path.exists():
        return 0
    text = path.read_text()
    table = json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text))["offsetTable"]
    return int(table.get(f"{HALF_TOPIC}@{PROGRESS_GROUP}", {}).get("0", 0))


@dataclass
class Transaction:
    """One transaction: its half records, and its outcome according to the log."""

    key: tuple[str, str, str, int] | None
    halves: list[Record] = field(default_factory=list)
    last_sent: int = 0
    finals: list[Record] = field(default_factory=list)
    discards: list[Record] = field(default_factory=list)
    ops: list[Record] = field(default_factory=list)
    sent_op: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.finals or self.discards or self.ops)

    def state(self, progress: int) -> str:
        """The outcome by docs/internals/transactions.md; `progress`: the half progress that a broker stored."""
        if self.finals:
            return "committed"
        if self.discards:
            return "discarded"
        if self.sent_op:
            return "rolled_back"
        return "finished_unknown" if all(half.queue_offset < progress for half in self.halves) else "pending"


class _Fold:
    """Folds a log into transactions, record by record."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.found: list[Transaction] = []
        self.newest: dict[tuple[str, str, str, int], Transaction] = {}
        self.by_physical_offset: dict[int, Transaction] = {}
        self.by_queue_offset: dict[int, Transaction] = {}

    def half(self, record: Record) -> None:
        """A put-back joins the newest of its key; a sent half only one that has not ended."""
        key = record.key
        known = self.newest.get(key) if key else None
        put_back = int(record.properties.get("TRANSACTION_CHECK_TIMES", "0")) > 0
        transaction = known if known and (put_back or not known.ended) else None
        if transaction is None:
            transaction = Transaction(key)
            self.found.append(transaction)
        if key:
            self.newest[key] = transaction
        if not put_back:
            transaction.last_sent = len(transaction.halves)
        transaction.halves.append(record)
        self.by_physical_offset[record.physical_offset] = self.by_queue_offset[record.queue_offset] = transaction

    def op(self, record: Record) -> None:
        """An op rolls back (alone) if it names the last sent half or a copy after it."""
        for queue_offset in map(int, filter(None, record.body.decode().split(","))):
            named = self.by_queue_offset.get(queue_offset)
            if named is not None:
                named.ops.append(record)
                named.sent_op = named.sent_op or queue_offset >= named.halves[named.last_sent].queue_offset

    def owner(self, record: Record, *, newest_will_do: bool) -> Transaction | None:
        """The transaction whose copy a final or discarded message names."""
        found = self.by_physical_offset.get(record.prepared_transaction_offset)
        if found is not None and found.key == record.key:
            return found
        return self.newest.get(record.key) if newest_will_do and record.key else None

    def end(self, record: Record) -> None:
        """A broker's discarded copies name no offset; a final's half may be gone with the log's front."""
        if record.topic == DISCARD_TOPIC:
            owner = self.owner(record, newest_will_do=True)
            if owner is not None:
                owner.discards.append(record)
        elif record.sys_flag & TRANSACTION_BITS == COMMIT_BITS:
            owner = self.owner(record, newest_will_do=record.prepared_transaction_offset < self.minimum)
            if owner is not None:
                owner.finals.append(record)


def transactions(log: list[Record]) -> list[Transaction]:
    """Folds a log into its transactions, in the order of their first half."""
    fold = _Fold(log[0].physical_offset if log else 0)
    steps = {HALF_TOPIC: fold.half, OP_TOPIC: fold.op}
    for record in log:
        steps.get(record.topic, fold.end)(record)
    return fold.found
