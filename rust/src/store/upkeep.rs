//! Upkeep: what a store does beside appends: derived files, syncs, progress, the clean close.
//!
//! In: a background thread, or a caller. Out: files that are as new as they need to be. Always: data is synced before
//! what points to it; the log never waits for a queue or the index. Not here: snapshots.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::commit_log;
use crate::error::{Error, Result};
use crate::java;
use crate::log_view::{ABORT, GUARD};
use crate::names::HALF_TOPIC;
use crate::snapshot::Snapshot;
use crate::units::PhysicalOffset;

/// Bytes of queue entries in memory from which the background thread is woken.
const BUFFERED_WAKE: usize = 1 << 20;
/// Index entries in memory from which the background thread is woken.
const INDEX_WAKE: usize = 1 << 15;
/// Bytes of queue entries, or index entries, in memory from which a sender writes them itself.
const BUFFERED_MAX: usize = 32 << 20;
const INDEX_MAX: usize = 1 << 20;

/// Starts the background thread. It ends with the store, also with one that was never closed.
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
        seen = shared.wake.wait_ms(seen, shared.options.flush_interval_ms);
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        // A panic outside of what is guarded anyway would end this thread, and nothing would be synced any more.
        let _guard = PoisonOnPanic(&shared);
        // An error stays: a failed sync poisons, a full disk is met again by the next round and by the senders.
        let _ = shared.flush_round();
    }
}

impl Store {
    /// Makes everything that was appended durable.
    pub fn flush(&self) -> Result<()> {
        self.shared.check_writable("flushing")?;
        self.shared.wait_durable(self.shared.log.appended())
    }

    /// Whether the log is durable up to `end`.
    pub fn is_durable(&self, end: u64) -> bool {
        self.shared.log.durable() >= end
    }
}

impl Shared {
    pub(super) fn half_topic_hash(&self) -> i32 {
        *self.half_topic_hash.get_or_init(|| java::topic_hash(HALF_TOPIC))
    }

    /// Wakes the background thread when much is buffered.
    #[inline]
    pub(super) fn ask_for_upkeep(&self, buffered: usize, index: usize) {
        let much = buffered > BUFFERED_WAKE || index > INDEX_WAKE;
        if much && !self.upkeep_asked.swap(true, Ordering::AcqRel) {
            self.wake.set();
        }
        self.overfull.store(buffered > BUFFERED_MAX || index > INDEX_MAX, Ordering::Relaxed);
    }

    /// A sender that is too far ahead of the background thread does its work.
    pub(super) fn relieve(&self) -> Result<()> {
        if self.overfull.swap(false, Ordering::Relaxed) { self.write_derived() } else { Ok(()) }
    }

    pub(super) fn is_overfull(&self) -> bool {
        self.overfull.load(Ordering::Relaxed)
    }

    /// Writes what is derived, syncs the log.
    pub(super) fn flush_round(&self) -> Result<()> {
        self.upkeep_asked.store(false, Ordering::Release);
        let derived = self.write_derived();
        if !self.poisoned.load(Ordering::Acquire) {
            self.wait_durable(self.log.appended())?;
        }
        derived
    }

    /// Writes the queue entries and index entries that are only in memory.
    pub(super) fn write_derived(&self) -> Result<()> {
        let _one = self.upkeep.lock();
        self.check_writable("writing queues")?;
        self.write_derived_alone()
    }

    pub(super) fn write_derived_alone(&self) -> Result<()> {
        self.write_derived_up_to(|_| ())
    }

    /// Writes what is only in memory now, and returns what `capture` takes at the same moment: when this returns, the
    /// files of queues and index end where the capture ends, because only the holder of `upkeep` writes them.
    pub(super) fn write_derived_up_to<T>(&self, capture: impl FnOnce(&Inner) -> T) -> Result<T> {
        let _guard = PoisonOnPanic(self);
        let mut inner = self.inner.lock();
        let captured = capture(&inner);
        let blocks = inner.derived.dispatcher.queues.blocks();
        let entries = Arc::new(std::mem::take(&mut inner.derived.dispatcher.index));
        inner.derived.index_in_flight = Arc::clone(&entries);
        let end = self.log.appended();
        drop(inner);
        let queues = self.write_blocks(&blocks).map_err(|error| self.judge(error));
        let indexed = self.write_index(&entries).map_err(|error| self.judge(error));
        let mut inner = self.inner.lock();
        inner.derived.index_in_flight = Arc::default();
        if indexed.is_err() {
            let newer = std::mem::replace(&mut inner.derived.dispatcher.index, entries.to_vec());
            inner.derived.dispatcher.index.extend(newer);
        }
        drop(inner);
        queues?;
        indexed?;
        if let Some(published) = self.published.get() {
            published.set_dispatched(PhysicalOffset(end));
        }
        Ok(captured)
    }

    fn write_blocks(&self, blocks: &[crate::consume_queue::Block]) -> Result<()> {
        for block in blocks {
            self.queue_files.write(&block.topic, block.queue_id, block.from, &block.bytes)?;
            self.inner.lock().derived.dispatcher.queues.settle(block);
        }
        Ok(())
    }

    fn write_index(&self, entries: &[crate::index::IndexEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut files = self.index_files.lock();
        let mark = files.mark();
        files.append(entries).inspect_err(|_| {
            // What could not be added whole is taken back, so that adding it again adds it once.
            let _ = files.roll_back(mark.as_ref());
        })
    }

    /// A sync that failed is never tried again on the same data: the second one would succeed without it.
    pub(super) fn synced(&self, result: Result<()>) -> Result<()> {
        result.map_err(|error| match error {
            Error::TooManyFiles { .. } => error,
            error => self.judge(Error::StorePoisoned { why: error.to_string() }),
        })
    }

    /// The clean close: everything synced, the log without space ahead, our marks gone, the guard last.
    pub(super) fn hand_over(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.poisoned.load(Ordering::Acquire) {
            // What is on disk is not known; the guard stays, and the next opening recovers.
            return Ok(());
        }
        // Whoever comes behind this lock finds the store closed: nothing is written once it is handed over.
        let _one = self.upkeep.lock();
        // First of all, so that a full disk, which fails what comes next, does not keep the log from being durable.
        self.wait_durable(self.log.appended())?;
        self.snapshot_alone()?;
        if self.queues_damaged.load(Ordering::Acquire) {
            Snapshot::remove(self.storage.as_ref())?;
        }
        // A broker that the guard turned away has put back the offsets that it read when it came.
        self.offsets.lock().distrust_file();
        self.write_progress_alone()?;
        let end = self.log.appended();
        crate::recovery::cut_log(&self.log, end)?;
        if let Some(published) = self.published.get() {
            published.set_appended(PhysicalOffset(end));
            published.set_dispatched(PhysicalOffset(end));
            published.sync()?;
        }
        let mut settings = self.settings.lock();
        settings.end_range(end);
        settings.store(self.storage.as_ref())?;
        drop(settings);
        self.storage.unlink(ABORT)?;
        self.storage.sync_dir("")?;
        self.storage.unlink(GUARD)?;
        self.storage.sync_dir(commit_log::DIRECTORY)
    }
}
