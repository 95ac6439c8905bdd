"""Compares a store on disk with what its clients were told, promise by promise.

In:     a store's directory, what was told.
Out:    nothing, or an assertion that begins with the broken promise's code.
Always: the bytes are also read by tests/golden/reader.py, which shares no code with the engine, so one mistake cannot
        hide in both.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import txstore
from tests.crash.workload import READERS, STATES, TOPIC, body, fate
from tests.golden import reader
from tests.golden.unpack import file_hashes
from txstore import AlreadyEndedError, EmbeddedBroker

_READ_AT_ONCE = 512
_SAMPLES = 6
_HIDING = {"REAL_TOPIC", "REAL_QID", "__CRC32#"}


@dataclass
class Told:
    """What clients were told, over all lives of a store."""

    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key → queue id, queue offset."""
    prepared: dict[str, str] = field(default_factory=dict)
    """Transaction id → key."""
    ended: dict[str, str] = field(default_factory=dict)
    """Transaction id → outcome."""
    got: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Queue id → queue offset → key."""
    prefixes: list[tuple[int, int]] = field(default_factory=list)
    """An end of the log that an opening found, and the CRC of all bytes before it."""

    def hear(self, words: list[list[Any]]) -> None:
        """Adds the reports of one life. A consumer begins at or before the point where the last one was; then
        nothing is skipped.
        """
        begun: dict[int, int] = {}
        for word, *facts in words:
            if word == "sent":
                self.sent[facts[0]] = (facts[1], facts[2])
            elif word == "prepared":
                self.prepared[facts[1]] = facts[0]
            elif word == "ended":
                self.prepared[facts[1]] = facts[0]
                self.ended[facts[1]] = facts[2]
            elif word == "got":
                self._got(begun, *facts)
            else:
                assert word in ("open", "closed", "full", "room", "error"), facts

    def _got(self, begun: dict[int, int], key: str, queue_id: int, queue_offset: int) -> None:
        known = self.got[queue_id]
        expected = begun.get(queue_id)
        if expected is None:
            assert queue_offset <= max(known, default=-1) + 1, (
                f"D1: queue {queue_id} continues at {queue_offset}: a gap"
            )
        else:
            assert queue_offset == expected, f"D1: queue {queue_id} continues at {queue_offset}, not {expected}"
        begun[queue_id] = queue_offset + 1
        assert known.setdefault(queue_offset, key) == key, f"D1: another message at {queue_id}/{queue_offset}"


def check(path: Path, told: Told, *, read_only: bool, **options: Any) -> None:
    """Opens the store and checks all of it; opening read-only must leave every byte unchanged."""
    before = file_hashes(path) if read_only else {}
    # A transaction that was checked often is not discarded meanwhile, which would write.
    with txstore.open(path, read_only=read_only, **{"transaction_check_max": 10_000, **options}) as broker:
        end = broker.stat().max_physical_offset
        log = list(reader.records(path, end))  # A power loss may leave a torn record after it.
        _log(path, log, end, broker.stat().commit_log_file_size, told)
        _queues(broker, log)
        _sent(log, told)
        _read_before(log, told)
        _transactions(broker, log, told)
        if not read_only:
            _ends_again(broker, told)
            _progress(path, log)
    if read_only:
        assert file_hashes(path) == before, "L8: a read-only opening wrote something"
    else:
        told.prefixes.append((end, _prefix_crc(path, end)))


def check_rebuilt(path: Path, told: Told, **options: Any) -> None:
    """L6: without all derived files, a writer creates the same again."""
    for derived in ("consumequeue", "index"):
        for file in sorted((path / derived).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    for derived in ("checkpoint", "txstore/snapshot"):
        (path / derived).unlink(missing_ok=True)
    check(path, told, read_only=False, **options)


def _prefix_crc(path: Path, end: int) -> int:
    """The CRC of the log's bytes before `end`."""
    crc = 0
    for file in sorted(file for file in (path / "commitlog").iterdir() if file.name.isdigit()):
        crc = zlib.crc32(file.read_bytes()[: max(0, end - int(file.name))], crc)
    return crc


def _log(path: Path, log: list[reader.Record], end: int, file_size: int, told: Told) -> None:
    """L1, L3, L4."""
    reached = log[-1].physical_offset + log[-1].size if log else 0
    if end % file_size == 0:
        # A kill between the parts of a write leaves the blank record that fills a file, and nothing after it.
        reached += -reached % file_size
    assert reached == end, f"L1: the log ends at {end}, its records at {reached}"
    for known, crc in told.prefixes:
        assert known <= end, f"L1: the log ended at {known} before, and now at {end}"
        assert _prefix_crc(path, known) == crc, f"L3: the bytes before {known} have changed"
    nexts: dict[tuple[str, int], int] = defaultdict(int)
    for record in log:
        queue = (record.topic, record.queue_id)
        assert record.queue_offset == nexts[queue], f"L4: {queue} has {record.queue_offset} after {nexts[queue] - 1}"
        assert zlib.crc32(record.body) & 0x7FFFFFFF == record.body_crc, f"L5: the body at {record.physical_offset}"
        nexts[queue] += 1


def _queues(broker: EmbeddedBroker, log: list[reader.Record]) -> None:
    """L6: the queues, and some keys of the index, are the function of the log."""
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    keys: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in log:
        expected[record.topic, record.queue_id].append(record.physical_offset)
        for key in {record.properties.get("KEYS"), record.properties.get("UNIQ_KEY")} - {None}:
            keys[record.topic, str(key)].insert(0, record.physical_offset)
    found: dict[tuple[str, int], list[int]] = {}
    for topic, queue_id, first, end in broker.store.queues():
        assert first == 0
        offsets: list[int] = []
        while len(offsets) < end:
            messages, following = broker.store.read(topic, queue_id, len(offsets), _READ_AT_ONCE)
            offsets += [message.physical_offset for message in messages]
            assert following == len(offsets) > 0, f"L6: {topic}/{queue_id} ends at {len(offsets)}, not {end}"
        if offsets:
            found[topic, queue_id] = offsets
    odd = {queue for queue in found.keys() | expected.keys() if found.get(queue) != expected.get(queue)}
    assert not odd, (
        f"L6: {odd} are not those of the log: {[(len(found.get(p, [])), len(expected.get(p, []))) for p in odd]}"
    )
    for topic, key in random.Random(len(log)).sample(sorted(keys), min(_SAMPLES, len(keys))):
        offsets = [message.physical_offset for message in broker.store.query(topic, key)]
        assert offsets == keys[topic, key], f"L6: the index of {topic} {key}"


def _sent(log: list[reader.Record], told: Told) -> None:
    """L2, T3: each acknowledged message exists once, at its offset, with its body; there is nothing that no client
    sent.
    """
    found: dict[str, reader.Record] = {}
    for record in log:
        if record.topic == TOPIC:
            key = record.properties["KEYS"]
            assert key not in found, f"T7: the message of {key} is there twice"
            assert record.body == body(key), f"L1: another body at {record.physical_offset}"
            assert "REAL_TOPIC" not in record.properties, f"T1: a half message at {record.physical_offset} is visible"
            found[key] = record
    for key, where in told.sent.items():
        assert key in found, f"L2: the acknowledged message {key} is lost"
        assert (found[key].queue_id, found[key].queue_offset) == where, f"L2: {key} is not where it was"


def _read_before(log: list[reader.Record], told: Told) -> None:
    """D1: what a consumer has seen stays."""
    visible = {(record.queue_id, record.queue_offset): record for record in log if record.topic == TOPIC}
    for queue_id, known in told.got.items():
        for queue_offset, key in known.items():
            record = visible.get((queue_id, queue_offset))
            assert record is not None, f"D1: {key} was read and is gone"
            assert record.properties["KEYS"] == key, f"D1: another message at {queue_id}/{queue_offset}"


def _outcome(transaction: reader.Transaction) -> str:
    """The outcome rule, implemented a second time."""
    if transaction.finals:
        return "committed"
    if transaction.discards:
        return "discarded"
    return "rolled_back" if transaction.sent_op else "pending"


def _transactions(broker: EmbeddedBroker, log: list[reader.Record], told: Told) -> None:
    """T2 to T5, T7, T14: each transaction has one half message and one outcome, the one that was told."""
    outcomes: dict[str, str] = {}
    for transaction in reader.transactions(log):
        assert len(transaction.halves) == 1, f"T14: a half message was appended again: {transaction.key}"
        half = transaction.halves[0]
        name, outcome = half.properties["UNIQ_KEY"], _outcome(transaction)
        assert name not in outcomes
        outcomes[name] = outcome
        assert len(transaction.finals) + len(transaction.discards) <= 1, f"T7: {name} ended twice"
        for final in transaction.finals:
            kept = {name: value for name, value in half.properties.items() if name not in _HIDING}
            stored = {name: value for name, value in final.properties.items() if name not in _HIDING}
            assert (final.body, stored) == (half.body, kept), f"T3: the message of {name} is not its half"
            assert final.prepared_transaction_offset == half.physical_offset, f"T3: {name}"
        meant = fate(half.properties["KEYS"])
        assert outcome in ("pending", meant), f"T2: {name} was to be {meant} and is {outcome}"
    for name, key in told.prepared.items():
        assert name in outcomes, f"L2: the acknowledged half message of {key} is lost"
    for name, outcome in told.ended.items():
        assert outcomes[name] == outcome, f"T5: {name} was acknowledged as {outcome} and is {outcomes[name]}"
    rows = {row.transaction_id: row.state for row in broker.store.transactions()}
    assert rows == outcomes, "T2: the engine's history differs"
    pending = {name for name, outcome in outcomes.items() if outcome == "pending"}
    assert {one.transaction_id for one in broker.transactions()} == pending, "T2: the pending transactions differ"


def _ends_again(broker: EmbeddedBroker, told: Told) -> None:
    """T6: repeating the same end succeeds and writes nothing; any other end is an error that names the outcome."""
    before = broker.stat().max_physical_offset
    for name in random.Random(before).sample(sorted(told.ended), min(_SAMPLES, len(told.ended))):
        for outcome, state in STATES.items():
            try:
                ended = broker.end_transaction(name, state)
                assert ended.already, f"T6: {name} was ended once more"
                found, wanted = ended.outcome, True
            except AlreadyEndedError as refused:
                found, wanted = refused.outcome, False
            assert (found, wanted) == (told.ended[name], outcome == told.ended[name]), f"T6: {name}"
    assert broker.stat().max_physical_offset == before, "T6: ending again wrote something"


def _progress(path: Path, log: list[reader.Record]) -> None:
    """T8, T9, D2."""
    progress = reader.half_progress(path)
    halves = sum(record.topic == reader.HALF_TOPIC for record in log)
    assert progress <= halves, f"D2: the progress is {progress}, of {halves} halves"
    for transaction in reader.transactions(log):
        number = transaction.halves[0].queue_offset
        if _outcome(transaction) == "pending":
            assert number >= progress, f"T9: the progress {progress} has passed the pending half {number}"
        else:
            assert transaction.ops or number < progress, f"T8: no op names the decided half {number}"


def check_offsets(broker: EmbeddedBroker, told: Told) -> None:
    """D2: no offset is beyond its queue's end, or beyond what was delivered."""
    for topic, group, queue_id, queue_offset in broker.store.consumer_offsets():
        assert queue_offset <= broker.queue_range(topic, queue_id)[1] or group != READERS, "D2: beyond the end"
        if group == READERS:
            handed_out = max(told.got[queue_id], default=-1) + 1
            assert queue_offset <= handed_out, f"D1: {queue_offset} is acknowledged, {handed_out} was handed out"
