"""Backups of a store, also while another process writes it.

`take_backup` adds one to a folder of backups and returns a `Backup`. Each is a folder of its own that is a whole store:
restoring is opening a copy of it. Log files that did not change are shared by hard links. `manifest` says what a backup
holds, `destination` which backups a folder has, `copying` copies a file, `taking` does all of it.
"""

from txstore.backup.manifest import Backup, BackupFile, is_unopened
from txstore.backup.taking import take_backup

__all__ = ["Backup", "BackupFile", "is_unopened", "take_backup"]
