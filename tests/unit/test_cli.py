"""Guards what operators read from the command line: output and exit codes must be correct.

Commands run on a store that a killed RocketMQ broker left (13 transactions are pending), and on small ones made here.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyte
import pytest

import txstore
from tests.golden.unpack import Golden, file_hashes, unpack
from tests.unit.conftest import Run, facts
from txstore import errors
from txstore._native import Message, Store
from txstore.cli import output
from txstore.cli.exit_codes import exit_code
from txstore.cli.progress import Progress


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return unpack("tx-crash", tmp_path_factory.mktemp("cli"))


@pytest.fixture
def copy(crashed: Golden, tmp_path: Path) -> Path:
    return crashed.copy_to(tmp_path)


def test_inspection_commands_write_nothing(run: Run, crashed: Golden) -> None:
    before = file_hashes(crashed.store)
    one = facts(run, "tx", "list", crashed.store)[0]["transaction_id"]
    for command in (["store", "stat"], ["store", "check"], ["store", "dump"], ["tx", "list"], ["tx", "list", "--all"]):
        for as_json in ([], ["--json"]):
            code, out, err = run(*command, crashed.store, *as_json)
            assert (code, err) == (0, "")
            assert out
    for verb in ("show", "explain"):
        assert run("tx", verb, crashed.store, one)[0] == 0
    assert file_hashes(crashed.store) == before


def test_stat(run: Run, crashed: Golden) -> None:
    found = facts(run, "store", "stat", crashed.store)
    assert (found["min_physical_offset"], found["max_physical_offset"]) == (0, 566706)
    assert found["pending_transactions"] == 13
    assert found["open"]["clean"] is False
    assert {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queue_id": 0, "first": 0, "end": 155} in found["queue_ranges"]


def test_check_reports_messages_that_a_broker_doubled_and_succeeds(run: Run, crashed: Golden) -> None:
    found = facts(run, "store", "check", crashed.store)
    assert found["counts"]["records"] == found["counts"]["queue_entries"] == 256
    assert found["counts"]["transactions_pending"] == 13
    assert found["counts"]["transactions_committed_twice"] == len(found["notes"]) == 2
    assert found["damages"] == found["differences"] == []
    code, out, _ = run("store", "check", crashed.store)
    assert code == 0
    assert out.endswith("no problems found\n")


def test_check_finds_damage(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "damaged.store"
    with closing(Store.open(str(store), mapped_file_size_commit_log=1 << 20)) as native:
        sent = [native.append(Message("Orders", b"body of an order " * 20), 0) for _ in range(50)]
    log = store / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[sent[20].physical_offset + 150] ^= 0xFF
    log.write_bytes(data)
    code, out, err = run("store", "check", store)
    assert code == 4
    assert "damaged" in (out + err).lower()
    assert "nothing there" not in out, "what follows the damage was not read, so it cannot differ"
    assert "hint" not in out


def test_dump(run: Run, crashed: Golden) -> None:
    code, out, _ = run("store", "dump", crashed.store, "--bodies")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [record["physical_offset"] for record in records] == sorted(r["physical_offset"] for r in records)
    said = {message["commitLogOffset"]: message for message in crashed.manifest["messages"]}
    assert set(said) == {record["physical_offset"] for record in records}
    for record in records:
        assert len(base64.b64decode(record["body"])) == said[record["physical_offset"]]["bodyLen"]
    _, out, _ = run("store", "dump", crashed.store, "--topic", "TxA", "--limit", "3")
    assert [json.loads(line)["topic"] for line in out.splitlines()] == ["TxA"] * 3
    assert "body" not in json.loads(out.splitlines()[0])
    _, out, _ = run("store", "dump", crashed.store, "--from", records[250]["physical_offset"])
    assert len(out.splitlines()) == 6


def test_transactions_are_listed_and_explained(run: Run, crashed: Golden) -> None:
    pending = facts(run, "tx", "list", crashed.store)
    assert len(pending) == 13
    assert len(facts(run, "tx", "list", "--all", crashed.store)) == 108
    assert len(facts(run, "tx", "list", "--state", "rolled_back", crashed.store)) == 42
    committed = facts(run, "tx", "list", "--state", "committed", crashed.store)
    twice = next(row["transaction_id"] for row in committed if len(row["finals"]) == 2)
    code, out, _ = run("tx", "explain", crashed.store, twice)
    assert code == 0
    assert "committed 2 times" in out
    most = max(pending, key=lambda row: int(row["checks"]))["transaction_id"]
    told = facts(run, "tx", "explain", crashed.store, most)
    assert [event["kind"] for event in told["history"]][:2] == ["prepared", "put back"]
    assert "put back by a broker for check 1 " in told["history"][1]["what"]
    assert told["waiting"]["transaction_id"] == most


def test_command_and_api_explain_a_transaction_in_the_same_words(run: Run, crashed: Golden) -> None:
    rows = facts(run, "tx", "list", "--all", crashed.store)
    one_of_each = {row["state"]: row["transaction_id"] for row in rows if row["state"] != "pending"}
    with txstore.open(crashed.store, read_only=True) as broker:
        for state, transaction_id in one_of_each.items():
            code, out, _ = run("tx", "explain", crashed.store, transaction_id)
            first, _, rest = broker.transaction(transaction_id).explain().partition("\n")
            assert (code, out) == (0, f"{first.removesuffix(state)}{state.replace('_', ' ')}\n{rest}\n")


def test_transactions_are_ended_by_hand(run: Run, copy: Path) -> None:
    first, second, *_ = [row["transaction_id"] for row in facts(run, "tx", "list", copy)]
    assert facts(run, "tx", "commit", copy, first)["outcome"] == "committed"
    assert facts(run, "tx", "commit", copy, first)["already"] is True
    assert facts(run, "tx", "rollback", copy, second)["outcome"] == "rolled_back"
    code, out, err = run("tx", "commit", copy, second)
    assert (code, out) == (1, "")
    assert err.startswith("txstore: error: ")
    assert "rolled back" in err
    assert facts(run, "tx", "show", copy, first)["state"] == "committed"
    discarded = facts(run, "tx", "list", "--state", "discarded", copy)[0]["transaction_id"]
    assert facts(run, "tx", "resume", copy, discarded)["transaction_id"] == discarded
    assert discarded in {row["transaction_id"] for row in facts(run, "tx", "list", copy)}
    assert run("tx", "resume", copy, discarded)[0] == 1


def test_heal_prints_what_to_do_next(run: Run, copy: Path) -> None:
    (copy / "commitlog" / "!txstore-open").write_bytes(b"x")
    assert run("store", "heal", copy)[0] == 0
    assert not (copy / "commitlog" / "!txstore-open").exists()
    assert not (copy / "abort").exists()
    assert facts(run, "store", "stat", copy)["open"]["clean"] is True


def test_exit_codes(run: Run, copy: Path, tmp_path: Path) -> None:
    code, out, err = run("tx", "show", copy, "NO-SUCH-ID")
    assert (code, out) == (1, "")
    assert "NO-SUCH-ID" in err
    for nothing in (tmp_path / "nowhere", tmp_path):
        for command in (["store", "stat"], ["store", "heal"]):
            code, _, err = run(*command, nothing)
            assert code == 3
            assert "hint:" in err
    assert list(tmp_path.iterdir()) == [copy]
    with closing(Store.open(str(copy))):
        code, _, err = run("store", "heal", copy)
        assert code == 3
        assert "hint:" in err
        assert run("tx", "list", copy)[0] == 0
    assert run("store", "nonsense")[0] == 2
    assert run("tx", "list", copy, "--state", "x")[0] == 2
    assert "Traceback" not in run("store", "stat", copy)[2]


def test_every_error_has_a_code() -> None:
    assert exit_code(errors.StoreCorruptError("x")) == 4
    assert exit_code(errors.InvalidOptionError("x")) == 2
    assert exit_code(errors.TransactionNotFoundError("x")) == 1
    assert exit_code(errors.StoreLockedError("x")) == 3


def test_missing_log_file_is_damage(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "gap.store"
    with closing(Store.open(str(store), mapped_file_size_commit_log=1 << 16)) as native:
        for _ in range(300):
            native.append(Message("Orders", b"x" * 900), 0)
    files = sorted(path for path in (store / "commitlog").iterdir() if re.fullmatch(r"\d{20}", path.name))
    shutil.move(files[1], tmp_path / "gone")
    code, out, err = run("store", "check", store)
    assert code == 4
    assert files[1].name in out + err


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0ms"), (999, "999ms"), (61_000, "1m 1s"), (90_061_000, "1d 1h"), (-5_000, "-5s")]
)
def test_ages(milliseconds: int, text: str) -> None:
    assert output.age(milliseconds) == text


def test_sizes_and_times() -> None:
    assert [output.size(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert output.utc(datetime(2023, 11, 14, 22, 13, 20, 7_999, UTC)) == "2023-11-14 22:13:20.007Z"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_is_drawn_only_on_a_terminal_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for total, drawn in ((200, "50%"), (0, "100")):
        watched, piped = _Terminal(), io.StringIO()
        for stream in (watched, piped):
            with Progress("reading [b]", total, stream) as bar:
                bar.to(100)
                bar.wipe()
                stream.write("between\n")
                bar.to(100)
        assert piped.getvalue() == "between\n"
        assert drawn in watched.getvalue()
        screen = pyte.Screen(80, 5)
        screen.set_mode(pyte.modes.LNM)
        shown = pyte.Stream(screen)
        before, _, after = watched.getvalue().partition(drawn)
        shown.feed(before + drawn)
        assert screen.display[0].startswith("reading [b] ")
        shown.feed(after)
        assert [line for line in screen.display if line.strip()] == ["between".ljust(80)]
        assert not screen.cursor.hidden
