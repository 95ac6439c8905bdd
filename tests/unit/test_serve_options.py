"""Guards that `txstore serve` finds every wrong option before it opens its store: the error names the option and says
what is accepted, and nothing was created.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import txstore
from tests.certificates import Authority
from txstore import errors

pytest.importorskip("typer")

from txstore.server.preflight import check_machine

_FREE = ["--listen", "127.0.0.1:0", "--name-server", "none"]
USAGE, UNAVAILABLE = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files of all kinds, a listening socket at `busy.sock`, and one whose process has ended at `left.sock`."""
    tmp_path = tmp_path_factory.mktemp("options")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("neither TOML nor PEM")
    authority = Authority(tmp_path)
    authority.pair()
    authority.pair()
    (tmp_path / "accounts.toml").touch(0o600)
    (tmp_path / "accounts.toml").write_text("[shop-app]\nsecret = 'a-secret'\n")
    (tmp_path / "open.toml").touch()
    (tmp_path / "open.toml").chmod(0o644)
    (tmp_path / "serve.toml").write_text("memory_max = 'much'\n")
    with ExitStack() as opened:
        for name in ("busy.sock", "left.sock"):
            listening = opened.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(os.path.relpath(tmp_path / name))
            if name == "busy.sock":
                listening.listen()
            else:
                listening.close()
        yield tmp_path


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


# Many commands in one process, because each loads the same packages. Only wrong options may be tried.
_TRIED = """
import contextlib, io, json, os, sys
from txstore.cli.main import main
for given in json.load(sys.stdin):
    said, before = io.StringIO(), sorted(os.listdir())
    with contextlib.redirect_stderr(said):
        try:
            code = main(["serve", "store", *given])
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, said.getvalue(), sorted(os.listdir()) == before]), flush=True)
"""


def refused(folder: Path, *options: list[str], without: str | None = None) -> list[tuple[int, str]]:
    """The exit code and the error of each of some servers that do not start, in a Python that may lack a package."""
    code = _TRIED if without is None else f"import sys; sys.modules[{without!r}] = None\n{_TRIED}"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,  # One that starts would serve for ever.
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) == len(options), ended.stderr
    assert all(unchanged for _, _, unchanged in found), found
    return [(code, text) for code, text, _ in found]


WRONG: list[tuple[list[str], int, str]] = [
    (["--replica-ack", "paper"], USAGE, "--replica-ack must be 'disk' or 'memory', got 'paper'"),
    (["--replicas-required", "0"], USAGE, "--replicas-required must be a number from 1 to 16, got 0"),
    (["--replica-timeout", "nan"], USAGE, "--replica-timeout must be 0 to 1,000,000,000 seconds, got nan"),
    (["--replica-timeout", "1e300"], USAGE, "--replica-timeout must be 0 to 1,000,000,000 seconds, got 1e+300"),
    (["--tls", "sometimes"], USAGE, "--tls must be enforcing or permissive, got 'sometimes'"),
    (["--tls-cert", "missing", "--tls-key", "1.key"], USAGE, "--tls-cert 'missing' cannot be read"),
    (["--tls-cert", "folder", "--tls-key", "1.key"], USAGE, "--tls-cert 'folder' cannot be read: Is a directory"),
    (["--tls-cert", "text", "--tls-key", "1.key"], USAGE, "--tls-cert: there is no certificate in it"),
    (["--tls-cert", "1.pem", "--tls-key", "text"], USAGE, "--tls-key: expected a private key in PEM, found none"),
    (["--tls-cert", "1.pem", "--tls-key", "2.key"], USAGE, "--tls-key: it is not the certificate's key"),
    (
        ["--tls-cert", "1.pem", "--tls-key", "1.key", "--tls-ca", "text"],
        USAGE,
        "--tls-ca: there is no certificate in it",
    ),
    (["--tls-ca", "1.pem"], USAGE, "--tls-cert is missing"),
    (["--accounts", "missing"], USAGE, "--accounts 'missing' cannot be read"),
    (["--accounts", "accounts.toml"], USAGE, "has the unknown field 'secret'"),
    (["--accounts", "open.toml"], USAGE, "users other than its owner have access (mode 0644)"),
    (["--listen", "nowhere"], USAGE, "--listen must be HOST:PORT with a port from 0 to 65535, got 'nowhere'"),
    (["--listen", "127.0.0.1:99999"], USAGE, "--listen must be HOST:PORT"),
    (["--listen", "localhost:0"], USAGE, "--listen must have a numeric host, got 'localhost:0'"),
    (["--listen", "0.0.0.0:10911"], USAGE, "--listen 0.0.0.0:10911 accepts all addresses"),
    (["--listen", "none"], USAGE, "no address to listen at"),
    (["--name-server", "nowhere"], USAGE, "--name-server must be HOST:PORT"),
    (["--grpc", "nowhere"], USAGE, "--grpc must be HOST:PORT"),
    (["--metrics", "nowhere"], USAGE, "--metrics must be HOST:PORT"),
    (["--metrics", "host.invalid:0"], UNAVAILABLE, "cannot listen at host.invalid:0"),
    (["--console", "nowhere"], USAGE, "--console must be HOST:PORT"),
    (["--console", "host.invalid:0"], UNAVAILABLE, "cannot listen at host.invalid:0"),
    (["--console-actions"], USAGE, "--console-actions needs the console"),
    (["--console", "0.0.0.0:0", "--console-actions"], USAGE, "--console 0.0.0.0:0 is reached by other machines"),
    (["--advertise", "nowhere"], USAGE, "--advertise must be HOST:PORT with a port from 1 to 65535, got 'nowhere'"),
    (["--advertise", "broker:0"], USAGE, "--advertise must be HOST:PORT with a port from 1 to 65535, got 'broker:0'"),
    (["--advertise", "0.0.0.0:10911"], USAGE, "--advertise must be an address to which clients can connect"),
    (["--replica-of", "nowhere"], USAGE, "--replica-of must be HOST:PORT"),
    (["--unix", ""], USAGE, "--unix must be the path of a socket, got ''"),
    (["--unix", "store"], USAGE, "--unix must be the path of a socket, got 'store'"),
    (["--unix", "a" * 108], USAGE, "--unix must have at most 107 bytes"),
    (["--unix", "missing/socket"], UNAVAILABLE, "cannot listen at missing/socket: there is no such directory"),
    (["--unix", "text/socket"], UNAVAILABLE, "cannot listen at text/socket: there is no such directory"),
    (["--unix", "text"], UNAVAILABLE, "text exists and is not a socket"),
    (["--unix", "folder"], UNAVAILABLE, "folder exists and is not a socket"),
    (["--unix", "busy.sock"], UNAVAILABLE, "busy.sock is in use by another process"),
    (["--log", "xml"], USAGE, "--log must be text or json, got 'xml'"),
    (["--config", "missing.toml"], USAGE, "--config: missing.toml cannot be read"),
    (["--config", "folder"], USAGE, "--config: folder cannot be read: Is a directory"),
    (["--config", "text"], USAGE, "--config: text is not TOML"),
    (["--config", "serve.toml"], USAGE, "--config: serve.toml: memory_max must be a number, got 'much'"),
    (["--set", "flush_disk_type=SOMETIMES"], USAGE, "flush_disk_type"),
    (["--set", "flush_disk_type"], USAGE, "NAME=VALUE"),
    (["--set", "transaction_timeout=-1"], USAGE, "transaction_timeout"),
]


@pytest.fixture(scope="module")
def said(folder: Path) -> list[tuple[int, str]]:
    """What the command says of each row of the table."""
    return refused(folder, *([*_FREE, *options] for options, _, _ in WRONG))


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[" ".join(row[0])[:60] for row in WRONG])
def test_wrong_option_is_an_error_before_there_is_a_store(said: list[tuple[int, str]], number: int) -> None:
    (_, code, says), (found, text) = WRONG[number], said[number]
    assert (found, says in text) == (code, True), text


def test_address_in_use_is_an_error_before_there_is_a_store(folder: Path, taken: str) -> None:
    options = ("--listen", "--name-server", "--grpc", "--metrics", "--console")
    for option, (code, text) in zip(options, refused(folder, *([*_FREE, one, taken] for one in options)), strict=True):
        assert (code, f"cannot listen at {taken}: Address already in use\nhint: " in text) == (3, True), (option, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"listen": "127.0.0.1:{0}"}, {"name_server": "127.0.0.1:{0}"}),
        ({"grpc": "127.0.0.1:{0}"}, {"console": "localhost:{0}"}),
        ({"metrics": "127.0.0.1:{0}"}, {"console": "127.0.0.1:{0}"}),
        ({"listen": "127.0.0.1:{0}"}, {"grpc": "0.0.0.0:{0}"}),
    ],
)
def test_two_options_cannot_have_one_address(tmp_path: Path, one: dict[str, str], other: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    options = {"listen": "127.0.0.1:0", "name_server": None} | {
        name: text.format(port) for name, text in (one | other).items()
    }
    with pytest.raises(errors.InvalidOptionError, match=rf"^\w+='.*:{port}' is the address of \w+='.*:{port}', too\n"):
        txstore.serve(tmp_path / "store", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "package"), [(["--console", "127.0.0.1:0"], "uvicorn"), (["--otel"], "opentelemetry")]
)
def test_missing_packages_are_found_before_there_is_a_store(folder: Path, options: list[str], package: str) -> None:
    ((code, text),) = refused(folder, [*_FREE, *options], without=package)
    assert (code, f"needs {package}" in text, "hint: pip install 'txstore[" in text) == (2, True, True), text


def test_socket_that_a_killed_server_left_is_accepted(folder: Path) -> None:
    config = txstore.ServerConfig(listen=None, name_server=None, unix=folder / "left.sock")
    check_machine(config, folder / "store")
    assert (folder / "left.sock").exists(), "only the server that listens there removes it"


def test_socket_may_be_in_the_directory_of_the_new_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with txstore.serve(path, listen=None, name_server=None, unix=path / "s") as server:
        assert server.unix == str(path / "s")


def test_log_of_the_file_is_the_form_of_all_lines(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(
        'log = "json"\nunix = "missing/socket"\nlisten = "none"\nname_server = "none"\n'
    )
    ((code, text),) = refused(tmp_path, ["--config", "serve.toml"])
    assert code == UNAVAILABLE
    assert text.startswith('{"time"'), text
