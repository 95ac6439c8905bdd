//! Takes the locks and sets the marks of a writer.
//!
//! In:     a directory.
//! Out:    locks that exclude other writers, and marks that tell the next opening and a broker of a crash.
//! Always: a store that was closed and is not changed keeps no mark.

use crate::base::error::{Error, Result};
use crate::log::commit_log;
use crate::recovery::log_view::{ABORT, GUARD, LOCK, PUBLISHER_BYTE, WRITER_BYTE, is_clean};
use crate::storage::config_file::{read_file, replace_file};
use crate::storage::{Lock, OpenMode, Opener, Storage};

/// The locks and marks of a writer.
pub(super) struct Claim {
    locks: Vec<Box<dyn Lock>>,
    /// Neither mark existed before.
    pub(super) is_clean: bool,
    /// More than derived files may have changed. From now on, only a close makes the store clean.
    pub(super) has_changes: bool,
}

impl Claim {
    /// Takes the locks and sets the marks.
    pub(super) fn take(storage: &dyn Storage, opener: Opener) -> Result<Self> {
        let held = || {
            let pid = abort_pid(storage);
            let is_gone = pid.is_some_and(|pid| !storage.is_running(pid));
            Error::StoreLocked { path: storage.root().to_owned(), pid, is_gone }
        };
        // The writer byte is locked last, because a reader that finds only this byte locked assumes a broker.
        let publisher = storage.lock(LOCK, PUBLISHER_BYTE)?.ok_or_else(held)?;
        let writer = storage.lock(LOCK, WRITER_BYTE)?.ok_or_else(held)?;
        let is_clean = is_clean(storage)?;
        storage.create_dir(commit_log::DIRECTORY)?;
        let guard = storage.open(GUARD, OpenMode::Create)?;
        guard.write_at(b"!", 0)?;
        guard.sync()?;
        storage.sync_dir(commit_log::DIRECTORY)?;
        replace_file(storage, ABORT, opener.process.to_string().as_bytes(), false)?;
        Ok(Self { locks: vec![writer, publisher], is_clean, has_changes: false })
    }

    /// Removes the marks after a failed opening. If the store was closed cleanly and only derived files changed, it is
    /// clean again. Keeps the locks.
    pub(super) fn withdraw(&self, storage: &dyn Storage) {
        if self.is_clean && !self.has_changes {
            let _ = storage.unlink(ABORT).and_then(|()| storage.unlink(GUARD));
        }
    }

    /// Moves the locks to the open store.
    pub(super) fn take_locks(&mut self) -> Vec<Box<dyn Lock>> {
        std::mem::take(&mut self.locks)
    }
}

/// Returns the process id in the abort file.
fn abort_pid(storage: &dyn Storage) -> Option<u32> {
    let text = read_file(storage, ABORT, 16).ok()??;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}
