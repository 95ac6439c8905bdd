"""Guards the socket in a store's directory, by which other processes reach the writer, and its entry in the lock file.

The entry can be old, foreign, damaged or impossible to write. Then nothing is removed that is not a socket of ours, and
only processes that need the socket are refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import txstore
from txstore import Message
from txstore.broker import local_socket
from txstore.broker.local_socket import read_holder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_socket_and_entry_are_removed_at_the_close(store: Path) -> None:
    with txstore.open(store, shared=True) as broker:
        broker.producer("group").send(Message("orders", b"x"))
    assert read_holder(str(store)) is None
    assert [path for path in store.iterdir() if path.is_socket()] == []


@pytest.mark.parametrize(
    "entry", [b"", b"lock", b"lock\n", b"lock\n{}\n", b"lock\n[1]\n", b"\xff\n\xff\n", b"lock\n{" * 9]
)
def test_an_invalid_entry_is_ignored(store: Path, entry: bytes) -> None:
    txstore.open(store).close()
    (store / "lock").write_bytes(entry)
    assert read_holder(str(store)) is None
    with txstore.open(store, shared=True) as broker:
        assert broker.is_writer


def test_a_lock_file_that_takes_no_entry_keeps_only_shared_openers_out(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    txstore.open(store).close()
    lock = store / "lock"
    lock.unlink()
    os.mkfifo(lock)
    with txstore.open(store) as broker:
        assert broker.local_socket is None
        broker.producer("group").send(Message("orders", b"x"))
    assert f"cannot state a socket in {lock}" in caplog.text
    with pytest.raises(txstore.StoreIOError, match=re.escape(f"cannot state a socket in {lock}: ")) as caught:
        txstore.open(store, shared=True)
    assert (caught.value.errno, caught.value.filename) == (errno.ESPIPE, str(lock))


@pytest.mark.parametrize("name", ["../x.sock", "/etc/passwd", "config", "txstore-0123456789abcdeX.sock"])
def test_an_entry_names_only_sockets(store: Path, name: str) -> None:
    """The next holder removes the named file."""
    txstore.open(store).close()
    entry = {"socket": name, "pid": 1, "boot_id": "", "uid": 0}
    (store / "lock").write_text(f"lock\n{json.dumps(entry)}\n")
    assert read_holder(str(store)) is None


def test_a_path_may_be_long(tmp_path: Path) -> None:
    """A Unix socket's name is limited to 107 bytes."""
    store = tmp_path / ("x" * 100) / ("y" * 100)
    store.parent.mkdir()
    with txstore.open(store, shared=True) as first, txstore.open(store, shared=True) as second:
        assert [first.is_writer, second.is_writer] == [True, False]
        second.producer("group").send(Message("orders", b"x"))


def test_a_directory_that_holds_no_socket_gets_an_abstract_one(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = local_socket._address
    monkeypatch.setattr(
        local_socket, "_address", lambda folder, name: address(folder, name) if name[0] == "@" else f"/nowhere/{name}"
    )
    with txstore.open(store, shared=True) as first, txstore.open(store, shared=True) as second:
        holder = read_holder(str(store))
        assert holder is not None
        assert holder.socket.startswith("@txstore-")
        second.producer("group").send(Message("orders", b"x"))
        assert first.is_writer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_not_served(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abstract socket has no mode, so only the system's word about the client protects it."""
    address = local_socket._address
    monkeypatch.setattr(
        local_socket, "_address", lambda folder, name: address(folder, name) if name[0] == "@" else f"/nowhere/{name}"
    )
    code = """
        import os, socket, sys
        os.setuid(int(sys.argv[2]))
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(int(sys.argv[3]))
            line.connect("\\0" + sys.argv[1])
            try:
                print(line.recv(1))
            except TimeoutError:
                print("served")
    """
    with txstore.open(store, shared=True):
        holder = read_holder(str(store))
        assert holder is not None
        for user, said, seconds in ((65534, "b''\n", 60), (0, "served\n", 2)):
            arguments = [holder.socket.removeprefix("@"), str(user), str(seconds)]
            command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
            assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == said
