//! Writes snapshots: the state at one position of the log, encoded while sends continue.
//!
//! In:     calls, every minute and at the close.
//! Out:    the snapshot file and the checkpoint. Nothing if they already contain the current state.
//! Always: everything derived from the log below the position is synced first. The put lock is held to share the
//!         table's blocks and to copy the queues' ends, but not to copy, encode or write transactions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::configuration::delay_progress;
#[cfg(feature = "arrow")]
use super::keep_statistics::FullFiles;
use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::rank::BRIEF;
use crate::base::sync::{AtomicBool, AtomicU64, Mutex};
use crate::base::units::{PhysicalOffset, QueueId, TimestampMs};
use crate::index::consume_queue::{ConsumeQueue, Slot};
use crate::index::delay::DelayProgress;
use crate::index::timed::Waiting;
use crate::recovery::snapshot::{Anchor, QueueExtent, Snapshot};
use crate::storage::checkpoint::Checkpoint;
use crate::transaction::table::{Frozen, Table};

/// A snapshot stores ages as wall times. It is written again after the wall clock was changed by more than this.
const CLOCK_STEP_MS: i64 = 1_000;

/// Distinguishes two states without comparing all of their contents.
#[derive(Clone, Copy, Debug)]
struct StateMark {
    position: u64,
    /// See `Inner::unlogged_changes`.
    unlogged_changes: u64,
    is_pending: bool,
    /// Wall time minus monotonic time.
    to_wall_ms: i64,
}

impl StateMark {
    /// Returns whether a snapshot of the state `self` is also one of the state `other`.
    fn is_same(&self, other: &Self) -> bool {
        let clock_step_ms = self.to_wall_ms.abs_diff(other.to_wall_ms);
        self.position == other.position
            && self.unlogged_changes == other.unlogged_changes
            && (!self.is_pending || clock_step_ms <= CLOCK_STEP_MS.unsigned_abs())
    }
}

/// The state of the snapshot file.
#[derive(Debug)]
pub(super) struct SnapshotState {
    /// The end of the log that the snapshot covers.
    position: AtomicU64,
    /// The state in the snapshot. `None`: unknown.
    stored: Mutex<Option<StateMark>, BRIEF>,
    /// A queue's file is damaged. The next opening must build all queues again, without a snapshot.
    are_queues_damaged: AtomicBool,
}

impl SnapshotState {
    /// Creates the state for a store that was opened with a snapshot up to `position`.
    pub(super) fn new(position: u64) -> Self {
        Self {
            position: AtomicU64::new(position),
            stored: Mutex::ranked(None),
            are_queues_damaged: AtomicBool::new(false),
        }
    }

    /// Returns the end of the log that the snapshot covers.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Notes that a queue's file is damaged, so that a close leaves no snapshot.
    pub(super) fn distrust_queues(&self) {
        self.are_queues_damaged.store(true, Ordering::Release);
    }

    /// Returns whether a queue's file is damaged.
    pub(super) fn are_queues_damaged(&self) -> bool {
        self.are_queues_damaged.load(Ordering::Acquire)
    }
}

/// The state at one position.
struct Captured {
    mark: StateMark,
    last: Option<Anchor>,
    newest: TimestampMs,
    queues: Vec<QueueExtent>,
    delays: DelayProgress,
    table: Frozen,
    timed: Waiting,
}

impl Store {
    /// Syncs everything that is derived from the log and writes a snapshot, unless the last one holds the same state.
    /// Keeps the statistics of full log files.
    pub fn snapshot(&self) -> Result<()> {
        self.shared.check_writable("a snapshot")?;
        self.shared.snapshot()?;
        #[cfg(feature = "arrow")]
        self.shared.keep_statistics(FullFiles::All);
        Ok(())
    }
}

impl Shared {
    fn snapshot(&self) -> Result<()> {
        let _guard = PoisonOnPanic(self);
        let _one = self.maintenance.turn.lock();
        self.check_writable("a snapshot")?;
        self.snapshot_alone()
    }

    /// Does the same as `snapshot`, for the holder of the maintenance lock.
    pub(super) fn snapshot_alone(&self) -> Result<()> {
        let mark = self.state_mark(&self.inner.lock());
        if self.snapshots.stored.lock().is_some_and(|stored| stored.is_same(&mark)) {
            return Ok(());
        }
        // Within a write, only the log tells how some transactions end.
        let capture = |inner: &Inner| (!self.is_within_a_write(inner)).then(|| self.capture(inner));
        let Some(captured) = self.write_derived_up_to(capture)? else { return Ok(()) };
        let (mark, newest, delays) = (captured.mark, captured.newest.0, captured.delays.clone());
        let bytes = self.encode(captured)?;
        let unsynced: Vec<_> = unsynced_queues(&self.inner.lock()).collect();
        if mutated(Mutant::CheckpointAhead) {
            self.store_checkpoint(newest)?;
        }
        if !mutated(Mutant::SnapshotAhead) {
            self.wait_durable(mark.position)?;
        }
        for (slot, topic, queue_id, from, to) in unsynced {
            self.synced(self.queue_files.sync(&topic, queue_id, from, to))?;
            if let Some(queue) = self.inner.lock().derived.dispatcher.queues.get_mut(slot) {
                queue.unsynced_from = Some(to).filter(|to| queue.settled() > *to);
            }
        }
        let indexed = self.index_files.lock().sync();
        self.synced(indexed)?;
        // Written before the snapshot, because a delivery below the snapshot's position is not read from the log again.
        self.configuration.delay_offsets.lock().write(self.storage.as_ref(), delays, self.clock.wall())?;
        Snapshot::store(self.storage.as_ref(), &bytes)?;
        self.snapshots.position.store(mark.position, Ordering::Release);
        self.store_checkpoint(newest)?;
        *self.snapshots.stored.lock() = Some(mark);
        Ok(())
    }

    fn state_mark(&self, inner: &Inner) -> StateMark {
        let wall_ms = self.clock.wall().0.max(inner.derived.newest.0);
        StateMark {
            position: self.log.appended(),
            unlogged_changes: inner.unlogged_changes,
            is_pending: !inner.derived.table.is_empty(),
            to_wall_ms: wall_ms - self.clock.monotonic_ms(),
        }
    }

    fn capture(&self, inner: &Inner) -> Captured {
        let extent = |(_, queue): (Slot, &ConsumeQueue)| QueueExtent {
            topic: Arc::clone(&queue.topic),
            queue_id: queue.queue_id,
            first: queue.first,
            next: queue.next(),
        };
        Captured {
            mark: self.state_mark(inner),
            last: inner.derived.anchor,
            newest: inner.derived.newest,
            queues: inner.derived.dispatcher.queues.iter().map(extent).collect(),
            delays: delay_progress(inner),
            table: inner.derived.table.freeze(),
            timed: inner.derived.timed.clone(),
        }
    }

    fn encode(&self, captured: Captured) -> Result<Vec<u8>> {
        let crc_of = |last: Anchor| {
            let physical_offset = PhysicalOffset(last.physical_offset);
            let crc = self.log.read(physical_offset, self.log.appended(), |_, bytes| crc32fast::hash(bytes))?;
            Ok(Anchor { crc, ..last })
        };
        let snapshot = Snapshot {
            position: captured.mark.position,
            anchor: captured.last.map(crc_of).transpose()?,
            newest_store_ms: captured.newest.0,
            queues: captured.queues,
            index: self.index_files.lock().mark(),
            table: Table::default(),
            timed: captured.timed,
        };
        Ok(snapshot.encode(&captured.table, captured.mark.to_wall_ms))
    }

    fn store_checkpoint(&self, newest: i64) -> Result<()> {
        let before = Checkpoint::load(self.storage.as_ref())?.unwrap_or_default();
        Checkpoint::store(
            self.storage.as_ref(),
            &Checkpoint { physic_ms: newest, logics_ms: newest, index_ms: newest, ..before },
        )
    }
}

fn unsynced_queues(inner: &Inner) -> impl Iterator<Item = (Slot, Arc<str>, QueueId, u64, u64)> + '_ {
    inner.derived.dispatcher.queues.iter().filter_map(|(slot, queue)| {
        let from = queue.unsynced_from?;
        Some((slot, Arc::clone(&queue.topic), queue.queue_id, from, queue.settled()))
    })
}
