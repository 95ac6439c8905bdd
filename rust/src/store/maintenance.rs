//! Maintenance: what a store does beside appends: derived files, syncs, the clean close.
//!
//! In:     a background thread, or a caller.
//! Out:    files that are as new as they need to be.
//! Always: data is synced before what points to it. The log never waits for a queue or the index.
//! Not here: snapshots (`snapshot`), offsets and progress (`configuration`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::readers::Wake;
use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::commit_log;
use crate::error::{Error, Result};
use crate::log_view::{ABORT, GUARD};
use crate::snapshot::Snapshot;
use crate::sync::{AtomicBool, Mutex};
use crate::units::PhysicalOffset;

/// Bytes of queue entries in memory from which the background thread is woken.
const BUFFERED_WAKE: usize = 1 << 20;
/// Index entries in memory from which the background thread is woken.
const INDEX_WAKE: usize = 1 << 15;
/// Bytes of the log that are not durable from which the background thread is woken. A full file is made durable before the
/// next one is begun, and sends wait for that: much of it must be durable by then, however large the messages are.
const UNSYNCED_WAKE: u64 = 64 << 20;
/// Bytes of queue entries, or index entries, in memory from which a sender writes them itself.
const BUFFERED_MAX: usize = 32 << 20;
const INDEX_MAX: usize = 1 << 20;

/// What asks for maintenance, and who does it.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    /// One thread at a time writes what is derived.
    pub(super) turn: Mutex<()>,
    /// The background thread sleeps here.
    pub(super) wake: Wake,
    /// The background thread was woken for what is buffered.
    is_asked: AtomicBool,
    /// So much is buffered that the next sender writes it.
    is_overfull: AtomicBool,
}

impl Maintenance {
    /// Wakes the background thread when much is buffered (bytes of queue entries, and index entries), or much of the log is
    /// not durable.
    #[inline]
    pub(super) fn ask(&self, buffered_bytes: usize, index_entries: usize, unsynced_bytes: u64) {
        let is_buffered = buffered_bytes > BUFFERED_WAKE || index_entries > INDEX_WAKE;
        let much = is_buffered || unsynced_bytes > UNSYNCED_WAKE;
        if much && !self.is_asked.swap(true, Ordering::AcqRel) {
            self.wake.set();
        }
        self.is_overfull.store(buffered_bytes > BUFFERED_MAX || index_entries > INDEX_MAX, Ordering::Relaxed);
    }

    /// Whether the next sender has to do the background thread's work first.
    pub(super) fn is_overfull(&self) -> bool {
        self.is_overfull.load(Ordering::Relaxed)
    }
}

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
        seen = shared.maintenance.wake.wait_ms(seen, shared.options.flush_interval_ms);
        if shared.lifecycle.is_closed() {
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
    /// Does the background thread's work in a sender that is too far ahead of it.
    pub(super) fn relieve(&self) -> Result<()> {
        if self.maintenance.is_overfull.swap(false, Ordering::Relaxed) { self.write_derived() } else { Ok(()) }
    }

    /// Writes what is derived, syncs the log.
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

    /// Writes what is only in memory now, and returns what `capture` takes at the same moment: when this returns, the
    /// files of queues and index end where the capture ends, because only the holder of the maintenance lock writes them.
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
            error => self.poison_on(Error::StorePoisoned { why: error.to_string() }),
        })
    }

    /// The clean close: everything synced, the log without space ahead, our marks gone, the guard last.
    pub(super) fn hand_over(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.lifecycle.is_poisoned() {
            // What is on disk is not known; the guard stays, and the next opening recovers.
            return Ok(());
        }
        // Every later holder of this lock finds the store closed: nothing is written once it is handed over.
        let _one = self.maintenance.turn.lock();
        // First of all, so that a full disk, which fails what comes next, does not keep the log from being durable.
        self.wait_durable(self.log.appended())?;
        self.snapshot_alone()?;
        if self.snapshots.are_queues_damaged() {
            Snapshot::remove(self.storage.as_ref())?;
        }
        // A broker that the guard turned away has put back the offsets that it read when it came.
        self.configuration.offsets.lock().distrust_file();
        self.write_progress_alone()?;
        let end = self.log.appended();
        crate::recovery::cut_log(&self.log, end)?;
        if let Some(published) = self.readers.page() {
            published.set_appended(PhysicalOffset(end));
            published.set_dispatched(PhysicalOffset(end));
            published.sync()?;
        }
        let mut settings = self.configuration.settings.lock();
        settings.end_range(end);
        settings.store(self.storage.as_ref())?;
        drop(settings);
        self.storage.unlink(ABORT)?;
        self.storage.sync_dir("")?;
        self.storage.unlink(GUARD)?;
        self.storage.sync_dir(commit_log::DIRECTORY)
    }
}
