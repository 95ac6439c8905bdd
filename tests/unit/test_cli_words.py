"""Guards the words and colours of the command line: errors speak of flags, numbers are coloured by how bad they are."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import txstore
from txstore.cli.flags import in_flags
from txstore.cli.main import main
from txstore.cli.output import age_colour, lag_colour
from txstore.cli.sparkline import Past, sparkline

FLAGS = {"listen": "--listen", "tls": "--tls", "grpc": "--grpc", "unix": "--unix", "max_messages": "--max-messages"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max_messages must be 1 or more, got 0", "--max-messages must be 1 or more, got 0"),
        ("hint: raise max_messages", "hint: raise --max-messages"),
        ("listen must have a numeric host", "--listen must have a numeric host"),
        ("no address\nhint: pass listen, grpc or unix", "no address\nhint: pass --listen, --grpc or --unix"),
        ("x\nhint: pass listen='HOST:PORT', where it is", "x\nhint: pass --listen HOST:PORT, where it is"),
        ("x\nhint: listen=None", "x\nhint: --listen"),
        ("clients listen to the tls of a unix socket", "clients listen to the tls of a unix socket"),
        ("config: /etc/max_messages.toml: is missing", "config: /etc/max_messages.toml: is missing"),
        ("use --max_messages", "use --max_messages"),
    ],
)
def test_keywords_become_flags_and_other_words_stay(text: str, shown: str) -> None:
    assert in_flags(text, FLAGS) == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--listen", "localhost:99999"], "error: --listen must be HOST:PORT"),
        (["--replica-ack", "never"], "error: --replica-ack must be 'disk' or 'memory'"),
        (["--listen", "0.0.0.0:0"], "hint: pass --advertise HOST:PORT"),
        (["--listen", "none", "--name-server", "none"], "hint: pass --listen, --grpc or --unix"),
        (["--tls-cert", "/nowhere"], "error: --tls-key is missing"),
        (["--console", "127.0.0.1"], "error: --console must be HOST:PORT"),
        (["--console", "0.0.0.0:0", "--console-actions"], "or leave out --console-actions"),
        (["--console-actions"], "error: --console-actions needs the console\nhint: pass --console HOST:PORT"),
        (["--accounts", "/nowhere"], "error: --accounts '/nowhere' cannot be read"),
        (["--set", "flush_disk_typ=SYNC_FLUSH"], "error: --set: unknown option flush_disk_typ\nhint: did you mean"),
        (["--set", "zzz=1"], "error: --set: unknown option zzz\nhint: the options are flush_disk_type, "),
        (["--set", "transaction_timeout=soon"], "got 'soon'\nhint: a number of seconds\n"),
    ],
)
def test_serve_speaks_of_its_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], shown: str
) -> None:
    assert main(["serve", str(tmp_path / "store"), *arguments]) == 2
    assert shown in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--listen", "127.0.0.1"], "error: --listen must be HOST:PORT"),
        (["--listen", "0.0.0.0:0", "--actions"], "hint: pass --accounts, or use 127.0.0.1, or leave out --actions"),
        (["--tls-cert", "/nowhere"], "error: --tls-key is missing"),
        (["--tls-key", "/nowhere"], "error: --tls-cert is missing"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "error: --tls-cert '/nowhere' cannot be read"),
        (["--accounts", "/nowhere"], "error: --accounts '/nowhere' cannot be read"),
    ],
)
def test_console_speaks_of_its_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], shown: str
) -> None:
    txstore.open(tmp_path / "store").close()
    assert main(["console", str(tmp_path / "store"), *arguments]) == 2
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize("command", ["console", "top"])
def test_a_wrong_path_says_what_makes_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    options = ["--json"] if command == "top" else []
    assert main([command, str(tmp_path / "none"), *options]) == 3
    assert "none does not exist\nhint: pass the directory of a store; `txstore store create" in capsys.readouterr().err


def test_serve_s_log_speaks_of_flags_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command replaces them for good.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    assert main(["serve", str(tmp_path / "store"), "--log", "json", "--tls", "x"]) == 2
    assert caplog.messages == ["--tls must be enforcing or permissive, got 'x'"]


def test_colours_say_how_late_and_how_far() -> None:
    assert [age_colour(ms) for ms in (None, 0, 59_999, 60_000, 599_999, 600_000)] == [
        None, None, None, "yellow", "yellow", "red",
    ]  # fmt: skip
    assert [lag_colour(count) for count in (None, 0, 1, 9_999, 10_000)] == [None, None, "yellow", "yellow", "red"]


def test_sparklines_are_relative_to_the_largest_value() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"


def test_the_past_keeps_the_last_values_of_what_is_there() -> None:
    past = Past()
    for number in range(30):
        topics = [{"topic": "new" if number == 29 else "old", "per_second": number}]
        past.add({"log_bytes_per_second": None, "pending": number, "topics": topics, "groups": []})
    assert past.of("pending", "") == list(range(10, 30))
    assert past.of("topic", "old") == []
    assert past.of("topic", "new") == [29]
