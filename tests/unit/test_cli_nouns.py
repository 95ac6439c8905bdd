"""Guards the commands on topics, groups and messages, used while other programs use the store.

Each command runs as a program would call it; its output is compared with what the API finds, and wrong input gets an
error that says what is accepted.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.unit.conftest import SMALL, Run, facts
from tests.waiting import eventually
from txstore import Message
from txstore.broker.topics import GroupSettings
from txstore.cli import consume
from txstore.cli.records import print_message


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "orders.store"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 2)
    return path


def rows(run: Run, *arguments: object) -> list[Any]:
    """One JSON value per line."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_store_is_created_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.store"
    assert run("store", "create", path)[0] == 0
    assert facts(run, "store", "stat", path)["max_physical_offset"] == 0
    code, _, err = run("store", "create", path)
    assert (code, "already exists" in err) == (3, True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"mine")
    assert run("store", "create", tmp_path / "photos")[0] == 3
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["one.jpg"]


def test_message_is_sent_and_found_again(run: Run, store: Path) -> None:
    arguments = ["--tags", "paid", "--key", "o-17", "--key", "c-3", "--property", "shop=north", "--queue", 1]
    sent = facts(run, "send", store, "orders", "order 17 is paid", *arguments)
    assert (sent["topic"], sent["queue_id"], sent["queue_offset"]) == ("orders", 1, 0)
    for name in (sent["message_id"], sent["offset_message_id"]):
        found = facts(run, "message", "get", store, name)
        assert (found["body"], found["tags"], found["keys"]) == ("order 17 is paid", "paid", ["o-17", "c-3"])
        assert found["properties"]["shop"] == "north"
    assert [row["message_id"] for row in rows(run, "message", "by-key", store, "orders", "c-3")] == [sent["message_id"]]
    code, out, _ = run("message", "get", store, sent["message_id"])
    assert code == 0
    assert out.endswith("order 17 is paid\n")
    assert "shop      north" in out
    assert run("message", "by-key", store, "orders", "nothing") == (1, "no messages found\n", "")
    assert run("message", "get", store, "XX")[0] == 1


def test_bodies_from_a_file_and_a_pipe(run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff")
    sent = facts(run, "send", store, "orders", "--file", tmp_path / "body")
    assert facts(run, "message", "get", store, sent["message_id"])["body_base64"] == "AP8="
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\r\nthree")))
    assert run("send", store, "orders", "--lines") == (0, "3 sent\n", "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"all\nof it")))
    assert run("send", store, "orders")[0] == 0
    bodies = [row.get("body") for row in rows(run, "tail", store, "orders")]
    assert bodies == [None, "one", "two", "three", "all\nof it"]
    code, _, err = run("send", store, "orders", "body", "--lines")
    assert (code, "several bodies given" in err) == (2, True)
    code, _, err = run("send", store, "orders", "body", "--property", "name")
    assert (code, "--property NAME=VALUE" in err) == (2, True)


def test_message_is_sent_for_a_time_and_recalled(run: Run, store: Path) -> None:
    due = (datetime.now(timezone(timedelta(hours=2))) + timedelta(hours=20)).isoformat(timespec="seconds")
    sent = facts(run, "send", store, "orders", "pay!", "--deliver-at", due)
    code, out, err = run("send", store, "orders", "pay!", "--deliver-at", "20h")
    assert (code, err) == (0, "")
    handle = out.split()[-1]
    assert facts(run, "store", "stat", store)["timed_messages"] == 2
    assert facts(run, "message", "recall", store, sent["recall_handle"]) == {"recalled": sent["message_id"]}
    assert run("message", "recall", store, handle) == (0, f"{out.split()[0]} recalled\n", "")
    assert facts(run, "store", "stat", store)["timed_messages"] == 0
    code, _, err = run("message", "recall", store, handle)
    assert (code, "was delivered, recalled or never sent" in err) == (1, True)
    code, _, err = run("message", "recall", store, "x")
    assert (code, "is not a recall handle" in err) == (2, True)
    assert run("tail", store, "orders")[1] == ""


def test_store_is_handed_over_and_taken_back(run: Run, store: Path) -> None:
    sent = [facts(run, "send", store, "orders", "pay!", "--deliver-at", time) for time in ("20h", "10ms", "2h")]
    due = datetime.now(UTC) + timedelta(milliseconds=10)
    later = datetime.now(UTC) + timedelta(hours=1)
    with txstore.open(store) as broker:
        message = Message("orders", b"x", deliver_at=later)
        with pytest.raises(ZeroDivisionError), broker.transaction_producer("shop").transaction(message):
            raise ZeroDivisionError
    eventually(lambda: datetime.now(UTC) > due)
    done = facts(run, "store", "hand-over", store)
    assert done == {"handed_over": 2, "delivered": done["delivered"], "left": [], "pending": 1}
    code, out, err = run("store", "hand-over", store)
    assert (code, out.splitlines()[0]) == (0, "2 timed messages handed over; 0 that were due are delivered")
    assert "a broker delivers the messages of 1 pending transactions at the commit" in err
    ranges = {row["topic"]: row["end"] for row in facts(run, "store", "stat", store)["queue_ranges"]}
    assert ranges["rmq_sys_wheel_timer"] == 4, "moved, taken back, and moved again"
    # The next opening takes them back.
    assert facts(run, "message", "recall", store, sent[0]["recall_handle"]) == {"recalled": sent[0]["message_id"]}
    assert facts(run, "store", "stat", store)["timed_messages"] == 1
    assert len(rows(run, "tail", store, "orders")) == 1
    assert run("store", "check", store)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["--deliver-at", "2026-01-31T12:00"],
            "--deliver-at '2026-01-31T12:00' has no time zone\nhint: 2026-01-31T12:00+",
        ),
        (["--deliver-at", "2001-01-31T12:00Z"], "--deliver-at '2001-01-31T12:00Z' has passed: it is 20"),
        (["--deliver-at", "9999-12-31T23:59Z"], "timer_max_delay_sec allows 259200 s"),
        (["--deliver-at", "999999999d"], "--deliver-at '999999999d' is not a time\nhint: "),
        (["--deliver-at", "soon"], "--deliver-at 'soon' is not a time\nhint: "),
        (["--deliver-at", "1h", "--delay-level", "3"], "both --delay-level 3 and --deliver-at 1h are given"),
    ],
)
def test_time_that_cannot_be_is_refused(run: Run, store: Path, arguments: list[str], why: str) -> None:
    code, _, err = run("send", store, "orders", "x", *arguments)
    assert (code, why in err) == (2, True), err
    assert facts(run, "store", "stat", store)["timed_messages"] == 0


def test_tail_shows_the_end_of_the_topic_by_tag(run: Run, store: Path) -> None:
    with txstore.open(store) as broker:
        producer = broker.producer("shop")
        for number in range(500):
            producer.send(Message("orders", str(number).encode(), tags="rare" if number % 100 == 7 else "common"))
    assert [row["body"] for row in rows(run, "tail", store, "orders", "-n", 4)] == ["496", "497", "498", "499"]
    assert [row["body"] for row in rows(run, "tail", store, "orders", "--tags", "rare", "-n", 3)] == [
        "207",
        "307",
        "407",
    ]
    assert rows(run, "tail", store, "orders", "-n", 0) == []
    assert len(rows(run, "tail", store, "orders", "-n", 9999)) == 500


def test_topics(run: Run, store: Path) -> None:
    assert facts(run, "topic", "create", store, "paid", "--queues", 3) == {"topic": "paid", "queues": 3}
    run("send", store, "paid", "x")
    assert facts(run, "topic", "list", store) == [
        {"topic": "orders", "queues": 2, "messages": 0},
        {"topic": "paid", "queues": 3, "messages": 1},
    ]
    assert facts(run, "topic", "describe", store, "paid")["write_queues"] == [0, 1, 2]
    code, out, _ = run("topic", "describe", store, "paid")
    assert code == 0
    assert out.startswith("topic         paid\nmessages      1\n")
    code, _, err = run("topic", "create", store, "paid", "--queues", 1)
    assert (code, "would hide messages" in err) == (2, True)


def test_group_consumes_and_is_reset(run: Run, store: Path) -> None:
    with txstore.open(store) as broker:
        producer = broker.producer("shop")
        for number in range(10):
            producer.send(Message("orders", str(number).encode(), tags="even" if number % 2 == 0 else "odd"))
    first = rows(run, "consume", store, "orders", "--group", "shipping", "--limit", 3)
    second = rows(run, "consume", store, "orders", "--group", "shipping")
    assert sorted(row["body"] for row in [*first, *second]) == [str(number) for number in range(10)]
    assert len(first) == 3, "and what is printed is acknowledged"
    assert rows(run, "consume", store, "orders", "--group", "shipping") == []
    found = facts(run, "group", "list", store)
    row = {"group": "shipping", "topics": ["orders"], "lag": 0, "dead_letters": 0}
    assert found == [row | {"consumers": 0, "protocol": None}]
    assert facts(run, "group", "reset", store, "shipping", "orders", "--to", "2", "--queue", "0")["offsets"] == {"0": 2}
    assert facts(run, "group", "describe", store, "shipping")["lag"] == 3
    assert facts(run, "group", "reset", store, "shipping", "orders", "--to", "1h")["offsets"] == {"0": 0, "1": 0}
    assert facts(run, "group", "create", store, "billing") == {"group": "billing"}
    assert facts(run, "group", "create", store, "audit", "--orderly", "--retries", "3") == {"group": "audit"}
    with txstore.open(store, read_only=True) as broker:
        assert broker.group_settings("audit") == GroupSettings(consume_message_orderly=True, retry_max_times=3)
    assert rows(run, "consume", store, "orders", "--group", "billing", "--from", "last") == []
    even = rows(run, "consume", store, "orders", "--group", "even", "--tags", "even")
    assert sorted(row["body"] for row in even) == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize(("presses", "printed"), [(1, 10), (2, 0)])
def test_ctrl_c_waits_until_what_is_printed_is_acknowledged(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, presses: int, printed: int
) -> None:
    """A second one does not wait: the output may be blocked."""

    def pressed(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)  # To this thread: two that arrive at once would be one.
        print_message(*arguments, **options)

    with txstore.open(store) as broker:
        broker.producer("shop").send_batch([Message("orders", b"x")] * 10)
    monkeypatch.setattr(consume, "print_message", pressed)
    code, out, err = run("consume", store, "orders", "--group", "shipping", "--follow")
    assert (code, err, len(out.splitlines())) == (130, "txstore: interrupted\n", printed)
    assert len(rows(run, "consume", store, "orders", "--group", "shipping")) == 10 - printed


def test_topic_and_group_are_deleted(run: Run, store: Path) -> None:
    with txstore.open(store) as broker:
        broker.producer("shop").send(Message("orders", b"bad"))
        with broker.consumer("shipping", "orders") as consumer:
            consumer.poll(1)[0].retry(-1)
            consumer.acknowledge()
    code, _, err = run("group", "delete", store, "shipping")
    assert (code, "has 1 dead letters" in err, "--yes" in err) == (1, True, True)
    assert facts(run, "group", "delete", store, "shipping", "--yes") == {"group": "shipping", "dead_letters": 1}
    assert facts(run, "group", "list", store) == []
    assert run("topic", "delete", store, "orders") == (0, "topic orders is deleted, with 1 messages\n", "")
    assert facts(run, "topic", "list", store) == []
    assert facts(run, "store", "check", store)["counts"]["queues_deleted"] == 2
    assert run("topic", "delete", store, "orders")[0] == run("group", "delete", store, "shipping")[0] == 2


def test_dead_letters_are_listed_and_sent_again(run: Run, store: Path) -> None:
    with txstore.open(store) as broker:
        producer = broker.producer("shop")
        for number in range(3):
            producer.send(Message("orders", f"bad {number}".encode()))
        with broker.consumer("shipping", "orders") as consumer:
            for message in consumer.poll(32):
                message.retry(-1)
            consumer.acknowledge()
    letters = facts(run, "dlq", "list", store, "shipping")
    assert sorted(letter["body"] for letter in letters) == ["bad 0", "bad 1", "bad 2"]
    one = letters[1]["message_id"]
    assert facts(run, "dlq", "resend", store, "shipping", one) == {"group": "shipping", "resent": [one]}
    again = rows(run, "consume", store, "orders", "--group", "shipping")
    assert [row["body"] for row in again] == [letters[1]["body"]]
    assert run("dlq", "resend", store, "shipping", "--all")[1] == "3 resent to shipping\n"
    for arguments, code, what in (
        (["shipping"], 2, "hint: pass message ids, or --all"),
        (["shipping", "XX"], 1, "no dead letter XX"),
        (["nobody", "--all"], 2, "unknown consumer group nobody"),
    ):
        found, _, err = run("dlq", "resend", store, *arguments)
        assert (found, what in err) == (code, True)


def test_messages_by_time(run: Run, store: Path) -> None:
    run("send", store, "orders", "x")
    (sent,) = rows(run, "message", "by-time", store, "orders", "--from", "1h")
    code, out, _ = run("tail", store, "orders")
    assert code == 0
    shown = out.split("  ")[0]  # Shown values are accepted as input.
    (found,) = rows(run, "message", "by-time", store, "orders", "--from", shown)
    assert found["message_id"] == sent["message_id"]
    code, out, _ = run("message", "by-time", store, "orders", "--from", "1h", "--until", shown)
    assert (code, out) == (1, "no messages found\n")


def test_transaction_is_discarded_by_hand(run: Run, store: Path) -> None:
    with txstore.open(store, transaction_check_interval=3600) as broker:
        sent = broker.prepare(Message("orders", b"x"), 0, "order-service")
    (row,) = facts(run, "tx", "list", store, "--group", "order-service", "--topic", "orders")
    assert row["transaction_id"] == sent.message_id
    assert facts(run, "tx", "list", store, "--group", "other") == []
    assert facts(run, "tx", "discard", store, sent.message_id)["outcome"] == "discarded"
    assert facts(run, "tx", "discard", store, sent.message_id)["already"] is True
    assert run("tx", "commit", store, sent.message_id)[0] == 1


def test_top_prints_lines(run: Run, store: Path) -> None:
    run("send", store, "orders", "x")
    first, second = rows(run, "top", store, "--count", 2, "--interval", 0.1)
    assert first["topics"] == [{"topic": "orders", "messages": 1, "per_second": None}]
    assert second["topics"] == [{"topic": "orders", "messages": 1, "per_second": 0.0}]
    code, _, err = run("top", store)
    assert (code, "hint: --json" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["send", "STORE", "nope", "x"], 2, "no topic nope\nhint: the topics are orders; `txstore topic create"),
        (["consume", "STORE", "nope", "-g", "g"], 2, "no topic nope"),
        (["consume", "STORE", "orders"], 2, "--group"),
        (["consume", "STORE", "orders", "-g", "g", "--from", "soon"], 2, "--from 'soon' is not a time"),
        (["consume", "STORE", "orders", "-g", "g", "--tags", "||"], 2, "hint:"),
        (["tail", "STORE", "nope"], 2, "the topics are orders"),
        (["topic", "describe", "STORE", "RMQ_SYS_TRANS_HALF_TOPIC"], 2, "is a system topic"),
        (["topic", "create", "STORE", "two words"], 2, "allowed are"),
        (["group", "describe", "STORE", "nope"], 2, "there are no groups"),
        (["message", "by-key", "STORE", "nope", "k"], 2, "the topics are orders"),
        (["message", "by-time", "STORE", "orders", "--from", "2026-13-01"], 2, "is not a time"),
        (["message", "get", "STORE"], 2, "ID"),
        (["dlq", "list", "STORE", "nope"], 2, "unknown consumer group nope"),
        (["tx", "discard", "STORE", "XX"], 1, "XX"),
        (["send", "STORE/elsewhere", "orders", "x"], 3, "`txstore store create"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_error_for_wrong_input_says_what_is_accepted(
    run: Run, store: Path, arguments: list[str], code: int, what: str
) -> None:
    before = [facts(run, noun, "list", store) for noun in ("topic", "group", "tx")]
    found, out, err = run(*(argument.replace("STORE", str(store)) for argument in arguments))
    assert (found, out) == (code, "")
    assert what in err
    assert "Traceback" not in err
    assert [facts(run, noun, "list", store) for noun in ("topic", "group", "tx")] == before
    assert [entry.name for entry in store.parent.iterdir()] == [store.name]


@pytest.mark.parametrize(("to", "what"), [("99", "hint: 0 (its first) to 1 (its end)"), ("1", "name it: --queue")])
def test_reset_to_an_offset_outside_the_queue(run: Run, store: Path, to: str, what: str) -> None:
    run("send", store, "orders", "x", "--queue", 0)
    run("group", "create", store, "g")
    queue = ["--queue", 0] if to == "99" else []
    code, _, err = run("group", "reset", store, "g", "orders", "--to", to, *queue)
    assert (code, what in err) == (2, True)


def test_store_of_a_running_program_that_does_not_listen_can_be_read_only(run: Run, store: Path) -> None:
    with txstore.open(store, listen=False):
        assert run("topic", "list", store)[0] == run("tail", store, "orders")[0] == 0
        code, _, err = run("send", store, "orders", "x")
        assert code == 3
        assert str(os.getpid()) in err


def test_missing_extra_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no', name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "txstore.cli.main", "topic", "list", "x"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "txstore: typer is missing: pip install 'txstore[cli]'\n"


def test_help_lists_every_noun_and_every_verb(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    nouns = [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line[:3].strip() and line.strip()]
    assert nouns[:4] == ["send", "consume", "tail", "top"]
    for noun in nouns[:4]:
        assert run(noun, "--help")[0] == 0
    assert run("--version") == (0, f"txstore {txstore.__version__}\n", "")
    for noun in ("topic", "group", "message", "dlq", "tx", "store"):
        code, out, _ = run(noun, "--help")
        assert (code, noun in nouns) == (0, True)
        told = f"{noun} --help"
        for verb in (line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()):
            code, text, _ = run(noun, verb, "--help")
            assert (code, "PATH" in text, "--json" in text) == (0, True, True), (told, verb)


def test_output_that_is_cut_off_is_not_an_error(store: Path) -> None:
    with txstore.open(store) as broker:
        producer = broker.producer("shop")
        for number in range(3000):
            producer.send(Message("orders", b"x" * 100, keys=[str(number)]))
    command = f"{sys.executable} -m txstore.cli.main store dump {store} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")
    consume = f"{sys.executable} -m txstore.cli.main consume {store} orders -g shipping --json | head -n 1 > /dev/null"
    subprocess.run(["bash", "-c", consume], capture_output=True, check=True)
    with txstore.open(store) as broker, broker.consumer("shipping", "orders") as consumer:
        assert len(consumer.poll(3000)) > 1000, "messages that were not printed are not acknowledged"


def test_help_loads_no_more_than_it_needs() -> None:
    """Help should appear at once: modules that draw, check values or implement a noun are imported on use."""
    program = (
        "import sys; from txstore.cli.main import main; main(['--help']); "
        "print(sorted({'rich', 'pydantic', 'txstore.cli.store', 'txstore.cli.top'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
