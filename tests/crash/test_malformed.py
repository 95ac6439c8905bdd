"""Guards stores with damaged, cut, lost, swapped or foreign files: the store names the file and the offset, or
repairs it.

Each file of stores of ours (closed, and left by a kill) and of brokers' is damaged in each way (spoil.py). Reading may
never change a byte. Whatever is returned must be what was stored: a missing record is reported, derived files are
rebuilt or reported as damaged, and no input ends in a signal, a hang or an error without a name. `TXSTORE_MALFORMED`
sets how many damaged stores are opened, each by a reader and by a writer.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.copies import killed_copy
from tests.crash.look import Facts
from tests.crash.size import chance, count, steps
from tests.crash.spoil import DAMAGES, Spoilt, kinds_of, spoil
from tests.crash.workload import SIZES
from tests.crash.zygote import Zygote
from tests.golden import reader
from tests.golden.unpack import file_hashes, unpack

pytestmark = pytest.mark.kill
MALFORMED = count("MALFORMED", 60)
BROKERS = ["rolled", "tx", "tx-crash", "tx-ipv6", "extras", "5.3.3-tx"]
# The errors of a store that cannot be opened.
REFUSALS = {"StoreCorruptError", "MissingFileError", "ForeignStoreError", "InvalidOptionError", "StoreIOError"}
# The files that a refused writer may have changed: its own marks, and derived files.
MAY_CHANGE = ("abort", "lock", "commitlog/!", "txstore/", "consumequeue/", "index/", "checkpoint")
UNFINISHED = ".tmp"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@dataclass
class Base:
    """A good store, and what it shows."""

    name: str
    path: Path
    expected: Facts
    facts_path: Path

    @property
    def ours(self) -> bool:
        return self.name.startswith("ours")


def look(zygote: Zygote, path: Path, *, read_only: bool, expected: Path | None = None) -> Facts:
    """What a child sees in a store."""
    facts = path.with_suffix(".facts")
    arguments = {"path": str(path), "read_only": read_only, "facts": str(facts)}
    life = zygote.run("tests.crash.look:look", arguments | ({"expected": str(expected)} if expected else {}))
    assert (life.status, life.hung) == (0, False), f"P2: {life}"
    loaded: Facts = json.loads(facts.read_text())
    return loaded


@pytest.fixture(scope="module")
def bases(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    directory = tmp_path_factory.mktemp("malformed")
    paths = {name: unpack(name, directory / "golden" / name).store for name in BROKERS}
    script = {"options": {**SIZES, "flush_disk_type": "SYNC_FLUSH"}, "name": "ours"}
    for name, more in (("ours", {}), ("ours, killed", {"crash": True})):
        paths[name] = directory / name
        zygote.run("tests.crash.script:run", script | more | {"path": str(paths[name])})
    found = []
    for name, path in paths.items():
        expected = look(zygote, path, read_only=True)
        assert "refused" not in expected
        facts_path = directory / f"{name}.expected"
        facts_path.write_text(json.dumps(expected))
        found.append(Base(name, path, expected, facts_path))
    return found


def is_error(found: Any) -> bool:
    return isinstance(found, list) and len(found) > 0 and found[0] == "!"


class Verdict:
    """Decides whether what a damaged store shows is true, or reported as damaged."""

    def __init__(self, base: Base, kind: str, spoilt: Spoilt, facts: Facts, *, read_only: bool) -> None:
        self.base, self.kind, self.spoilt, self.facts, self.read_only = base, kind, spoilt, facts, read_only

    def verdict(self) -> str:
        """ "refused", "reported" or "whole"."""
        if "refused" in self.facts:
            name, text = self.facts["refused"]
            assert name in REFUSALS, f"{name}: {text}"
            assert "/" in text or name == "InvalidOptionError", f"P3: it names no file: {text}"
            return "refused"
        if "failed" in self.facts:
            assert self.facts["failed"][0] in REFUSALS, self.facts["failed"]
        reported = self._records()
        reported |= self._queues()
        reported |= self._transactions()
        self._keys()
        self._offsets()
        return "reported" if reported else "whole"

    def _touched(self, physical_offset: int) -> bool:
        """Whether the damage lies in that record."""
        if self.kind != "log":
            return False
        base = int(Path(self.spoilt.file).name)
        ends = [*sorted(map(int, self.base.expected["scan"])), 1 << 62]
        following = next(at for at in ends if at > physical_offset)
        return physical_offset < base + self.spoilt.end and base + self.spoilt.start < following

    def _records(self) -> bool:
        """L7, L8: each record is there, or its loss is reported; there is no record that was not stored."""
        each, scan, reported = self.facts["each"], self.facts["scan"], False
        for at, crc in self.base.expected["scan"].items():
            found = each[at]
            if is_error(found):
                self._may_be_gone(int(at), found)
                reported = True
            elif found != crc:
                # Where a broker wrote, no CRC covers a record's header.
                assert not self.base.ours, f"L5: the record at {at} has changed, and this is not reported"
                assert self._touched(int(at)), f"L1: the record at {at} has changed, though it was not damaged"
        if is_error(scan):
            return True
        strangers = set(scan) - set(self.base.expected["scan"])
        strangers = {at for at in strangers if int(at) < self.base.expected["end"]}
        assert not strangers, f"L1: records that were never stored: {strangers}"
        return reported

    def _may_be_gone(self, at: int, error: list[str]) -> None:
        """A record may be missing after a reported torn tail; below the durable end it is damage, or a lost file."""
        if error[1] in ("StoreCorruptError", "MissingFileError", "StoreIOError"):
            return
        if at < self.facts["first"] and self.kind == "log":
            # A log without its first files looks as after retention; only a store of ours records that they should
            # exist.
            assert self.base.name != "ours, killed", f"L8: the front of the log is gone: {error}"
            return
        assert at >= self.facts["end"], f"L7: the record at {at} is gone in the middle: {error}"
        is_closed = self.base.expected["clean"] and self.facts["clean"]
        assert not is_closed or self._may_be_stale(), f"L7: a closed store lost {at}: {error}"
        told = self.facts["truncated"] > 0 or self.facts["warnings"]
        assert told, f"L8: the record at {at} is gone, and this is not reported: {error}"
        assert not (self.base.ours and at < self._durable()), f"L7: the durable record at {at} was cut: {error}"

    def _may_be_stale(self) -> bool:
        """Whether a broker could have cut what is after the end that was found.

        A broker that recovers leaves what it cut. The checkpoint distinguishes that from damage by the time of the
        newest record, and cannot if the last record that is left has the same time. RocketMQ ends its log there, too.
        """
        if self.base.ours:
            return False
        times = {one.physical_offset: one.store_timestamp_ms for one in reader.records(self.base.path)}
        last = max((at for at in times if at < self.facts["end"]), default=None)
        return last is not None and times[last] == max(times.values())

    def _durable(self) -> int:
        """In SYNC_FLUSH all of it, if it is still recorded: in the page of the published ends, or in the snapshot."""
        return 0 if self.kind in ("published", "snapshot") else int(self.base.expected["end"])

    def _queues(self) -> bool:
        """L6: each entry leads to its message, or to an error."""
        reported = False
        for name, (first, _, entries) in self.base.expected["queues"].items():
            found_first, _, found = self.facts["queues"].get(name, [first, first, []])
            for number, entry in enumerate(entries, first):
                index = number - found_first
                shown = found[index] if 0 <= index < len(found) else None
                if shown == entry or name.startswith(OP_TOPIC):
                    continue
                if not self.base.ours and self._touched(entry[0][0]):
                    continue  # Its header, which no CRC covers there, may name another queue now.
                if shown is None or shown == [] or is_error(shown):
                    lost = self.facts["each"].get(str(entry[0][0]))
                    told = is_error(shown) or is_error(lost) or is_error(self.facts["scan"]) or self.facts["warnings"]
                    assert told, f"L6: entry {number} of {name} is gone, and this is not reported"
                    reported = True
                else:
                    assert shown[0][0] == entry[0][0], f"L6: entry {number} of {name} leads to {shown}, not to {entry}"
                    assert not self.base.ours, f"L5: entry {number} of {name} shows another message"
        return reported

    def _transactions(self) -> bool:
        """T2: each transaction has its outcome, or the log is reported as damaged."""
        found, expected = self.facts["transactions"], self.base.expected["transactions"]
        if is_error(found) or is_error(self.facts["scan"]):
            return True
        if any(is_error(record) for record in self.facts["each"].values()):
            return True
        changed = {at for at, state in expected.items() if found.get(at) != state}
        if self.kind == "offsets":
            # A broker's stored progress shows that some are finished, but not how.
            changed = {at for at in changed if "finished_unknown" not in (expected[at][1], found[at][1])}
        if not self.base.ours and self.kind == "log":
            return bool(changed)
        assert not changed, f"T2: {[(expected[at], found.get(at)) for at in changed]}"
        return False

    def _keys(self) -> None:
        """An index leads to no wrong message; without a CRC of its own it cannot detect a missing entry."""
        for key, offsets in self.base.expected["keys"].items():
            found = self.facts["keys"][key]
            if is_error(found) or found == offsets:
                continue
            assert set(found) <= set(offsets), f"L6: {key} is found at {found}, not {offsets}"
            gone = set(offsets) - set(found)
            lost = {at for at in gone if is_error(self.facts["each"][str(at)])}
            excused = self.kind in ("index", "log") or gone == lost
            assert excused, f"L6: the index has forgotten {key} at {gone}"

    def _offsets(self) -> None:
        """Consumers' offsets are there, older ones from `.bak`, or reported as lost."""
        found = {tuple(row[:3]): row[3] for row in self.facts["offsets"]}
        for *where, offset in self.base.expected["offsets"]:
            shown = found.get(tuple(where))
            if shown == offset or "CID_RMQ_SYS_TRANS" in where:
                continue
            assert self.facts["warnings"], (
                f"the offset of {where} was {offset} and is {shown}, and this is not reported"
            )


def test_L5_L7_L8_damage_is_named_or_repaired(bases: list[Base], zygote: Zygote, tmp_path: Path) -> None:
    luck = chance()
    cases = [(base, kind, damage) for base in bases for kind in kinds_of(base.path) for damage in DAMAGES]
    # Our stores more often: all of their bytes are covered.
    cases += [case for case in cases if case[0].ours] * 2
    rounds = -(-MALFORMED // len(cases))
    chosen = [case for _ in range(rounds) for case in luck.sample(cases, len(cases))][:MALFORMED]
    ends: Counter[str] = Counter()
    broken: list[str] = []
    for number in steps("malformed stores", len(chosen)):
        base, kind, damage = chosen[number]
        for read_only in (True, False):
            folder = tmp_path / f"{number}-{read_only}"
            folder.mkdir()
            killed_copy(base.path, folder / "store")
            spoilt = spoil(folder / "store", kind, damage, luck)
            try:
                ends[open_and_check(zygote, base, folder / "store", kind, spoilt, read_only=read_only)] += 1
            except AssertionError as error:
                who = "reader" if read_only else "writer"
                broken.append(f"{base.name}: {kind} {damage}: {spoilt}; {who}: {str(error)[:1000]}")
            shutil.rmtree(folder)
    print(", ".join(f"{end} {times:,}" for end, times in sorted(ends.items())))
    assert broken == [], f"{len(broken)} of {len(chosen)}:\n" + "\n\n".join(broken[:20])
    assert set(ends) == {"refused", "reported", "whole"} or MALFORMED < 200


def open_and_check(zygote: Zygote, base: Base, path: Path, kind: str, spoilt: Spoilt, *, read_only: bool) -> str:
    """How the child ended."""
    before = file_hashes(path)
    facts = look(zygote, path, read_only=read_only, expected=base.facts_path)
    end = Verdict(base, kind, spoilt, facts, read_only=read_only).verdict()
    after = file_hashes(path)
    touched = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if read_only:
        assert not touched, f"L8: a read-only opening changed {touched}"
    elif end == "refused" and "/config/" not in facts["refused"][1]:
        # Topics and groups are read when the engine has repaired the store already.
        wrong = {name for name in touched if not name.startswith(MAY_CHANGE) and not name.endswith(UNFINISHED)}
        assert not wrong, f"a refused opening changed {wrong}"
    return end


@pytest.mark.parametrize("kind", ["log", "lock", "published", "snapshot", "settings", "offsets", "checkpoint"])
def test_P2_pipe_instead_of_a_file_does_not_block(bases: list[Base], zygote: Zygote, tmp_path: Path, kind: str) -> None:
    base = next(base for base in bases if base.name == "ours")
    for read_only in (True, False):
        path = tmp_path / str(read_only) / "store"
        killed_copy(base.path, path)
        spoilt = spoil(path, kind, "a pipe", random.Random(1))
        open_and_check(zygote, base, path, kind, spoilt, read_only=read_only)


@pytest.mark.parametrize("length", [1, 39, 210, 19_999])
def test_P2_queue_of_half_entries_of_a_broker_sets_no_file_size(
    bases: list[Base], zygote: Zygote, tmp_path: Path, length: int
) -> None:
    """Its length was taken for that of all queue files, and closing looped over empty files for ever."""
    base = next(base for base in bases if base.name == "tx-crash")
    path = tmp_path / "store"
    killed_copy(base.path, path)
    os.truncate(path / "consumequeue" / "RMQ_SYS_TRANS_HALF_TOPIC" / "0" / f"{0:020}", length)
    spoilt = Spoilt("consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0", length, 20_000)
    open_and_check(zygote, base, path, "half queue", spoilt, read_only=False)
