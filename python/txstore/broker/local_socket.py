"""The Unix socket of a store's writer, by which other processes of the machine reach it.

In:     the directory of a store. To listen, this process must hold the store's lock.
Out:    a listening socket and an entry in the file `lock` that names it; for other processes, a connection to it.
Always: the lock alone decides who writes. The entry is a hint that may be old. Only the holder of the lock binds and
        removes the socket, each time under a new random name. A forked child closes what it inherits.
Not here: what is said over the socket (`server`, `client`).
"""

import contextlib
import json
import logging
import os
import re
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from txstore._native import LocalListener
from txstore.errors import StoreIOError, TxStoreError
from txstore.forks import at_fork

__all__ = ["Holder", "LocalSocket", "connect", "keep_in_child", "read_holder"]

_log = logging.getLogger("txstore.broker")
_LOCK = "lock"
_NAME = re.compile(r"@?txstore-[0-9a-f]{16}\.sock")
_ENTRY_BYTES_MAX = 4096
_STOP_SECONDS = 30.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OPEN_FILES = Path("/proc/self/fd")
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED.


class Serving(Protocol):
    """A server that answers the clients of a socket."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Holder:
    """What the file `lock` says about the process that holds the store. It may have ended since."""

    socket: str
    """The name of its socket in the store's directory, or `@NAME` for an abstract one."""
    pid: int
    """Its process id, as it is seen in its own container."""
    boot_id: str
    uid: int

    def __str__(self) -> str:
        rebooted = "" if self.boot_id == _boot_id() else ", before the machine or container host was started again"
        return f"process {self.pid} of user {self.uid}{rebooted}"


def read_holder(directory: str) -> Holder | None:
    """Returns what the lock file says about the store's holder; None if it says nothing valid."""
    try:
        with _opened(Path(directory, _LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
            entry = os.read(file, _ENTRY_BYTES_MAX).decode("ascii", "replace").split("\n")[1]
        facts = json.loads(entry)
        holder = Holder(str(facts["socket"]), int(facts["pid"]), str(facts["boot_id"]), int(facts["uid"]))
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        return None
    return holder if _NAME.fullmatch(holder.socket) else None


def connect(directory: str) -> socket.socket:
    """Connects to the process that holds the store. Never waits.

    Raises OSError: FileNotFoundError if no process has stated a socket, ConnectionRefusedError for an old statement,
    BlockingIOError if more clients wait than the system allows, PermissionError if another user listens there.
    """
    holder = read_holder(directory)
    if holder is None:
        raise FileNotFoundError(f"no process has stated a socket in {Path(directory, _LOCK)}")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with _opened(directory, os.O_PATH | os.O_DIRECTORY) as folder:
            _names.add(holder.socket)
            connection.connect(_address(folder, holder.socket))
            owner = os.fstat(folder).st_uid
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in (os.geteuid(), owner, 0):
            raise PermissionError(f"user {uid} listens at {holder.socket}, which is neither the store's owner nor root")
    except BaseException:
        connection.close()
        raise
    return connection


class LocalSocket:
    """The listening socket of a store whose lock this process holds."""

    def __init__(self, directory: str) -> None:
        """Binds the socket and states it in the lock file. Raises StoreIOError."""
        self._folder = -1
        try:
            self._folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._remove_left(directory)
            self.name: str = f"txstore-{os.urandom(8).hex()}.sock"
            self.native: LocalListener = self._bind(directory)
        except BaseException as error:
            if self._folder >= 0:
                os.close(self._folder)
            if isinstance(error, OSError) and not isinstance(error, TxStoreError):
                text = f"cannot state a socket in {Path(directory, _LOCK)}: {error}"
                raise StoreIOError(text, errno=error.errno, filename=str(Path(directory, _LOCK))) from error
            raise
        self._start: Callable[[], Serving] | None = None
        self._thread: threading.Thread | None = None
        self._serving: Serving | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._ending = False
        keep_in_child(self)

    def __repr__(self) -> str:
        return f"LocalSocket({self.name!r})"

    def serve_on_demand(self, start: Callable[[], Serving]) -> None:
        """Calls `start` in a thread when the first client connects, and closes what it returned in `stop`."""
        self._start = start
        self.serve_again()

    def serve_again(self) -> None:
        """Continues to serve on demand, after the server that took the socket over was closed."""
        if self._start is None or self._stopped:
            return
        if self._thread is not None and self._thread.is_alive():
            return  # A second server of the same broker was closed before. Only one thread can be woken.
        self._thread = threading.Thread(target=self._wait, name="txstore-socket", daemon=True)
        self._thread.start()

    def take_over(self) -> LocalListener:
        """Returns the socket for a server of the caller's. The one that was started on demand is closed before."""
        self._end_serving()
        return self.native

    def stop(self) -> None:
        """Closes the server that was started on demand. Idempotent."""
        self._stopped = True
        self._end_serving()

    def remove(self) -> None:
        """Removes the socket and its entry in the lock file, while this process still holds the lock. Idempotent."""
        self.stop()
        if self._folder < 0:
            return
        folder, self._folder = self._folder, -1
        try:
            with _opened(_LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder) as file:
                os.ftruncate(file, 0)
            self._unlink(folder, self.name)
        except OSError as error:
            _log.warning("the socket %s could not be removed: %s", self.name, error)
        finally:
            os.close(folder)
            del self.native  # Which closes it.

    def descriptors(self) -> list[int]:
        """Returns the descriptors that a forked child closes, in addition to the sockets named after it."""
        return [] if self._folder < 0 else [self._folder, *self.native.descriptors]

    def _bind(self, directory: str) -> LocalListener:
        # The entry is written first: a process that is killed in between leaves no socket without an entry.
        self._write_entry()
        try:
            listener = LocalListener.bind(_address(self._folder, self.name))
            os.chmod(self.name, 0o600, dir_fd=self._folder)
        except OSError as error:
            # Without /proc, or on a file system that holds no sockets.
            _log.info("%s holds no socket, an abstract one is used: %s", directory, error)
            self.name = f"@{self.name}"
            self._write_entry()
            listener = LocalListener.bind(self.name)
        _names.add(self.name)
        return listener

    def _write_entry(self) -> None:
        holder = Holder(self.name, os.getpid(), _boot_id(), os.geteuid())
        # RocketMQ's broker writes the first word, too.
        entry = f"lock\n{json.dumps(asdict(holder))}\n".encode()
        with _opened(_LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, self._folder) as file:
            os.pwrite(file, entry, 0)
            os.ftruncate(file, len(entry))

    def _remove_left(self, directory: str) -> None:
        """Removes the socket of a holder that was killed."""
        left = read_holder(directory)
        if left is not None:
            self._unlink(self._folder, left.socket)

    @staticmethod
    def _unlink(folder: int, name: str) -> None:
        if name.startswith("@"):
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def _wait(self) -> None:
        try:
            if not self.native.wait():
                return
            with self._lock:
                if self._start is not None and not self._ending:
                    self._serving = self._start()
        except TxStoreError as error:
            _log.error("other processes cannot reach this store: %s", error)

    def _end_serving(self) -> None:
        self._ending = True
        with self._lock:
            serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            if thread.is_alive():
                self.native.wake()
            thread.join(_STOP_SECONDS)
        self._ending = False


def _address(folder: int, name: str) -> str:
    """Returns an address for `bind` and `connect`.

    The kernel limits it to 107 bytes. By the descriptor of the directory it is short, however long the path is.
    """
    return f"\0{name[1:]}" if name.startswith("@") else f"/proc/self/fd/{folder}/{name}"


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return "unknown"


# Forks. A child's copy of a listening socket would accept connections that nobody answers, and its copy of a
# connection would hide that the other side has ended.

_names: set[str] = set()
_kept: "weakref.WeakSet[object]" = weakref.WeakSet()
_inherited: list[object] = []


def keep_in_child(owner: object) -> None:
    """Never frees the object in a forked child, where its descriptors are closed and their numbers used again."""
    _kept.add(owner)


def _close_in_child() -> None:
    owners = list(_kept)
    _inherited.extend(owners)
    _kept.clear()
    if not _names:
        return
    for owner in owners:
        if isinstance(owner, LocalSocket):
            for descriptor in owner.descriptors():
                _close(descriptor)
    try:
        descriptors = [int(entry.name) for entry in _OPEN_FILES.iterdir()]
    except OSError:
        descriptors = list(range(os.sysconf("SC_OPEN_MAX")))
    for descriptor in descriptors:
        if _is_ours(descriptor):
            _close(descriptor)
    _names.clear()


def _is_ours(descriptor: int) -> bool:
    """Returns whether a descriptor is a connection to or from one of the sockets, or listens there."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        copy = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        return copy.family == socket.AF_UNIX and any(map(_is_our_address, (copy.getsockname, copy.getpeername)))
    finally:
        copy.detach()


def _is_our_address(address: Callable[[], object]) -> bool:
    try:
        found = address()
    except OSError:
        return False
    text = found.decode("ascii", "replace") if isinstance(found, bytes) else str(found)
    return text.rpartition("/")[2].removeprefix("\0") in {name.removeprefix("@") for name in _names}


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


at_fork(after_in_child=_close_in_child)
