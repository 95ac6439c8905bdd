"""Takes a backup of a store while another process may write it.

In:     a store's directory, a folder of backups.
Out:    one more backup in the folder.
Always: takes no lock on the store and writes nothing to it. What was acknowledged before the start is in the backup.
        Consumers' offsets and topics are copied before the log's end is taken, so none is ahead of the log.
Not here: the command line; what the log's bytes mean (the engine's `backup`).

A log file is full if the log continues after it. Then only a repair changes it and only retention removes it: if it has
the size and the time of writing that the last backup saw, the last backup's file is linked. All others are copied, and
each record of a copy is verified. Queues and the index are not copied, because the next opening builds them from the
log; of a queue whose messages are all gone, the last file is, which tells where it continues.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from txstore._native import BackupSource, LogFileContent, __version__, verify_log_file
from txstore.backup.copying import copy_file, make_durable, system_errors
from txstore.backup.destination import Destination
from txstore.backup.manifest import MANIFEST, Backup, BackupFile
from txstore.errors import (
    InvalidOptionError,
    MissingFileError,
    OffsetTooOldError,
    StoreCorruptError,
    StoreLockedError,
)
from txstore.inspection.opening import demand
from txstore.inspection.progress import Progress, Steps, unwatched

__all__ = ["take_backup"]

_PASSES_MAX = 8
_KEPT = "the backups that are there are not changed; free some space, or keep fewer (--keep)"


def take_backup(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    keep: int | None = None,
    progress: Progress = unwatched,
    warn: Callable[[str], object] = lambda _: None,
) -> Backup:
    """Adds a backup of the store at `path` to the folder `to`, and returns it.

    It works while this or another process writes the store. Every message that was acknowledged before the call is in
    the backup. Only what is new since the last backup in the folder is copied and verified; the rest is shared by hard
    links. The folder is created if it is missing; it may be on another file system. `keep` is the number of newest
    backups that stay, this one included; None removes none. `warn` is called with the text of what is wrong with
    another backup there.

    After an error, or if the process is killed, the backups that were there are complete and unchanged.

    Raises InvalidOptionError (the folder has something else, is inside the store, or has backups of another store),
    StoreCorruptError (a record to be copied is damaged, or its copy is), MissingFileError (a log file is missing),
    ForeignStoreError (not a store, or one that txstore cannot open for writing), StoreLockedError (another backup to
    the folder is being taken, or the store did not come to rest), DiskFullError, StoreIOError.
    """
    if keep is not None and keep < 1:
        raise InvalidOptionError(f"keep is {keep}, expected None or at least 1", option="keep")
    store, folder = Path(path), Path(to)
    demand(str(store))
    with system_errors(f"cannot back up {store}", _KEPT), Destination.locked(folder, store) as destination:
        source = BackupSource(store)
        backups, damages = destination.backups()
        for text in damages:
            warn(text)
        last = backups[-1] if backups else None
        with destination.new() as (unfinished, named, time):
            copy = _Copy(store, source, unfinished, last, progress)
            copy.run()
            backup = Backup(
                named,
                time,
                str(store.resolve()),
                source.store_id,
                source.first,
                source.end,
                source.file_size,
                last.path.name if last is not None and copy.links else None,
                copy.finished(),
                __version__,
            )
            _write_manifest(unfinished, backup)
            destination.finish(unfinished, named)
        if keep is not None:
            destination.remove([*backups, backup][:-keep])
    return backup


def _write_manifest(folder: Path, backup: Backup) -> None:
    file = folder / MANIFEST
    file.write_text(json.dumps(backup.as_json(), indent=1) + "\n")
    make_durable(file)


class _ChangedError(Exception):
    """The store was changed in another way than by appending; the pass is repeated."""


class _Copy:
    """The copy of a store in a folder."""

    def __init__(
        self, store: Path, source: BackupSource, folder: Path, last: Backup | None, progress: Progress
    ) -> None:
        self._store, self._source, self._folder, self._last, self._progress = store, source, folder, last, progress
        self._known = {} if last is None else {one.path: one for one in last.files if one.modified_ns is not None}
        self._files: dict[str, BackupFile] = {}

    @property
    def links(self) -> int:
        """How many files are shared with the last backup."""
        return sum(one.is_linked for one in self._files.values())

    def run(self) -> None:
        """Copies all, again and again while the store is changed in another way than by appending."""
        missing = None
        for _ in range(_PASSES_MAX):
            try:
                self._pass()
            except (_ChangedError, OffsetTooOldError):
                missing = None
            except FileNotFoundError as error:  # Retention has removed a file.
                missing = error.filename
            else:
                return
        if missing is not None:
            raise MissingFileError(f"{missing} is missing\nhint: run `txstore store check --deep {self._store}`")
        raise StoreLockedError(
            f"{self._store} did not come to rest: it was opened, repaired or cleaned {_PASSES_MAX} times during the "
            "backup\nhint: repeat the backup"
        )

    def finished(self) -> tuple[BackupFile, ...]:
        """Returns all files of the copy, sorted by path."""
        for file in sorted(one for one in self._folder.rglob("*") if one.is_file()):
            name = file.relative_to(self._folder).as_posix()
            if name not in self._files:
                data = file.read_bytes()
                self._files[name] = BackupFile(name, len(data), zlib.crc32(data))
                make_durable(file)
        return tuple(self._files[name] for name in sorted(self._files))

    def _pass(self) -> None:
        self._copy_config()
        if not self._source.look():
            raise _ChangedError
        self._demand_same_store()
        self._source.begin_copy(self._folder)
        self._copy_log()
        self._copy_silent_queues()
        for name, file in self._files.items():
            if file.modified_ns not in (None, (self._store / name).stat().st_mtime_ns):
                raise _ChangedError
        if not self._source.is_still():
            raise _ChangedError

    def _demand_same_store(self) -> None:
        ids = self._source.store_id, self._last and self._last.store_id
        if self._last is not None and None not in ids and ids[0] != ids[1]:
            raise InvalidOptionError(
                f"{self._last.path.parent} has backups of another store: that of {self._last.store}\n"
                "hint: use one folder for each store",
                option="DEST",
            )

    def _copy_config(self) -> None:
        """Copies the files of `config/`. Each is replaced by its writer as a whole."""
        target = self._folder / "config"
        for _ in range(_PASSES_MAX):
            shutil.rmtree(target, ignore_errors=True)
            with suppress(FileNotFoundError):  # It was renamed after it was listed.
                _copy_files(self._store / "config", target)
                return
        raise _ChangedError

    def _copy_log(self) -> None:
        first, end, size = self._source.first, self._source.end, self._source.file_size
        names = {_log_file(base): base for base in range(first, end, size or 1)}
        self._drop_others(names)
        with self._progress("copying the log", end - first) as steps:
            for name, base in names.items():
                self._copy_log_file(name, base, steps)
                steps.to(base - first + size)

    def _drop_others(self, names: Collection[str]) -> None:
        """Removes files of an earlier pass that retention has removed in the store, or that are incomplete."""
        for file in (self._folder / "commitlog").iterdir():
            name = f"commitlog/{file.name}"
            if file.name.isdigit() and (name not in names or name not in self._files):
                file.unlink()
                self._files.pop(name, None)

    def _copy_log_file(self, name: str, base: int, steps: Steps) -> None:
        length = min(self._source.end - base, self._source.file_size)
        is_full = length == self._source.file_size
        origin, target = self._store / name, self._folder / name
        modified_ns = origin.stat().st_mtime_ns if is_full else None
        done = self._files.pop(name, None)
        if done is not None and is_full and done.modified_ns == modified_ns:
            self._files[name] = done
            return
        target.unlink(missing_ok=True)
        if is_full and (linked := self._linked(name, modified_ns, target)):
            self._files[name] = linked
            return
        # The store overwrites bytes of its last file without space for them if no copy shares its blocks.
        before = base - self._source.first
        copy_file(origin, target, length, may_share=is_full, report=lambda done: steps.to(before + done))
        if is_full and origin.stat().st_mtime_ns != modified_ns:
            raise _ChangedError
        content = self._verified(base)
        make_durable(target, modified_ns)
        self._files[name] = BackupFile(name, length, content.crc32, modified_ns, content.records)

    def _linked(self, name: str, modified_ns: int | None, target: Path) -> BackupFile | None:
        """Links a file of the last backup; None if it is another one, or if files cannot be linked there."""
        known = self._known.get(name)
        if self._last is None or known is None:
            return None
        shared = self._last.path / name
        try:
            found = shared.stat()
            facts = {found.st_mtime_ns, known.modified_ns, modified_ns}, {found.st_size, known.bytes}
            if facts != ({modified_ns}, {self._source.file_size}):
                return None
            os.link(shared, target)
        except OSError:  # It is copied instead.
            return None
        return replace(known, is_linked=True)

    def _verified(self, base: int) -> LogFileContent:
        size, end = self._source.file_size, self._source.end
        try:
            return verify_log_file(self._folder, size, base, end)
        except StoreCorruptError as error:
            if not self._source.is_still():
                raise _ChangedError from error
            # Tells a damaged record of the store from one that was damaged on its way.
            verify_log_file(self._store, size, base, end)
            raise StoreCorruptError(
                f"the copy of {self._store / _log_file(base)} differs from it: {str(error).partition(chr(10))[0]}\n"
                "hint: check the disk of the backups",
                file=error.file,
                offset=error.offset,
            ) from error

    def _copy_silent_queues(self) -> None:
        shutil.rmtree(self._folder / "consumequeue", ignore_errors=True)
        for name in self._source.silent_queue_files():
            origin, target = self._store / name, self._folder / name
            target.parent.mkdir(parents=True, mode=0o700)
            copy_file(origin, target)


def _log_file(base: int) -> str:
    return f"commitlog/{base:020}"


def _copy_files(origin: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    if not origin.is_dir():
        return
    with os.scandir(origin) as entries:
        kept = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    for name in kept:
        if not name.endswith(".tmp"):
            copy_file(origin / name, target / name)
