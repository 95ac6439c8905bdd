//! Collects what is known of the log's end before the log is read, and classifies an offset without a record.
//!
//! In:     the published end, the snapshot, the settings, the checkpoint, the marks of the last writer.
//! Out:    the known durable end; for an offset whether the log ends there.
//! Always: recovery, the Arrow scan and repair use this module. The rule itself is in `tail`.

use std::sync::Arc;

use super::directory::consume_queue_file_size;
use super::files::{After, LogFiles};
use super::tail::{Facts, Follows, LastWriter, Reached, Tail};
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::index::consume_queue::{Entry, QueueExtent, QueueFiles};
use crate::log::published::Published;
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoint;
use crate::storage::settings::Settings;

/// What is known before the log is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownEnd {
    /// The end that a writer is known to have made durable; 0 if nothing is known.
    pub(crate) durable: u64,
    /// Records stored before this time were durable, also those of a broker; 0 if nothing is known.
    pub(crate) safe_ms: i64,
    /// The last writer closed the store.
    pub(crate) is_clean: bool,
    /// Another process may write, and does not publish how far it has written.
    pub(crate) is_in_use: bool,
    /// Which process wrote which range.
    pub(crate) settings: Settings,
}

/// What an offset without a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The answer.
    pub(crate) tail: Tail,
    /// One past the last byte of the same file that is not zero; the offset itself if all are zeros.
    pub(crate) bytes_end: u64,
    /// Where the first whole record of a later file begins.
    pub(crate) later_record: Option<u64>,
    /// The end that the log is known to have reached.
    pub(crate) written: u64,
}

impl KnownEnd {
    /// Adds the checkpoint to the facts that the caller has collected.
    pub(crate) fn find(
        storage: &dyn Storage,
        settings: Option<&Settings>,
        published: Option<&Published>,
        snapshot_position: u64,
        is_clean: bool,
        is_in_use: bool,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::load(storage)?.unwrap_or_default();
        Ok(Self {
            durable: known_durable(settings, published, snapshot_position),
            safe_ms: safe_ms(checkpoint, is_clean, settings.is_some_and(|settings| settings.open_range().is_some())),
            is_clean,
            is_in_use,
            settings: settings.cloned().unwrap_or_default(),
        })
    }

    /// Returns whether the log ends at `at`, where no record begins. `last_ms` is the store time of the record before.
    pub(crate) fn verdict(&self, files: &LogFiles, at: u64, last_ms: Option<i64>) -> Result<Verdict> {
        let reached = match last_ms {
            _ if self.safe_ms <= 0 => Reached::Unknown,
            Some(last_ms) if last_ms >= self.safe_ms => Reached::Yes,
            _ => Reached::No,
        };
        let after = files.after(at, |at| self.settings.verify(at))?;
        let mut written = self.durable.max(after.bytes_end);
        let mut facts = Facts {
            is_below_durable: at < self.durable,
            writer: match self {
                Self { is_in_use: true, .. } => LastWriter::MayWrite,
                Self { is_clean: true, .. } => LastWriter::Closed,
                Self { .. } => LastWriter::Crashed,
            },
            is_ours: self.settings.wrote(at),
            reached,
            follows: follows(after, at),
        };
        // Queue entries are read only where they could change the answer.
        let is_asked = reached != Reached::Yes || mutated(Mutant::StaleEntryIsDamage);
        let is_open = matches!(facts.tail(), Tail::End) && is_asked;
        if is_open
            && !mutated(Mutant::QueuesNotAsked)
            && (self.is_clean || reached == Reached::No)
            && let Some(end) = queue_end(files.storage(), &self.settings, at)?
        {
            facts.follows = Follows::QueueEntry;
            written = written.max(end);
        }
        Ok(Verdict { tail: facts.tail(), bytes_end: after.bytes_end, later_record: after.later_record, written })
    }
}

/// Returns the end of the log that is known to have been durable.
///
/// The durable end cannot exceed the appended end. A published page that says so is damaged, and its lower value
/// counts. txstore makes everything it wrote durable before it closes the store.
pub fn known_durable(settings: Option<&Settings>, published: Option<&Published>, snapshot_position: u64) -> u64 {
    let published = published.map_or(0, |published| published.durable().0.min(published.appended().0));
    let closed = settings.into_iter().flat_map(|settings| &settings.ranges).filter_map(|range| range.end).max();
    published.max(snapshot_position).max(closed.unwrap_or(0))
}

/// Returns the store time before which every record was durable. A broker that stops cleanly also writes the time of
/// the last record that it dispatched. In a broker that was killed that time may be later than what was durable.
///
/// txstore writes the same time into all fields. If it was killed and they differ, the write stopped among them, and
/// one field may be a mixture of both times, so the least counts, as it does for a broker.
fn safe_ms(checkpoint: Checkpoint, is_clean: bool, is_killed_txstore: bool) -> i64 {
    let Checkpoint { physic_ms, logics_ms, index_ms, .. } = checkpoint;
    if is_clean {
        physic_ms.max(logics_ms)
    } else if is_killed_txstore {
        physic_ms.min(logics_ms).min(index_ms)
    } else {
        physic_ms
    }
}

const fn follows(after: After, at: u64) -> Follows {
    match after {
        After { later_record: Some(_), .. } => Follows::LaterRecord,
        After { bytes_end, .. } if bytes_end > at => Follows::Bytes,
        After { .. } => Follows::Nothing,
    }
}

/// Returns the highest end of a record at or after `at` that the last entry of a consume queue names.
fn queue_end(storage: &Arc<dyn Storage>, settings: &Settings, at: u64) -> Result<Option<u64>> {
    let Some(size) = consume_queue_file_size(storage.as_ref(), Some(settings))? else { return Ok(None) };
    let queues = QueueFiles::new(Arc::clone(storage), size, true);
    let mut end = None;
    for queue in queues.list()? {
        let entry = last_entry(&queues, &queue)?.filter(|entry| !entry.is_padding());
        end = end.max(entry.filter(|entry| entry.physical_offset.0 >= at).map(|entry| entry.end()));
    }
    Ok(end)
}

/// Returns the last entry of a queue. Only zeros follow it in the files.
fn last_entry(queues: &QueueFiles, queue: &QueueExtent) -> Result<Option<Entry>> {
    let (mut low, mut high, mut last) = (queue.first, queue.end, None);
    while low < high {
        let middle = low + (high - low) / 2;
        match Entry::from_bytes(&queues.read(&queue.topic, queue.queue_id, middle, 1)?) {
            Some(entry) => (low, last) = (middle + 1, Some(entry)),
            None => high = middle,
        }
    }
    Ok(last)
}
