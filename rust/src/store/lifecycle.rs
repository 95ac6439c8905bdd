//! Decides whether a store handle may be used: open, in the process that opened it, writable, not poisoned.
//!
//! In:     forks, closes, errors after which the files' state is unknown.
//! Out:    errors for calls that are refused.
//! Always: a poisoned store writes nothing. Only a new opening recovers it.

use std::sync::atomic::Ordering;

use super::Shared;
use crate::base::error::{Error, Result};
use crate::base::sync::rank::BRIEF;
use crate::base::sync::{AtomicBool, AtomicU64, Mutex};
use crate::storage::disk::close_in_child;
use crate::storage::{Lock, Opener};

/// How many forks this process was told about (see `note_fork`).
static FORKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Marks this process as a forked child: handles that its parent opened refuse to work in it, and it closes its copies
/// of its parent's locks.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    close_in_child();
}

/// Whether a store is in use, and by which process.
#[derive(Debug)]
pub(super) struct Lifecycle {
    is_closed: AtomicBool,
    is_poisoned: AtomicBool,
    /// Another node has replaced this one as the source.
    is_fenced: AtomicBool,
    /// The highest epoch that was accepted.
    accepted: AtomicU64,
    /// The value of `FORKS` when the store was opened.
    forks: u64,
    process: u32,
    /// The writer's locks, until the clean close.
    file_locks: Mutex<Vec<Box<dyn Lock>>, BRIEF>,
}

impl Lifecycle {
    pub(super) fn new(opener: Opener, file_locks: Vec<Box<dyn Lock>>, accepted: u64) -> Self {
        Self {
            is_closed: AtomicBool::new(false),
            is_poisoned: AtomicBool::new(false),
            is_fenced: AtomicBool::new(false),
            accepted: AtomicU64::new(accepted),
            forks: FORKS.load(Ordering::SeqCst),
            process: opener.process,
            file_locks: Mutex::ranked(file_locks),
        }
    }

    pub(super) fn is_forked(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Marks the store as closed. Returns whether it was open.
    pub(super) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::SeqCst)
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// Returns the highest epoch that was accepted.
    pub(super) fn accepted_epoch(&self) -> u64 {
        self.accepted.load(Ordering::Acquire)
    }

    /// Notes that an epoch was accepted, and whether another node has it instead of this one.
    pub(super) fn accept(&self, epoch: u64, is_fenced: bool) {
        self.accepted.fetch_max(epoch, Ordering::AcqRel);
        self.is_fenced.fetch_or(is_fenced, Ordering::AcqRel);
    }

    fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Release);
    }

    /// Releases the writer's locks, so that another process may open the store.
    pub(super) fn unlock_files(&self) {
        self.file_locks.lock().clear();
    }

    /// Fails in a forked child and on a closed handle.
    #[inline]
    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_forked() {
            let here = std::process::id();
            return Err(Error::StoreForked { owner: self.process, here });
        }
        if self.is_closed() {
            return Err(Error::StoreClosed);
        }
        Ok(())
    }

    /// Lets a test use a closed handle again.
    #[cfg(test)]
    pub(super) fn reopen(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }
}

/// Poisons the store if a panic unwinds. The state under a lock is then unknown, so nothing more is written.
pub(super) struct PoisonOnPanic<'a>(pub(super) &'a Shared);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.commit.poison("a panic in the engine: this is a bug");
            self.0.lifecycle.poison();
        }
    }
}

impl Shared {
    /// Closes the files of a closed store, because objects that refer to it may live long.
    pub(super) fn close_files(&self) {
        self.inner.lock().appender = None;
        self.log.segments.close();
        self.queue_files.close_handles();
        self.index_files.lock().close_handles();
    }

    /// Fails in a forked child and on a closed handle.
    #[inline]
    pub(super) fn check_open(&self) -> Result<()> {
        self.lifecycle.check_open()
    }

    /// Fails for a write in a read-only or poisoned store.
    #[inline]
    pub(super) fn check_writable(&self, what: &'static str) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Err(Error::ReadOnly { what });
        }
        if self.lifecycle.is_poisoned() {
            return Err(Error::StorePoisoned { why: self.commit.poisoned().unwrap_or_default() });
        }
        Ok(())
    }

    /// Fails for a write that adds records of this store's own.
    #[inline]
    pub(super) fn check_appends(&self, what: &'static str) -> Result<()> {
        self.check_writable(what)?;
        if self.options.is_replica() { Err(Error::Replica { what }) } else { self.check_not_fenced(what) }
    }

    /// Stops all writing after an error that leaves the files' state unknown. Returns the error.
    pub(super) fn poison_on(&self, error: Error) -> Error {
        if let Error::StorePoisoned { why } = &error {
            self.commit.poison(why);
            self.lifecycle.poison();
            if let Some(published) = self.readers.page().filter(|_| self.options.shows_only_durable()) {
                published.set_sync_failed(true);
            }
        }
        error
    }
}
