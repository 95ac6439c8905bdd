//! What the threads of an open store share. Each part has its own lock.
//!
//! In:     what opening assembles.
//! Out:    `Shared`. Its methods are in the modules that own its parts.
//! Always: locks are taken downwards in this drawing. While a lock is held, only locks that its arrows reach may be
//!         taken. Locks of the last two rows are held briefly, and two locks of the same row are never held together.
//!
//! ```text
//!   ends.turn      delivering, appending_once    pending_topics,    one group of ends; one round of delayed messages,
//!       │                    │                   statistics,        or of messages once; one count of what is pending,
//!       │                    │                   deliveries         of the messages in log files, or of deliveries
//!       │                    ▼                        │
//!       │            maintenance.turn                 │             writes derived files, snapshots, progress;
//!       │                    │                        │             removes files; closes cleanly
//!       ▼                    ▼                        ▼
//!   inner: the put lock ── appends, ends, all that is derived ──    orders everything in the log
//!       │                    │                        │
//!       ▼                    ▼                        ▼
//!   configuration.{settings, offsets, …}     index_files
//!       │                    │                        │
//!       ▼                    ▼                        ▼
//!   ends.waiting, a ticket's result, commit, wakes, snapshots.stored, ages.full, lifecycle.file_locks
//! ```
//! Each row is a rank (`sync::rank`), so that debug builds and tests panic where a thread breaks the order of the rows.
//! A writer waits for a sync of the log (`commit`) under locks of the first two rows only, never under the put lock.

use std::sync::Arc;

use super::batch::Staged;
use super::configuration::Configuration;
use super::deliver_delayed::Delivering;
use super::end_transaction::EndQueue;
use super::expire::LogAges;
use super::held_ends::HeldEnds;
#[cfg(feature = "arrow")]
use super::keep_statistics::KeptStatistics;
use super::lifecycle::Lifecycle;
use super::maintenance::Maintenance;
use super::open::OpenReport;
use super::reader_view::Sight;
use super::readers::Readers;
use super::snapshot::SnapshotState;
use super::statistics::PendingTopics;
use super::write_ends::Group;
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::options::StoreOptions;
use crate::base::sync::Mutex;
use crate::base::sync::rank::{FILES, PUT, TURN};
use crate::base::units::QueueId;
use crate::index::consume_queue::{ConsumeQueue, QueueFiles};
use crate::index::delay::{DueTimes, Moment};
use crate::index::deliveries::Deliveries;
use crate::index::key_index::IndexFiles;
use crate::log::commit_log::{Appender, CommitLog};
use crate::log::flush::GroupCommit;
use crate::record::message_id::UniqueIds;
use crate::recovery::Derived;
use crate::storage::Storage;
use crate::transaction::counts::Counts;

/// The state that the store's threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: StoreOptions,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) report: OpenReport,
    pub(super) ids: UniqueIds,
    /// The hash prefix of the half topic's keys in the index.
    pub(super) half_topic_hash: i32,
    pub(super) log: Arc<CommitLog>,
    pub(super) queue_files: QueueFiles,
    pub(super) index_files: Mutex<IndexFiles, FILES>,
    /// The state that the put lock guards.
    pub(super) inner: Mutex<Inner, PUT>,
    /// Ends that wait to be written as one group.
    pub(super) ends: EndQueue,
    /// Threads that wait for a sync of the log.
    pub(super) commit: GroupCommit,
    pub(super) configuration: Configuration,
    pub(super) readers: Readers,
    pub(super) maintenance: Maintenance,
    pub(super) snapshots: SnapshotState,
    /// Held by the one thread that delivers delayed messages.
    pub(super) delivering: Mutex<Delivering, TURN>,
    /// Held by the one thread that appends messages once. Whether a client has done so since the store was opened.
    pub(super) appending_once: Mutex<bool, TURN>,
    /// Topics of pending transactions by half queue offset, kept between calls of `pending`.
    pub(super) pending_topics: Mutex<PendingTopics, TURN>,
    /// How often messages were delivered, once a consumer has asked.
    pub(super) deliveries: Mutex<Option<Deliveries>, TURN>,
    /// Held by the one thread that keeps the statistics of log files.
    #[cfg(feature = "arrow")]
    pub(super) statistics: Mutex<KeptStatistics, TURN>,
    pub(super) ages: LogAges,
    pub(super) lifecycle: Lifecycle,
}

/// The state that the put lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    /// `None` in a reader.
    pub(super) appender: Option<Appender>,
    /// Everything that is derived from the log.
    pub(super) derived: Derived,
    /// Counts changes to snapshot contents that no log record contains: numbers of checks, first offsets of queues.
    pub(super) unlogged_changes: u64,
    /// Reused buffer for properties.
    pub(super) scratch: Vec<u8>,
    /// Reused buffer for a half message's record.
    pub(super) record: Vec<u8>,
    /// Reused memory for what a batch adds to queues and index.
    pub(super) staged: Staged,
    /// Reused memory for a group of ends.
    pub(super) group: Group,
    /// The transactions that a replica may have let escape.
    pub(super) held_ends: HeldEnds,
    pub(super) counts: Counts,
    /// When this process first saw the queue entries of delayed messages.
    pub(super) due_times: DueTimes,
    /// The last state of the store that a reader saw.
    pub(super) seen: Option<Sight>,
}

impl Inner {
    /// Returns the state after recovery. A reader has no appender.
    pub(super) fn new(derived: Derived, appender: Option<Appender>, clock: &dyn Clock, options: &StoreOptions) -> Self {
        let mut derived = derived;
        let now = Moment { wall: clock.wall(), monotonic_ms: clock.monotonic_ms() };
        derived.start(now, options.transaction_timeout_ms, options.is_replica());
        Self {
            appender,
            derived,
            unlogged_changes: 0,
            scratch: Vec::new(),
            record: Vec::new(),
            staged: Staged::default(),
            group: Group::default(),
            held_ends: HeldEnds::default(),
            counts: Counts::default(),
            due_times: DueTimes::new(now),
            seen: None,
        }
    }

    /// Returns a queue, if it exists.
    pub(super) fn queue(&self, topic: &str, queue_id: QueueId) -> Option<&ConsumeQueue> {
        let queues = &self.derived.dispatcher.queues;
        queues.find(topic, queue_id).and_then(|slot| queues.get(slot))
    }

    /// Returns the half queue.
    pub(super) fn half_queue(&self) -> Result<&ConsumeQueue> {
        self.derived.dispatcher.queues.get(self.derived.half_slot).ok_or(Error::StoreClosed)
    }

    /// Returns the queue offset that the next half message gets.
    pub(super) fn half_queue_end(&self) -> u64 {
        self.derived.dispatcher.queues.next(self.derived.half_slot)
    }
}
