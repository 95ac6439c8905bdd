//! Checks whether a snapshot and the files of a store still belong together.
//!
//! In:     a snapshot, the log, the files of queues and index.
//! Out:    the snapshot, with the current first offsets of its queues. `None` if the state must be built from the log.
//! Always: reads only.

use std::sync::Arc;

use crate::base::error::{ErrorKind, Result};
use crate::base::units::{PhysicalOffset, QueueId};
use crate::index::consume_queue::{ConsumeQueue, Entry, QueueFiles};
use crate::index::key_index::IndexFiles;
use crate::log::commit_log::CommitLog;
use crate::record::RecordView;
use crate::recovery::snapshot::Snapshot;
use crate::storage::segment::Segment;
use crate::storage::settings::Settings;

/// Returns the snapshot if recovery may begin with it.
pub(super) fn usable(
    log: &CommitLog,
    queue_files: &QueueFiles,
    index: Option<&IndexFiles>,
    settings: &Settings,
    snapshot: Option<Snapshot>,
) -> Result<Option<Snapshot>> {
    let Some(mut found) = snapshot.filter(|snapshot| fits(log, snapshot)) else { return Ok(None) };
    begin_with_the_log(log, queue_files, &mut found)?;
    for queue in &mut found.queues {
        queue.first = settings.deleted_below(&queue.topic, queue.queue_id).min(queue.next).max(queue.first);
    }
    // If files of queues or index were removed, they are rebuilt from the whole log.
    let is_whole = queues_are_there(log, queue_files, &found)?
        && index.map_or(Ok(true), |index| index.ends_at(found.index.as_ref(), PhysicalOffset(found.position)))?;
    Ok(is_whole.then_some(found))
}

/// Returns whether the log still contains the records that the snapshot covers.
fn fits(log: &CommitLog, snapshot: &Snapshot) -> bool {
    let Some(anchor) = snapshot.anchor else { return log.segments.all().is_empty() && snapshot.position == 0 };
    let record = |segment: &Segment| {
        let end = anchor.physical_offset + u64::from(anchor.size);
        (end <= segment.end())
            .then(|| segment.bytes(anchor.physical_offset..end).ok().map(|bytes| crc32fast::hash(&bytes)))
    };
    let found = log.segments.at(anchor.physical_offset).and_then(|segment| record(&segment).flatten());
    log.segments.first() <= snapshot.position && found == Some(anchor.crc)
}

/// Moves the first offsets of queues to the log's first file, because retention may have removed earlier files.
fn begin_with_the_log(log: &CommitLog, queue_files: &QueueFiles, snapshot: &mut Snapshot) -> Result<()> {
    let minimum = log.segments.first();
    for queue in snapshot.queues.iter_mut().filter(|_| minimum > 0) {
        let known = ConsumeQueue::new(Arc::clone(&queue.topic), queue.queue_id, queue.first, queue.next);
        queue.first = queue_files.first_left(&known, minimum)?;
    }
    Ok(())
}

/// Returns whether the files contain the queues of a snapshot. Checks the first and last entry, and one of each file.
fn queues_are_there(log: &CommitLog, queue_files: &QueueFiles, snapshot: &Snapshot) -> Result<bool> {
    let per_file = queue_files.entries_per_file();
    for queue in snapshot.queues.iter().filter(|queue| queue.first < queue.next) {
        let known = ConsumeQueue::new(Arc::clone(&queue.topic), queue.queue_id, queue.first, queue.next);
        let mut at = queue.first;
        loop {
            let Some(entry) = queue_files.entry(&known, at)? else { return Ok(false) };
            // A queue that a broker deleted and began again contains only newer messages.
            let is_newer = !entry.is_padding() && entry.physical_offset.0 >= snapshot.position;
            if is_newer || !leads_to_its_message(log, &queue.topic, queue.queue_id, at, entry) {
                return Ok(false);
            }
            if at + 1 == queue.next {
                break;
            }
            at = ((at / per_file + 1) * per_file).min(queue.next - 1);
        }
    }
    Ok(true)
}

/// Returns whether an entry points to the record that names this entry. Padding, and an entry whose record is missing
/// or damaged, are no evidence against the queue.
fn leads_to_its_message(log: &CommitLog, topic: &str, queue_id: QueueId, queue_offset: u64, entry: Entry) -> bool {
    if entry.is_padding() || entry.physical_offset.0 < log.segments.first() {
        return true;
    }
    let is_it = |view: &RecordView<'_>, _: &[u8]| entry.leads_to(view, topic, queue_id, queue_offset);
    match log.read(entry.physical_offset, u64::MAX, is_it) {
        Ok(is_it) => is_it,
        Err(error) => error.kind() == ErrorKind::Corrupted,
    }
}
