//! The state in memory that is derived from the log: queues, transactions, and how far everything is processed.
//!
//! In:     records, first from recovery, then from every write. In a reader, what its writer appends.
//! Out:    the state that the store uses while it is open.
//! Always: it can be rebuilt from the log alone. The store's put lock guards it.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::base::names::{HALF_TOPIC, OP_TOPIC};
use crate::base::units::TimestampMs;
use crate::index::consume_queue::Slot;
use crate::index::delay::{DelayProgress, Moment};
use crate::index::dispatch::Dispatcher;
use crate::index::key_index::IndexEntry;
use crate::index::timed::Waiting;
use crate::log::commit_log::{Appended, EndsToCome};
use crate::recovery::snapshot::Anchor;
use crate::storage::settings::{DeletedQueue, Settings};
use crate::transaction::HALF_QUEUE;
use crate::transaction::replay::{Keep, Replay};
use crate::transaction::table::Table;

/// The state that is derived from the log.
#[derive(Debug)]
pub struct Derived {
    /// Queues, and index entries that are only in memory.
    pub dispatcher: Dispatcher,
    /// Index entries that are being written to files.
    pub index_in_flight: Arc<Vec<IndexEntry>>,
    /// Transactions. Until `start`, their times are store timestamps.
    pub table: Table,
    /// The half queue. Not valid until `start`.
    pub half_slot: Slot,
    /// The op queue. Not valid until `start`.
    pub op_slot: Slot,
    /// The half progress that consumerOffset.json holds.
    pub stored_half_progress: u64,
    /// How far the delayed messages are delivered.
    pub delays: DelayProgress,
    /// The timed messages that wait.
    pub timed: Waiting,
    /// Applies the log's next records, for a reader that follows a writer.
    pub replay: Replay,
    /// Queues that a broker deleted and began again, and the physical offset at which each began; 0 if what txstore
    /// deleted in it before stays deleted.
    pub begun_again: HashMap<Slot, u64>,
    /// The physical offset after the last record that recovery or a reader has read.
    pub end: u64,
    /// The last record.
    pub anchor: Option<Anchor>,
    /// The newest store timestamp.
    pub newest: TimestampMs,
}

impl Derived {
    /// Returns the state of a log without records that begins at `first`.
    pub(super) fn empty(first: u64, half_progress: u64) -> Self {
        Self {
            dispatcher: Dispatcher::default(),
            index_in_flight: Arc::default(),
            table: Table::new(0),
            half_slot: Slot::NONE,
            op_slot: Slot::NONE,
            stored_half_progress: half_progress,
            delays: DelayProgress::new(),
            timed: Waiting::default(),
            replay: Replay::new(Keep::Open, first, half_progress),
            begun_again: HashMap::new(),
            end: first,
            anchor: None,
            newest: TimestampMs(0),
        }
    }

    /// Begins the time of an open store. Transactions without an immunity time are due `timeout_ms` after they were
    /// stored. A replica's replay continues with the table.
    pub fn start(&mut self, now: Moment, timeout_ms: i64, is_replica: bool) {
        let queues = &mut self.dispatcher.queues;
        self.half_slot = queues.find_or_insert(HALF_TOPIC, HALF_QUEUE);
        self.op_slot = queues.find_or_insert(OP_TOPIC, HALF_QUEUE);
        let half_end = queues.next(self.half_slot);
        // A power loss can leave a progress after the queue's end. It would keep new halves out of op messages.
        self.stored_half_progress = self.stored_half_progress.min(half_end);
        // Nothing is known about halves that the log no longer contains.
        self.table.begin_at(half_end);
        // If the wall clock is before the newest record, every half would seem too young. Time continues from the later
        // one.
        let wall_ms = now.wall.0.max(self.newest.0);
        self.table.start(wall_ms, now.monotonic_ms, |entry| entry.immunity_ms().unwrap_or(timeout_ms));
        if is_replica {
            self.replay.continue_from(wall_ms - now.monotonic_ms);
        }
    }

    /// Returns how much space in the log the ends of all pending transactions may take.
    pub fn ends_to_come(&self) -> EndsToCome {
        let sizes = self.table.sizes();
        EndsToCome { bytes: sizes.bytes(), count: sizes.count(), largest: sizes.largest() }
    }

    /// Notes the last appended record, for the next snapshot.
    pub fn note_last(&mut self, last: Appended) {
        self.anchor = Some(Anchor { physical_offset: last.physical_offset.0, size: last.size, crc: 0 });
        self.newest = last.store_timestamp;
    }

    /// Returns whether a broker deleted and began a queue again after txstore deleted it. Then txstore's mark is
    /// invalid.
    pub fn is_begun_again(&self, deleted: &DeletedQueue) -> bool {
        let slot = self.dispatcher.queues.find(&deleted.topic, deleted.queue_id);
        slot.and_then(|slot| self.begun_again.get(&slot)).is_some_and(|begun_at| *begun_at >= deleted.log_end)
    }

    /// Lets deleted queues begin after the entries that they had when they were deleted.
    pub fn begin_deleted(&mut self, settings: &Settings) {
        for deleted in settings.deleted.iter().filter(|deleted| !self.is_begun_again(deleted)).collect::<Vec<_>>() {
            let slot = self.dispatcher.queues.find(&deleted.topic, deleted.queue_id);
            if let Some(queue) = slot.and_then(|slot| self.dispatcher.queues.get_mut(slot)) {
                queue.first = deleted.below.min(queue.next()).max(queue.first);
            }
        }
    }
}
