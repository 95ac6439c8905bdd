//! Maintains the store while others append: writes derived files, syncs, and closes cleanly.
//!
//! In:     calls of the background thread or of a caller.
//! Out:    files that are as new as they need to be.
//! Always: data is synced before anything that points to it. The log never waits for a queue or the index.
//! Not here: snapshots (`snapshot`), offsets and progress (`configuration`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

#[cfg(feature = "arrow")]
use super::keep_statistics::FullFiles;
use super::readers::Wake;
use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::rank::MAINTENANCE;
use crate::base::sync::{AtomicBool, Mutex};
use crate::base::units::PhysicalOffset;
use crate::index::consume_queue::{Block, NewFiles};
use crate::log::commit_log;
use crate::log::published::Published;
use crate::recovery::log_view::{ABORT, GUARD};
use crate::recovery::snapshot::Snapshot;

/// The background thread is woken when this many bytes of queue entries are in memory.
const BUFFERED_WAKE: usize = 1 << 20;
/// The background thread is woken when this many index entries are in memory.
const INDEX_WAKE: usize = 1 << 15;
/// The background thread is woken when this many bytes of the log are not durable. A full file becomes durable before
/// the next one begins, and sends wait for that. So most of the file must be durable by then, for any message size.
const UNSYNCED_WAKE: u64 = 64 << 20;
/// A sender writes queue entries or index entries itself when they take this many bytes in memory.
const BUFFERED_MAX: usize = 32 << 20;
const INDEX_MAX: usize = 1 << 20;

/// State of the requests for maintenance.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    /// Held by the one thread that writes derived files.
    pub(super) turn: Mutex<(), MAINTENANCE>,
    /// The background thread sleeps here.
    pub(super) wake: Wake,
    /// The background thread was woken because of buffered entries.
    is_asked: AtomicBool,
    /// So much is buffered that the next sender must write it.
    is_overfull: AtomicBool,
}

impl Maintenance {
    /// Wakes the background thread when much is buffered (bytes of queue entries, or index entries), or when much of
    /// the log is not durable.
    #[inline]
    pub(super) fn ask(&self, buffered_bytes: usize, index_entries: usize, unsynced_bytes: u64) {
        let is_buffered = buffered_bytes > BUFFERED_WAKE || index_entries > INDEX_WAKE;
        let much = is_buffered || unsynced_bytes > UNSYNCED_WAKE;
        if much && !self.is_asked.swap(true, Ordering::AcqRel) {
            self.wake.set();
        }
        self.is_overfull.store(buffered_bytes > BUFFERED_MAX || index_entries > INDEX_MAX, Ordering::Relaxed);
    }

    /// Returns whether the next sender must first do the background thread's work.
    pub(super) fn is_overfull(&self) -> bool {
        self.is_overfull.load(Ordering::Relaxed)
    }
}

/// Starts the background thread. It ends with the store, even if the store was never closed.
pub(super) fn spawn(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let weak = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("txstore-flush".into())
        .spawn(move || run(&weak))
        .map_err(|source| Error::from_io("start a thread for", shared.storage.root(), source))
}

fn run(weak: &Weak<Shared>) {
    let mut seen = 0;
    while let Some(shared) = weak.upgrade() {
        seen = shared.maintenance.wake.wait_ms(seen, shared.options.flush_interval_ms);
        if shared.lifecycle.is_closed() {
            return;
        }
        // A panic outside the guarded code would end this thread, and nothing would be synced after that.
        let _guard = (!mutated(Mutant::PanicUnnoticed)).then(|| PoisonOnPanic(&shared));
        // Errors do not get lost: a failed sync poisons the store, and the next round or a sender meets a full disk
        // again.
        let _ = shared.flush_round();
    }
}

impl Store {
    /// Makes everything that was appended durable. Waits for the sync.
    pub fn flush(&self) -> Result<()> {
        self.shared.check_writable("flushing")?;
        self.shared.wait_durable(self.shared.log.appended())
    }

    /// Returns whether the log is durable up to `end`.
    pub fn is_durable(&self, end: u64) -> bool {
        self.shared.log.durable() >= end
    }
}

impl Shared {
    /// Does the background thread's work in a sender that is too far ahead of it.
    pub(super) fn relieve(&self) -> Result<()> {
        if self.maintenance.is_overfull.swap(false, Ordering::Relaxed) { self.write_derived() } else { Ok(()) }
    }

    /// Writes derived files, then syncs the log.
    pub(super) fn flush_round(&self) -> Result<()> {
        self.maintenance.is_asked.store(false, Ordering::Release);
        let derived = self.write_derived();
        if !self.lifecycle.is_poisoned() {
            self.wait_durable(self.log.appended())?;
        }
        derived
    }

    /// Writes the queue entries and index entries that are only in memory.
    pub(super) fn write_derived(&self) -> Result<()> {
        let _one = self.maintenance.turn.lock();
        self.check_writable("writing queues")?;
        self.write_derived_alone()
    }

    pub(super) fn write_derived_alone(&self) -> Result<()> {
        self.write_derived_up_to(|_| ())
    }

    /// Writes everything that is in memory now, and returns what `capture` takes at the same moment. On return the
    /// files of queues and index end where the capture ends, because only the holder of the maintenance lock writes
    /// them.
    pub(super) fn write_derived_up_to<T>(&self, capture: impl FnOnce(&Inner) -> T) -> Result<T> {
        let _guard = PoisonOnPanic(self);
        let mut inner = self.inner.lock();
        let captured = capture(&inner);
        let blocks = inner.derived.dispatcher.queues.blocks();
        let entries = Arc::new(std::mem::take(&mut inner.derived.dispatcher.index));
        inner.derived.index_in_flight = Arc::clone(&entries);
        let end = self.log.appended();
        drop(inner);
        let queues = self.write_blocks(&blocks).map_err(|error| self.poison_on(error));
        let indexed = self.write_index(&entries).map_err(|error| self.poison_on(error));
        let mut inner = self.inner.lock();
        inner.derived.index_in_flight = Arc::default();
        if indexed.is_err() {
            let newer = std::mem::replace(&mut inner.derived.dispatcher.index, entries.to_vec());
            inner.derived.dispatcher.index.extend(newer);
        }
        drop(inner);
        queues?;
        indexed?;
        if let Some(published) = self.readers.page() {
            published.set_dispatched(PhysicalOffset(end));
        }
        Ok(captured)
    }

    fn write_blocks(&self, blocks: &[Block]) -> Result<()> {
        for block in blocks {
            self.queue_files.write(block, NewFiles::Synced)?;
            self.inner.lock().derived.dispatcher.queues.settle(block);
        }
        Ok(())
    }

    fn write_index(&self, entries: &[crate::index::key_index::IndexEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut files = self.index_files.lock();
        let mark = files.mark();
        files.append(entries).inspect_err(|_| {
            // A partial write is rolled back, so that a repetition adds every entry once.
            let _ = files.roll_back(mark.as_ref());
        })
    }

    /// Poisons the store after a failed sync. A second sync of the same data would succeed without writing it.
    pub(super) fn synced(&self, result: Result<()>) -> Result<()> {
        result.map_err(|error| match error {
            Error::TooManyFiles { .. } => error,
            error => self.poison_on(Error::StorePoisoned { why: error.to_string() }),
        })
    }

    /// Closes cleanly: syncs everything, trims the log's reserved space, removes the writer's marks, and last the
    /// guard.
    pub(super) fn hand_over(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.lifecycle.is_poisoned() {
            // The state on disk is unknown. The guard stays, so that the next opening recovers.
            return Ok(());
        }
        #[cfg(feature = "arrow")]
        self.keep_statistics(FullFiles::FilledHere);
        // Every later holder of this lock sees that the store is closed, so nothing is written after the hand-over.
        let _one = self.maintenance.turn.lock();
        // This comes first: a full disk fails the steps below, and must not keep the log from becoming durable.
        if !mutated(Mutant::ClosedBeforeSync) {
            self.wait_durable(self.log.appended())?;
        }
        if self.is_within_a_write(&self.inner.lock()) {
            // Only the log tells how these transactions end, so the guard stays and the next opening reads it.
            return self.readers.page().map_or(Ok(()), Published::sync);
        }
        self.snapshot_alone()?;
        if self.snapshots.are_queues_damaged() {
            Snapshot::remove(self.storage.as_ref())?;
        }
        // A broker that the guard refused has written back the offsets that it read at its start.
        self.configuration.offsets.lock().distrust_file();
        self.write_progress_alone()?;
        let end = self.log.appended();
        crate::recovery::cut_log(&self.log, end)?;
        if let Some(published) = self.readers.page() {
            published.set_appended(PhysicalOffset(self.visible_end()));
            published.set_dispatched(PhysicalOffset(end));
            published.sync()?;
        }
        if !self.options.is_replica() {
            let mut settings = self.configuration.settings.lock();
            settings.end_range(end);
            settings.store(self.storage.as_ref())?;
        }
        self.storage.unlink(ABORT)?;
        self.storage.sync_dir("")?;
        self.storage.unlink(GUARD)?;
        self.storage.sync_dir(commit_log::DIRECTORY)
    }
}
