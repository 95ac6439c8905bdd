"""Guards repair of a damaged store: readable records keep their offsets, losses are named, and all can be undone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.copies import killed_copy
from tests.golden.unpack import NAMES, Golden, file_hashes, unpack
from tests.unit.conftest import SMALL, Run
from txstore import LocalTransactionState, Message
from txstore.inspection.deep import look

Position = tuple[str, int, int]
_FILE = 1 << 16


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return unpack("tx", tmp_path_factory.mktemp("repair"))


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A closed store with four files of its log, with transactions of all outcomes."""
    path = tmp_path / "orders.store"
    options = {**SMALL, "mapped_file_size_commit_log": _FILE, "max_message_size": 1 << 14}
    with txstore.open(path, **options) as broker, broker.producer("shop") as producer:
        for number in range(200):
            producer.send(Message("orders", bytes([number]) * 900, keys=[f"o-{number}"]))
            if number % 20 == 0:
                half = broker.prepare(Message("paid", b"x" * 50), 0, "order-service")
                states = [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK]
                if number % 60:
                    broker.end_transaction(half, states[number % 40 // 20])
        with broker.consumer("shipping", "orders") as consumer:
            consumer.poll(100)
            consumer.acknowledge()
    return path


def records(path: Path) -> dict[int, tuple[Position, bytes]]:
    """All readable records by physical offset, without the ones that the repair wrote."""
    found = {}
    with txstore.open(path, read_only=True) as broker:
        at = broker.stat().min_physical_offset
        while True:
            batch, following = broker.store.scan(at, 1000)
            for one in batch:
                found[one.physical_offset] = ((one.topic, one.queue_id, one.queue_offset), one.stored_body)
            if following <= at:
                return found
            at = following


def queued(path: Path) -> dict[Position, int]:
    """The physical offset in each entry of each queue."""
    found = {}
    with txstore.open(path, read_only=True) as broker:
        for topic, queue_id, at, end in broker.queues():
            while at < end:
                messages, at = broker.store.read(topic, queue_id, at, 1000)
                found.update({(topic, queue_id, one.queue_offset): one.physical_offset for one in messages})
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


def cut(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def log_file(store: Path, number: int) -> Path:
    return sorted(file for file in (store / "commitlog").iterdir() if file.name.isdigit())[number]


def repaired(run: Run, store: Path, *arguments: object) -> dict[str, Any]:
    code, out, err = run("store", "repair", store, "--json", *arguments)
    assert (code, err) == (0, "")
    done: dict[str, Any] = json.loads(out)
    return done


def put_back(store: Path, done: dict[str, Any]) -> None:
    """Undoes a repair as docs/operate/repair.md describes."""
    copies = Path(done["copies"])
    whole = {f"{offset:020}" for offset in json.loads((copies / "report.json").read_text())["found"]["whole"]}
    kept = shutil.copytree(copies, store.parent / "kept")
    copied = set(done["copied"])
    for name in ("consumequeue", "index", "config", "txstore", "checkpoint", "abort", "commitlog"):
        for file in [file for file in [store / name, *(store / name).rglob("*")] if file.is_file()]:
            if name != "commitlog" or file.name not in whole or str(file.relative_to(store)) in copied:
                file.unlink()
    for name in copied:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept / name, store / name)


# The damage, and whether it affects the log itself.
DAMAGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a body": (lambda store: flip(log_file(store, 1), 5000), True),
    "a header": (lambda store: flip(log_file(store, 0), 5), True),
    "a size": (lambda store: flip(log_file(store, 0), 2), True),
    "a cut log file": (lambda store: cut(log_file(store, 1), 30_000), True),
    "an empty log file": (lambda store: cut(log_file(store, 1), 0), True),
    "no log file in the middle": (lambda store: log_file(store, 1).unlink(), True),
    "no log file at the end": (lambda store: log_file(store, -1).unlink(), True),
    "a queue cut": (lambda store: cut(store / "consumequeue/orders/0" / f"{0:020}", 1010), False),
    "a queue flipped": (lambda store: flip(store / "consumequeue/orders/0" / f"{0:020}", 66), False),
    "no queues": (lambda store: shutil.rmtree(store / "consumequeue"), False),
    "the index cut": (lambda store: cut(next((store / "index").iterdir()), 5000), False),
    "the index flipped": (lambda store: flip(next((store / "index").iterdir()), 40 + 4000 + 20 + 7), False),
    "no index": (lambda store: shutil.rmtree(store / "index"), False),
    "the checkpoint cut": (lambda store: cut(store / "checkpoint", 7), False),
    "the checkpoint flipped": (lambda store: flip(store / "checkpoint", 1), False),
    "no checkpoint": (lambda store: (store / "checkpoint").unlink(), False),
    "the snapshot flipped": (lambda store: flip(store / "txstore/snapshot", 30), False),
    "no snapshot": (lambda store: (store / "txstore/snapshot").unlink(), False),
    "the published page cut": (lambda store: cut(store / "txstore/published", 9), False),
    "topics flipped": (lambda store: (store / "config/topics.json").write_text("{"), False),
    "offsets flipped": (lambda store: (store / "config/consumerOffset.json").write_text("{]"), False),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_readable_records_are_kept_and_everything_can_be_undone(run: Run, ours: Path, damage: str) -> None:
    hurt, in_log = DAMAGES[damage]
    before, entries = records(ours), queued(ours)
    assert run("store", "check", "--deep", ours)[0] == 0
    hurt(ours)
    damaged = file_hashes(ours)
    code, out, err = run("store", "check", "--deep", ours, "--json")
    assert err == ""
    found = json.loads(out)
    assert file_hashes(ours) == damaged, "checking writes nothing"
    assert code == 4 or not in_log
    assert run("store", "repair", ours, "--dry-run")[0] == code
    assert file_hashes(ours) == damaged
    done = repaired(run, ours)
    if not done["repaired"]:
        assert (code, found["repair"], in_log) == (0, [], False), "opening rebuilds it by itself"
        return
    assert (code != 0) == bool(found["repair"])
    code, out, err = run("store", "check", "--deep", ours)
    assert (code, err) == (0, ""), out
    after = records(ours)
    kept = {offset: record for offset, record in after.items() if record[0][0] != "TXSTORE_REPAIR" and offset in before}
    assert all(before[offset] == record for offset, record in kept.items()), "at its offset, with its bytes"
    gone = before.keys() - kept.keys()
    assert bool(gone) is in_log
    ranges = [(one["from"], one["to"]) for one in found["files"]["damages"]]
    assert all(any(first <= offset < end for first, end in ranges) for offset in gone), "only what was unreadable"
    lost = {(one["topic"], one["queue_id"], one["queue_offset"]) for one in done["lost"]}
    assert lost == {before[offset][0] for offset in gone}, "and it is named"
    assert {position: at for position, at in queued(ours).items() if at in before} == {
        position: at for position, at in entries.items() if position not in lost
    }
    assert repaired(run, ours) == {"repaired": False}, "a second repair does nothing"
    with txstore.open(ours) as broker:
        sent = broker.producer("shop").send(Message("orders", b"sent later"))
        assert broker.message(sent.message_id).body == b"sent later"
    put_back(ours, done)
    assert {name: one for name, one in file_hashes(ours).items() if "/repair-" not in name} == damaged


def flip_last_record(store: Path) -> None:
    last = max(records(store))
    flip(log_file(store, -1), last % _FILE + 100)


# For each kind of damage: how it arises, and what a repair does about it.
KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "front": (lambda store: log_file(store, 0).unlink(), "let the log begin after it"),
    "missing": (lambda store: log_file(store, 1).unlink(), "replace it with a file of filler records"),
    "length": (lambda store: cut(log_file(store, 1), 30_000), "restore its length, and check its content"),
    "bad": (lambda store: flip(log_file(store, 1), 5000), "fill the range, so that readers skip it"),
    "tail": (flip_last_record, "end the log before it"),
    "end": (lambda store: log_file(store, -1).unlink(), "end the log there"),
}


def test_every_kind_of_damage_of_the_engine_is_tested() -> None:
    engine = (Path(__file__).resolve().parents[2] / "rust/src/repair/mod.rs").read_text()
    assert set(re.findall(r'Self::\w+ => "(\w+)",', engine)) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_check_says_what_a_repair_does_about_each_kind_of_damage(ours: Path, tmp_path: Path, kind: str) -> None:
    hurt, does = KINDS[kind]
    store = ours
    if kind == "front":  # A store that was closed may begin anywhere.
        with txstore.open(ours):
            store = killed_copy(ours, tmp_path / "killed.store")
    hurt(store)
    depth = look(str(store))
    assert kind in {damage["kind"] for damage in depth.facts["damages"]}
    assert [line for line in depth.plan if line.endswith(f": {does}")] != [], depth.plan


def test_consumer_skips_lost_messages(run: Run, ours: Path) -> None:
    hurt, _ = DAMAGES["no log file in the middle"]
    before = records(ours)
    hurt(ours)
    done = repaired(run, ours)
    lost = {one["physical_offset"] for one in done["lost"]}
    with txstore.open(ours) as broker, broker.consumer("billing", "orders") as consumer:
        read = []
        while messages := consumer.poll(1000):
            read += [(message.physical_offset, message.body) for message in messages]
    expected = {at: body for at, (position, body) in before.items() if position[0] == "orders" and at not in lost}
    assert dict(read) == expected
    assert len(read) == len(expected)


@pytest.mark.parametrize("damage", ["a body", "a size", "a queue flipped", "the checkpoint flipped"])
def test_store_of_a_broker_is_repaired(run: Run, golden: Golden, tmp_path: Path, damage: str) -> None:
    store = golden.copy_to(tmp_path)
    assert run("store", "check", "--deep", store)[0] == 0
    before, entries = records(store), queued(store)
    if damage.startswith("a queue"):
        flip(next((store / "consumequeue/TxB").glob("*/*")), 3)
    elif damage == "the checkpoint flipped":
        flip(store / "checkpoint", 1)
    else:
        physical_offset = sorted(before)[len(before) // 2]
        flip(log_file(store, 0), physical_offset + (2 if damage == "a size" else 100))
    damaged = file_hashes(store)
    code, _, _ = run("store", "check", "--deep", store)
    assert (code == 0) == (damage == "a queue flipped"), "what every opening rebuilds is not a finding"
    done = repaired(run, store)
    if code == 0:
        assert done == {"repaired": False}
        assert queued(store) == entries
        return
    assert run("store", "check", "--deep", store)[0] == 0
    after = records(store)
    kept = {at: record for at, record in before.items() if at in after}
    assert len(before) - len([at for at in kept if after[at] == kept[at]]) == (damage in ("a body", "a size"))
    assert {at: after[at] for at in kept if after[at][0][0] != "TXSTORE_REPAIR"}.items() <= before.items()
    put_back(store, done)
    assert {name: one for name, one in file_hashes(store).items() if "/repair-" not in name} == damaged


@pytest.mark.parametrize("name", NAMES)
def test_leftovers_of_a_broker_are_not_damage(run: Run, tmp_path: Path, name: str) -> None:
    store = unpack(name, tmp_path).store
    before = file_hashes(store)
    code, out, err = run("store", "check", "--deep", store)
    assert (code, err) == (0, ""), out
    assert file_hashes(store) == before


def test_store_that_a_program_writes_can_be_checked(run: Run, ours: Path) -> None:
    with txstore.open(ours) as broker, broker.producer("shop") as producer:
        for _ in range(5):
            producer.send(Message("orders", b"x" * 1000))
            code, out, err = run("store", "check", "--deep", ours)
            assert (code, err) == (0, ""), out


def test_copies_go_to_another_directory(run: Run, ours: Path, tmp_path: Path) -> None:
    DAMAGES["a body"][0](ours)
    before = file_hashes(ours)
    for folder, what in ((ours / "copies", "is inside the store"), (ours, "is not empty")):
        code, _, err = run("store", "repair", ours, "--copy-to", folder)
        assert (code, what in err, "hint:" in err) == (2, True, True)
    assert file_hashes(ours) == before
    done = repaired(run, ours, "--copy-to", tmp_path / "copies")
    assert Path(done["copies"]) == tmp_path / "copies"
    assert (
        file_hashes(tmp_path / "copies")["commitlog/00000000000000065536"] == before["commitlog/00000000000000065536"]
    )
    assert not list((ours / "txstore").glob("repair-*"))


def test_store_in_use_and_repaired_store_are_reported(run: Run, ours: Path) -> None:
    with txstore.open(ours):
        DAMAGES["a body"][0](ours)
        code, _, err = run("store", "repair", ours)
        assert (code, "open" in err) == (3, True)
    for file in (ours / "commitlog").iterdir():
        file.write_bytes(b"\xff" * _FILE)
    code, _, err = run("store", "repair", ours)
    assert (code, "nothing to repair" in err) == (4, True)
    code, _, err = run("store", "check", "--deep", ours.parent)
    assert (code, "is not a store" in err) == (3, True)


def test_transactions_whose_end_is_lost_are_checked_again(run: Run, ours: Path) -> None:
    with txstore.open(ours, read_only=True) as broker:
        rolled_back = broker.transactions("rolled_back")[0].transaction_id
        assert rolled_back is not None
        (op,) = broker.transaction(rolled_back).ops
    flip(log_file(ours, op // _FILE), op % _FILE + 100)
    done = repaired(run, ours)
    assert done["lost_ops"] == 1
    assert rolled_back in done["pending"]
