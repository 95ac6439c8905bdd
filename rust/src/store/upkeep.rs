//! Upkeep: what a store does beside appends: derived files, syncs, progress, the clean close.
//!
//! In: a background thread, or a caller. Out: files that are as new as they need to be. Always: data is synced before
//! what points to it; the log never waits for a queue or the index. Not here: snapshots.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::commit_log;
use crate::config_file;
use crate::error::{Error, Result};
use crate::half::HALF_QUEUE;
use crate::java;
use crate::log_view::{ABORT, GUARD};
use crate::mutant::{Mutant, mutated};
use crate::names::{HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP};
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

    /// The offset up to which a group has acknowledged a queue.
    pub fn consumer_offset(&self, topic: &str, group: &str, queue_id: crate::units::QueueId) -> Result<Option<u64>> {
        self.shared.refresh_offsets()?;
        Ok(self.shared.offsets.lock().get(topic, group, queue_id))
    }

    /// Sets it, in memory; `write_offsets` writes.
    pub fn set_consumer_offset(
        &self,
        topic: &str,
        group: &str,
        queue_id: crate::units::QueueId,
        queue_offset: u64,
    ) -> Result<()> {
        self.shared.check_writable("acknowledging")?;
        check_acknowledged(&self.shared.inner.lock(), topic, queue_id, queue_offset)?;
        self.shared.offsets.lock().set(topic, group, queue_id, queue_offset);
        Ok(())
    }

    /// Forgets how far a group has read a topic, in memory; `write_offsets` writes.
    pub fn remove_consumer_offsets(&self, topic: &str, group: &str) -> Result<()> {
        self.shared.check_writable("removing offsets")?;
        self.shared.offsets.lock().remove(topic, group);
        Ok(())
    }

    /// All groups' offsets: topic, group, queue, offset.
    pub fn consumer_offsets(&self) -> Result<Vec<(String, String, crate::units::QueueId, u64)>> {
        self.shared.refresh_offsets()?;
        Ok(self.shared.offsets.lock().all())
    }

    /// A file of `config/`, as a broker or we wrote it; a damaged one falls back to its `.bak`.
    pub fn config(&self, name: &str) -> Result<Option<serde_json::Value>> {
        self.shared.check_open()?;
        check_config_name(name)?;
        Ok(config_file::load(self.shared.storage.as_ref(), name)?.value)
    }

    /// Replaces a file of `config/`.
    pub fn set_config(&self, name: &str, value: &serde_json::Value) -> Result<()> {
        check_config_name(name)?;
        // Asked under the lock that a close takes, too: nothing is written once the store is handed over.
        let _one = self.shared.upkeep.lock();
        self.shared.check_writable("writing a configuration")?;
        config_file::replace(self.shared.storage.as_ref(), name, &config_file::to_text(value))
    }

    /// Writes consumerOffset.json if an offset changed, with the transactions' progress.
    pub fn write_offsets(&self) -> Result<()> {
        self.shared.check_writable("writing offsets")?;
        self.shared.write_progress()
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

    /// Writes the progress of transactions and delayed messages, and the consumers' offsets, after the sync that they depend on (T9).
    pub(super) fn write_progress(&self) -> Result<()> {
        let _one = self.upkeep.lock();
        self.check_writable("writing offsets")?;
        self.write_progress_alone()
    }

    pub(super) fn write_progress_alone(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        let half_end = inner.derived.dispatcher.queues.next(inner.derived.half_slot);
        let half_progress = inner.derived.table.half_progress(half_end);
        let op_progress = inner.derived.table.ops.pass(half_progress);
        let delays = inner.derived.delays.clone();
        let end = self.log.appended();
        drop(inner);
        if !mutated(Mutant::ProgressFirst) {
            self.wait_durable(end)?;
        }
        self.delay_offsets.lock().write(self.storage.as_ref(), delays, self.clock.wall())?;
        let mut offsets = self.offsets.lock();
        // Queues that do not exist yet have no progress.
        for (topic, progress) in [(HALF_TOPIC, half_progress), (OP_TOPIC, op_progress)] {
            if progress > 0 || offsets.get(topic, TRANSACTION_GROUP, HALF_QUEUE).is_some() {
                offsets.set(topic, TRANSACTION_GROUP, HALF_QUEUE, progress);
            }
        }
        if offsets.is_dirty() {
            offsets.write(self.storage.as_ref(), self.clock.wall())?;
        }
        drop(offsets);
        self.inner.lock().derived.stored_half_progress = half_progress;
        Ok(())
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

/// Refuses an offset past the end of its queue.
pub(super) fn check_acknowledged(
    inner: &Inner,
    topic: &str,
    queue_id: crate::units::QueueId,
    queue_offset: u64,
) -> Result<()> {
    let queues = &inner.derived.dispatcher.queues;
    let next = queues.find(topic, queue_id).map_or(0, |slot| queues.next(slot));
    if queue_offset <= next {
        return Ok(());
    }
    Err(Error::InvalidOption {
        option: "queue_offset".into(),
        what: format!("{queue_offset} is past the end of {topic}/{queue_id}, which is {next}"),
    })
}

/// A plain file name; consumer offsets have calls of their own.
fn check_config_name(name: &str) -> Result<()> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if !plain || name.starts_with('.') || name.is_empty() || name == "consumerOffset.json" {
        return Err(Error::InvalidName {
            what: format!("{name:?} is no file of config/ that may be read or replaced"),
        });
    }
    Ok(())
}
