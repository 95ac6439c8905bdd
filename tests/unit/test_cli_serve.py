"""Guards `txstore serve`: it prints its address, serves until it is told to stop, and closes the store; a failure to
start is reported with what to do.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import txstore
from tests.certificates import Authority
from tests.frames import Wire
from tests.remoting_requests import HEARTBEAT, MAX_OFFSET, heartbeat
from tests.waiting import eventually

pytest.importorskip("typer")

from txstore.cli.serve import Watchdog  # This command needs typer.

_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())", "serve"]
_FREE = ["--listen", "127.0.0.1:0", "--name-server", "none"]
SEND_V2 = 310
FIELDS = {"a": "g", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}


@contextmanager
def serving(path: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server's process, and the address that it prints."""
    command = [*_ENTRY, str(path), *_FREE, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        try:
            addresses: dict[str, str] = {}
            if "json" in options:
                addresses = json.loads(printed(process))
            while len(addresses) < 1 + ("--unix" in options):
                what, _, where = printed(process).strip().rpartition(" ")
                addresses[what.strip()] = where
            yield process, addresses
        finally:
            process.kill()


def printed(process: subprocess.Popen[str]) -> str:
    """The next line that a server prints. Fails with what it said if it ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the server ended with code {process.wait()}: {process.communicate()[1]}"
    return line


@pytest.mark.parametrize("options", [[], ["--log", "json"]])
def test_server_that_ends_at_once_does_not_count_as_started(tmp_path: Path, options: list[str]) -> None:
    """Otherwise no test with such a server could fail because of it."""
    wrong = [*options, "--set", "flush_disk_typ=SYNC_FLUSH"]
    with (
        pytest.raises(AssertionError, match=r"ended with code 2: [^#]*did you mean"),
        serving(tmp_path / "store", *wrong),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(tmp_path / "notify"))
    notified.settimeout(20)
    options = ["--unix", str(tmp_path / "socket"), "--log", "json", "--set", "flush_disk_type=SYNC_FLUSH"]
    with serving(tmp_path / "store", *options, NOTIFY_SOCKET=str(tmp_path / "notify")) as (process, addresses):
        assert notified.recv(100) == b"READY=1"
        for address in (addresses["broker"], addresses["socket"]):
            with Wire(address) as wire:
                assert wire.call(SEND_V2, FIELDS, b"x").code == 0
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert notified.recv(100) == b"STOPPING=1"
    notified.close()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"].split(" ")[0] for line in lines] == ["store", "serving", "no"]
    assert lines[1]["listen"] == addresses["broker"]
    with txstore.open(tmp_path / "store") as broker:
        assert broker.open_report.clean
        assert len(broker.read("orders", 0, 0)[0]) == 2


def test_running_server_notifies_the_watchdog(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(60)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"}
        with serving(tmp_path / "store", **environment):
            assert [notified.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def turns_in_three_beats(server: txstore.Server) -> int:
    io_beats, turns = server.beats()
    eventually(lambda: server.beats()[0] > io_beats + 2)
    return server.beats()[1] - turns


def test_server_with_stalled_requests_notifies_no_watchdog(
    broker: txstore.EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    config = txstore.ServerConfig(listen="127.0.0.1:0", name_server=None)
    with txstore.Server(broker, config) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(0.01)
        watchdog = Watchdog(server)
        assert server.address is not None
        with Wire(server.address) as wire, server.clients._lock:
            wire.write(HEARTBEAT, {}, heartbeat("c1", "c"))
            # The thread that handles requests waits for the lock once it makes no turn any more.
            eventually(lambda: turns_in_three_beats(server) == 0)
            io_beats, turns = server.beats()
            watchdog.beat()
            with suppress(TimeoutError):
                notified.recv(100)  # It may have sent notifications until then.
            eventually(lambda: server.beats()[0] > io_beats + 2)
            watchdog.beat()
            assert server.beats()[1] == turns
            with pytest.raises(TimeoutError):
                notified.recv(100)
        eventually(lambda: server.beats()[1] > turns)
        eventually(lambda: server.beats()[0] > io_beats + 4)
        watchdog.beat()
        assert notified.recv(100) == b"WATCHDOG=1"


def test_killed_server_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    options = ["--unix", str(tmp_path / "socket")]
    with serving(tmp_path / "store", *options) as (process, addresses), Wire(addresses["broker"]) as wire:
        for number in range(50):
            assert wire.call(SEND_V2, FIELDS, b"%d" % number).code == 0
        process.kill()
        assert wire.closed()
    # Its socket file still exists, and does not keep the next server from starting.
    with serving(tmp_path / "store", *options) as (_, addresses), Wire(addresses["socket"]) as wire:
        assert wire.call(MAX_OFFSET, {"topic": "orders", "queueId": 0}).fields["offset"] == "50"


def test_failure_to_start_is_reported(tmp_path: Path) -> None:
    def said(*options: str) -> tuple[int, str]:
        command = [*_ENTRY, str(tmp_path / "store"), *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert "Traceback" not in ended.stderr
        return ended.returncode, ended.stderr

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        code, text = said("--listen", taken, "--name-server", "none")
        assert (code, taken in text, "another server listens there" in text) == (3, True, True)
    for options, what in (
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0", "--name-server", "none"], "advertise"),
        ([*_FREE, "--set", "flush_disk_typ=SYNC_FLUSH"], "did you mean flush_disk_type?"),
        ([*_FREE, "--set", "nothing"], "NAME=VALUE"),
        ([*_FREE, "--log", "xml"], "must be text or json"),
    ):
        code, text = said(*options)
        assert (code, what in text) == (2, True), text
    with txstore.open(tmp_path / "store"):
        code, text = said(*_FREE)
        assert (code, "is open for writing" in text) == (3, True)


def test_files_are_read_again_on_sighup(tmp_path: Path) -> None:
    """With TLS and accounts: new certificates and accounts need no new process; invalid ones change nothing."""
    accounts, pair = tmp_path / "accounts.toml", Authority(tmp_path).pair()
    accounts.touch(0o600)
    accounts.write_text('[shop-app]\nsecret_key = "first-secret"\ndefault_topic_perm = "PUB"\n')
    options = ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key), "--accounts", str(accounts)]
    with serving(tmp_path / "store", *options) as (process, addresses):
        assert process.stderr is not None
        tls = ssl.create_default_context(cafile=tmp_path / "authority.pem")

        def sends(secret: str) -> int:
            with Wire(addresses["broker"], tls=tls, account=("shop-app", secret)) as wire:
                return wire.call(SEND_V2, FIELDS, b"x").code

        def told(what: str) -> str:
            """Reads the log's lines up to the first that contains the text."""
            lines = [process.stderr.readline()]  # type: ignore[union-attr]
            while what not in lines[-1]:
                assert lines[-1], lines
                lines.append(process.stderr.readline())  # type: ignore[union-attr]
            return "".join(lines)

        assert (sends("first-secret"), sends("second-secret")) == (0, 16)
        accounts.write_text("[shop-app]")
        process.send_signal(signal.SIGHUP)
        told("could not be read again: accounts")
        assert sends("first-secret") == 0
        accounts.write_text(accounts.read_text() + '\nsecret_key = "second-secret"\ndefault_topic_perm = "PUB"\n')
        process.send_signal(signal.SIGHUP)
        told("read the server's files again")
        assert (sends("first-secret"), sends("second-secret")) == (16, 0)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "-secret" not in log


def test_connections_leave_file_handles_for_the_store(tmp_path: Path) -> None:
    """With few handles connections are refused, and the store can still open the files that its sends need."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200)); "
    command = [sys.executable, "-c", code + _ENTRY[2], "serve", str(tmp_path / "store"), *_FREE, "--log", "json"]
    command += ["--set", "mapped_file_size_commit_log=1048576", "--set", "max_message_size=65536"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            addresses = json.loads(printed(process))
            with ExitStack() as stack, Wire(addresses["broker"]) as wire:
                assert wire.call(SEND_V2, FIELDS, b"x").code == 0
                for _ in range(250):
                    stack.enter_context(Wire(addresses["broker"]))
                with Wire(addresses["broker"]) as refused:
                    assert refused.closed()
                for number in range(40):
                    sent = wire.call(SEND_V2, FIELDS | {"b": f"orders-{number}"}, b"x" * 60_000)
                    assert (sent.code, sent.remark) == (0, None)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    (warning,) = [json.loads(line) for line in log.splitlines() if '"warning"' in line]
    assert "may open 200 files" in warning["message"]
    assert 50 < warning["connections_max"] < 150
