"""Facts for a report of a fault: versions, the machine, its limits and clock, and a store's file system, lock and
socket.

In:     the path of a store, or none.
Out:    facts by section, and findings: what is likely to cause trouble, each with what to do.
Always: takes no lock, opens no store and writes nothing, so it works where a store does not open. It reads no message,
        topic, account or key, and no variable of the environment, so its output can be shown to others.
Not here: whether a store is damaged (`deep`).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from txstore import __version__, _native
from txstore.broker import local_socket

__all__ = ["Diagnosis", "FileSystem", "diagnose", "file_system_of"]

Facts = dict[str, object]
# The packages of the extras, whose versions matter to a fault.
_PACKAGES = (
    "typer rich sqlalchemy psycopg asyncpg aiosqlite pymysql asyncmy django prometheus-client starlette uvicorn jinja2 "
    "opentelemetry-sdk pyarrow pyspark pandas polars duckdb faststream"
).split()
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs")
_FILES_MIN = 1024
_CLOCK_SECONDS = 5.0
_FREE_BYTES_MIN = 1 << 30
_PROC = Path("/proc")


@dataclass(slots=True)
class Diagnosis:
    """What was found."""

    sections: dict[str, Facts] = field(default_factory=dict)
    """Facts by section, in the order of a report."""
    findings: list[str] = field(default_factory=list)
    """What is likely to cause trouble, with what to do."""

    def as_facts(self) -> Facts:
        """Returns all of it as plain values."""
        return {**self.sections, "findings": self.findings}


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Where a path is mounted."""

    kind: str
    mounted_at: str
    options: tuple[str, ...]


def diagnose(path: str | None = None) -> Diagnosis:
    """Returns facts about this machine and, with `path`, about the store there. The store need not exist."""
    found = Diagnosis()
    found.sections["versions"] = _versions()
    found.sections["machine"] = _machine()
    found.sections["limits"] = _limits(found.findings)
    found.sections["clock"] = _clock(found.findings)
    if path is not None:
        directory = Path(path)
        found.sections["file_system"] = _file_system(directory, found.findings)
        found.sections["store"] = _store(directory, found)
        found.sections["lock"] = _lock(directory, found.findings)
    return found


def _versions() -> Facts:
    packages = {name: version for name in _PACKAGES if (version := _installed(name)) is not None}
    return {
        "txstore": __version__,
        "debug_build": bool(getattr(_native, "__debug_build__", False)),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        **packages,
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Facts:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "byte_order": sys.byteorder,
    }


def _limits(findings: list[str]) -> Facts:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FILES_MIN:
        findings.append(
            f"only {soft} files may be open; a store has one for each queue and each file of the log\n"
            f"hint: ulimit -n {_FILES_MIN * 64}, or LimitNOFILE= of the unit"
        )
    return {
        "open_files": _limit(soft),
        "open_files_hard": _limit(hard),
        "memory_maps": _number(_PROC / "sys/vm/max_map_count"),
        "address_space_bytes": _limit(resource.getrlimit(resource.RLIMIT_AS)[0]),
        "file_bytes": _limit(resource.getrlimit(resource.RLIMIT_FSIZE)[0]),
        "locked_memory_bytes": _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
    }


def _limit(value: int) -> int | None:
    """None: there is no limit."""
    return None if value == resource.RLIM_INFINITY else value


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _clock(findings: list[str]) -> Facts:
    now = datetime.now(UTC)
    # A machine without a battery starts here; every message would get this time, and retention goes by it.
    if now.year < 2024:
        findings.append(f"the clock says {now:%Y-%m-%d}\nhint: set it before the store is opened")
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {
        "utc": now.isoformat(timespec="milliseconds"),
        "time_zone": datetime.now().astimezone().strftime("%Z %z"),
        "source": source.read_text().strip() if source.exists() else None,
    }


def file_system_of(path: Path, mounts: str | None = None) -> FileSystem | None:
    """Returns where `path` is, or its nearest folder that exists, by /proc/self/mountinfo (`mounts` in tests)."""
    lines = (_PROC / "self/mountinfo").read_text() if mounts is None else mounts
    here, best = Path(os.path.realpath(path)), None
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        # The kernel writes a space in a path as \040.
        mounted_at = words[4].encode().decode("unicode_escape")
        if here.is_relative_to(mounted_at) and (best is None or len(mounted_at) >= len(best.mounted_at)):
            best = FileSystem(kinds[0], mounted_at, (*words[5].split(","), *kinds[2].split(",")))
    return best


def _file_system(directory: Path, findings: list[str]) -> Facts:
    existing = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    found, room = file_system_of(existing), os.statvfs(existing)
    kind = "unknown" if found is None else found.kind
    free, options = room.f_bavail * room.f_frsize, () if found is None else found.options
    if kind in _NETWORK or kind.startswith("fuse"):
        findings.append(
            f"{directory} is on {kind}, where locks and memory maps are not tested\nhint: use a local file system"
        )
    if kind in _IN_MEMORY:
        findings.append(f"{directory} is on {kind}: a restart of the machine loses the store\nhint: use a disk")
    if "ro" in options:
        findings.append(f"{directory} is on a file system that is mounted read-only\nhint: mount -o remount,rw")
    if free < _FREE_BYTES_MIN:
        findings.append(f"only {free:,} bytes are free for {directory}\nhint: see docs/operate/retention.md")
    return {
        "kind": kind,
        "mounted_at": None if found is None else found.mounted_at,
        "options": list(dict.fromkeys(options)),
        "free_bytes": free,
        "total_bytes": room.f_blocks * room.f_frsize,
        "free_inodes": room.f_favail,
    }


def _store(directory: Path, found: Diagnosis) -> Facts:
    if not directory.exists():
        found.findings.append(f"{directory} does not exist\nhint: pass the directory of a store")
        return {"path": str(directory), "exists": False}
    status = directory.stat()
    if not (directory / "commitlog").is_dir():
        found.findings.append(f"{directory} is not a store: it has no folder commitlog")
    if stat.S_IMODE(status.st_mode) & 0o002:
        found.findings.append(f"every user may write {directory}\nhint: chmod o-w {directory}")
    files = [one for one in _files(directory) if one[1] is not None]
    newest = max((changed for _, changed in files if changed is not None), default=None)
    ahead = 0.0 if newest is None else newest - datetime.now(UTC).timestamp()
    if ahead > _CLOCK_SECONDS:
        found.findings.append(
            f"a file of {directory} is {ahead:.0f} s in the future: the clock was set back\n"
            "hint: see docs/operate/failures.md, The clock jumps"
        )
    for name, limit in (("open_files", "open files"), ("memory_maps", "memory maps")):
        most = found.sections["limits"][name]
        if isinstance(most, int) and len(files) > most:
            found.findings.append(f"{directory} has {len(files)} files, more than the limit of {most} {limit}")
    return {
        "path": str(directory),
        "exists": True,
        "mode": stat.filemode(status.st_mode),
        "owner": status.st_uid,
        "user": os.geteuid(),
        "writable": os.access(directory, os.W_OK),
        "files": len(files),
        "bytes": sum(size for size, _ in files),
        "log_files": len(list((directory / "commitlog").glob("[0-9]*"))),
    }


def _files(directory: Path) -> Iterator[tuple[int, float | None]]:
    """(bytes on disk, time of the last change) of each file."""
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(Path(folder, name))
            except OSError:
                continue  # Retention removed it just now.
            yield status.st_blocks * 512, status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _lock(directory: Path, findings: list[str]) -> Facts:
    """Who holds the store, by what the kernel and the lock file say."""
    held = _is_locked(directory / "lock")
    holder = local_socket.read_holder(str(directory))
    answer = None if holder is None else _answer(directory)
    if held and answer not in (None, "answers"):
        findings.append(
            f"a process has {directory} open, but its socket does not answer: {answer}\n"
            "hint: another user's process, a container, or one that is stopped (SIGSTOP)"
        )
    return {
        "held": held,
        "held_by_processes": _lock_holders(directory / "lock") if held else [],
        "lock_file_names": None if holder is None else str(holder),
        "socket": None if holder is None else holder.socket,
        "socket_state": answer,
    }


def _is_locked(lock: Path) -> bool:
    """Whether some process holds a lock on the file, as /proc/locks lists them. It names no process for such locks."""
    try:
        status, lines = lock.stat(), (_PROC / "locks").read_text().splitlines()
    except OSError:
        return False
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(name in line.split() for line in lines if "->" not in line)


def _lock_holders(lock: Path) -> list[int]:
    """The processes that hold a lock on the file, as far as this user may see them."""
    found = set()
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # It has ended, or belongs to another user.
            for opened in (process / "fd").iterdir():
                with suppress(OSError):  # It was closed.
                    about = process / "fdinfo" / opened.name
                    if os.path.samestat(opened.stat(), lock.stat()) and "\nlock:" in about.read_text():
                        found.add(int(process.name))
    return sorted(found)


def _answer(directory: Path) -> str:
    try:
        local_socket.connect(str(directory)).close()
    except OSError as error:
        return error.strerror or str(error)
    return "answers"
