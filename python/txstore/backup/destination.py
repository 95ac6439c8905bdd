"""The folder of a store's backups: which there are, how one is added, how old ones are removed.

In:     a folder.
Out:    complete backups, by time; a folder for a new one.
Always: a folder whose name is a time is a complete backup. It gets this name when all of it is durable, and loses it
        before anything of it is removed, so a kill at any moment leaves each backup complete or without a name. One
        process works in a folder at a time.
Not here: what a backup holds.

    20260131T120000.000000Z/              a backup, named by its time
    20260201T120000.000000Z.unfinished/   one that is being taken, or the rest of one that was killed
    20251201T120000.000000Z.removed/      one that is being removed
    lock
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from txstore.backup.copying import sync_folder, sync_folders
from txstore.backup.manifest import Backup
from txstore.errors import InvalidOptionError, StoreCorruptError, StoreLockedError

__all__ = ["Destination"]

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
_FORM = "%Y%m%dT%H%M%S.%fZ"
_UNFINISHED, _REMOVED = ".unfinished", ".removed"
_LOCK = "lock"
_OTHERS = {_LOCK, "lost+found"}
_FOLDER_MODE = 0o700


class Destination:
    """A folder of backups that this process has locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def locked(cls, folder: Path, store: Path) -> Iterator[Destination]:
        """Creates the folder if it is missing, and locks it; removes what a killed process left.

        Raises InvalidOptionError (it is not for backups, or not apart from the store), StoreLockedError (another
        process takes a backup to it).
        """
        _demand_apart(folder, store)
        if not folder.exists():
            folder.mkdir(mode=_FOLDER_MODE)
            sync_folder(folder.resolve().parent)
        _demand_no_others(folder)
        import fcntl  # Windows has no such module, and no stores either.

        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"another process takes a backup to {folder}\nhint: wait until it ends"
                raise StoreLockedError(text) from error
            destination = cls(folder)
            destination._clean()
            yield destination
        finally:
            os.close(handle)

    def _clean(self) -> None:
        for name in self._names(_UNFINISHED) + self._names(_REMOVED):
            shutil.rmtree(self.folder / name)

    def _names(self, ending: str = "") -> list[str]:
        """Returns the names that consist of a time and `ending`, in the order of their times."""
        names = (one.name for one in self.folder.iterdir() if one.name.endswith(ending))
        return sorted(name for name in names if _NAME.fullmatch(name.removesuffix(ending)))

    def backups(self) -> tuple[list[Backup], list[str]]:
        """Returns the backups by time, and what is wrong with those that cannot be read."""
        found, damages = [], []
        for name in self._names():
            try:
                found.append(Backup.read(self.folder / name))
            except StoreCorruptError as error:
                damages.append(str(error))
        return found, damages

    @contextmanager
    def new(self) -> Iterator[tuple[Path, Path, datetime]]:
        """Creates a folder for a new backup; yields it, the name that `finish` will give it, and the time.

        After an error it is removed again.
        """
        time = datetime.now(UTC)
        if names := self._names():
            # The newest backup has the last name, also if the clock was set back.
            time = max(time, datetime.strptime(names[-1], _FORM).replace(tzinfo=UTC) + timedelta(microseconds=1))
        name = time.strftime(_FORM)
        unfinished = self.folder / f"{name}{_UNFINISHED}"
        unfinished.mkdir(mode=_FOLDER_MODE)
        try:
            yield unfinished, self.folder / name, time
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def finish(self, unfinished: Path, path: Path) -> None:
        """Makes a new backup durable, then gives it its name."""
        sync_folders(unfinished)
        unfinished.rename(path)
        sync_folder(self.folder)

    def remove(self, old: list[Backup]) -> None:
        """Removes backups. The files that others share stay."""
        for backup in old:
            removed = backup.path.with_name(f"{backup.path.name}{_REMOVED}")
            backup.path.rename(removed)
            sync_folder(self.folder)
            shutil.rmtree(removed)


def _demand_apart(folder: Path, store: Path) -> None:
    destination, origin = folder.resolve(), store.resolve()
    hint = "hint: pass a folder next to the store, or better on another disk"
    if destination.is_relative_to(origin):
        raise InvalidOptionError(f"{folder} is the store or inside it: {store}\n{hint}", option="DEST")
    if origin.is_relative_to(destination):
        raise InvalidOptionError(f"{folder} contains the store: {store}\n{hint}", option="DEST")
    if folder.exists() and not folder.is_dir():
        raise InvalidOptionError(f"{folder} is not a folder\n{hint}", option="DEST")


def _demand_no_others(folder: Path) -> None:
    for one in sorted(folder.iterdir()):
        is_backup = _NAME.fullmatch(one.name.removesuffix(_UNFINISHED).removesuffix(_REMOVED)) and not one.is_symlink()
        if not is_backup and one.name not in _OTHERS:
            raise InvalidOptionError(
                f"{folder} has something other than backups: {one.name}\n"
                "hint: pass a new or an empty folder, or one that has only backups of this store",
                option="DEST",
            )
