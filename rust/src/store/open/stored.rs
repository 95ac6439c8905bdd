//! Reads the small files of a store before its log is read.
//!
//! In:     the published page, marks of the last writer, settings, offsets, the snapshot.
//! Out:    what recovery needs to know. Afterwards, settings and offsets that agree with the recovered state.
//! Always: a writer tells readers to wait before it loads anything that it may change.

use super::Opening;
use super::claim::Claim;
use crate::base::error::Result;
use crate::base::names::{HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP};
use crate::index::consume_queue::QueueTable;
use crate::index::delay::DelayOffsets;
use crate::index::key_index::IndexMark;
use crate::index::offsets::ConsumerOffsets;
use crate::log::commit_log::{self, CommitLog};
use crate::log::published::Published;
use crate::recovery::log_view::{KnownEnd, Writer, is_clean};
use crate::recovery::snapshot::Snapshot;
use crate::recovery::{Derived, Known, Recovered};
use crate::storage::epochs::Epochs;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::{Settings, StoreId};
use crate::store::configuration::clamp_offsets;
use crate::store::layout_check::Geometry;
use crate::store::reader_view::Sight;
use crate::transaction::HALF_QUEUE;

/// The marks of writers.
pub(super) struct Marks {
    /// The page in which a writer publishes. `None`: a reader, and no writer has created it yet.
    pub(super) published: Option<Published>,
    /// The state of writers, as a reader sees it.
    pub(super) sight: Option<Sight>,
    /// The last writer closed the store cleanly.
    pub(super) is_clean: bool,
    /// The visible end that the last writer published; 0 in a reader.
    pub(super) shown: u64,
}

impl Marks {
    /// Reads the marks. A writer also begins a new epoch, so that readers wait from now on.
    pub(super) fn read(opening: &Opening, claim: Option<&Claim>) -> Result<Self> {
        let storage = opening.storage.as_ref();
        if let Some(claim) = claim {
            let published = Published::create(storage)?;
            let shown = published.appended().0;
            published.begin_change()?;
            return Ok(Self { published: Some(published), sight: None, is_clean: claim.is_clean, shown });
        }
        let published = Published::open(storage)?;
        let sight = Sight::of(storage, published.as_ref())?;
        Ok(Self { published, sight: Some(sight), is_clean: is_clean(storage)?, shown: 0 })
    }

    /// Returns whether a live process writes records that a reader will follow.
    fn has_live_writer(&self) -> bool {
        self.sight.is_some_and(|sight| sight.seen.writer != Writer::Nobody)
    }

    /// Returns whether the last writer closed the store, and no other process writes to it without publishing.
    fn is_closed(&self) -> bool {
        self.is_clean && self.sight.is_none_or(|sight| sight.seen.writer != Writer::Broker)
    }
}

/// The small files.
pub(super) struct Stored {
    pub(super) offsets: ConsumerOffsets,
    pub(super) delay_offsets: DelayOffsets,
    pub(super) settings: Settings,
    /// Which node may write the log.
    pub(super) epochs: Epochs,
    /// The snapshot. `None` if recovery must not use it.
    pub(super) snapshot: Option<Snapshot>,
    /// The end of the snapshot, used or not. 0 without a snapshot.
    snapshot_position: u64,
    /// The index's end in the snapshot, used or not.
    pub(super) index_mark: Option<IndexMark>,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
}

impl Stored {
    /// Loads offsets and snapshot. A store without settings is new or was written by a broker.
    pub(super) fn load(opening: &Opening, settings: Option<Settings>) -> Result<Self> {
        let storage = opening.storage.as_ref();
        let (offsets, mut warnings) = ConsumerOffsets::load(storage)?;
        let (delay_offsets, damaged) = DelayOffsets::load(storage)?;
        let are_delays_lost = delay_offsets.is_none() || !damaged.is_empty();
        warnings.extend(damaged);
        let snapshot = Snapshot::load(storage)?;
        let is_new = settings.is_none() && SegmentQueue::files(storage, commit_log::DIRECTORY)?.is_empty();
        Ok(Self {
            offsets,
            delay_offsets: delay_offsets.unwrap_or_default(),
            settings: settings.unwrap_or_else(|| Settings { append_prop_crc: is_new, ..Settings::default() }),
            epochs: Epochs::load(storage)?.unwrap_or_default(),
            snapshot_position: snapshot.as_ref().map_or(0, |snapshot| snapshot.position),
            index_mark: snapshot.as_ref().and_then(|snapshot| snapshot.index.clone()),
            snapshot: snapshot.filter(|snapshot| !(are_delays_lost && has_delayed(snapshot))),
            warnings,
        })
    }

    /// Returns what recovery needs to know before the log is read.
    pub(super) fn known(&self, opening: &Opening, marks: &Marks) -> Result<Known> {
        let (is_closed, followed) = (marks.is_closed(), marks.has_live_writer());
        let published = marks.published.as_ref();
        let settings = Some(&self.settings);
        let storage = opening.storage.as_ref();
        let mut end = KnownEnd::find(storage, settings, published, self.snapshot_position, is_closed, followed)?;
        end.durable = marks.sight.map_or(0, |sight| sight.floor).max(end.durable);
        Ok(Known {
            read_only: opening.options.read_only,
            clean: is_closed,
            end,
            limit: marks.sight.map_or(u64::MAX, |sight| sight.limit),
            followed: followed || opening.options.is_replica(),
            half_progress: self.offsets.get(HALF_TOPIC, TRANSACTION_GROUP, HALF_QUEUE).unwrap_or(0),
            delays: self.delay_offsets.progress().clone(),
        })
    }

    /// Makes offsets and deleted queues agree with the recovered state.
    pub(super) fn reconcile(&mut self, recovered: &Recovered) {
        let Recovered { derived, report } = recovered;
        self.warnings.extend(report.warnings.iter().cloned());
        clamp_offsets(&mut self.offsets, &derived.dispatcher.queues, &mut self.warnings);
        self.settings.deleted.retain(|deleted| !derived.is_begun_again(deleted));
    }

    /// Stores the sizes and the id of the store, and that txstore writes the log from its end on.
    pub(super) fn begin_range(
        &mut self,
        opening: &Opening,
        geometry: &Geometry,
        log: &CommitLog,
        derived: &Derived,
    ) -> Result<()> {
        let settings = &mut self.settings;
        settings.append_prop_crc = opening.options.append_prop_crc.unwrap_or(settings.append_prop_crc);
        settings.commit_log_file_size = Some(geometry.commit_log);
        settings.consume_queue_file_size = Some(geometry.consume_queue);
        settings.index_slots = Some(geometry.index.slots);
        settings.index_entries = Some(geometry.index.entries);
        // A new store gets its id here, and an older store or a broker's at its first opening for writing.
        settings.id = settings.id.or_else(|| opening.opener.random.map(StoreId::new));
        settings.begin_range(derived.end);
        forget_deleted(settings, log, &derived.dispatcher.queues);
        settings.store(opening.storage.as_ref())
    }
}

/// Returns whether there were delayed messages. Without their progress, the whole log must be read to find deliveries.
fn has_delayed(snapshot: &Snapshot) -> bool {
    snapshot.queues.iter().any(|queue| &*queue.topic == SCHEDULE_TOPIC && queue.next > 0)
}

/// Forgets queues that were deleted so long ago that the log has no record of them. After a power loss took the newest
/// records, a queue may continue below its deletion mark. Then its new messages are not deleted.
fn forget_deleted(settings: &mut Settings, log: &CommitLog, queues: &QueueTable) {
    let first = log.segments.first();
    settings.deleted.retain_mut(|deleted| {
        let next = queues.next_of(&deleted.topic, deleted.queue_id);
        deleted.below = deleted.below.min(next);
        deleted.below > 0 && deleted.log_end > first
    });
}
