//! Refuses a writer whose store another node writes, and ends the cut that a rejoin began.
//!
//! In:     what the node knows of epochs, before anything else of the store is read.
//! Out:    a log that ends where it is the same as the source's, and no file that knows more of it.
//! Always: each step can be repeated. The cut is forgotten last, so a crash at any step is followed by all of them.
//! Not here: which bytes are cut, and their copies (`diverged`).

use std::sync::Arc;

use super::Opening;
use super::claim::Claim;
use crate::base::error::{Error, Result};
use crate::base::units::QueueId;
use crate::index::consume_queue::{self, QueueFiles};
use crate::log::commit_log;
use crate::log::published::Published;
use crate::recovery::snapshot::Snapshot;
use crate::storage::epochs::{Cut, Epochs};
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::{STATISTICS, Settings};
use crate::storage::{OpenMode, Storage};
use crate::store::layout_check::Geometry;

/// Files that tell how far something was done with records that are cut.
const PROGRESS: [&str; 5] = [
    "checkpoint",
    "config/consumerOffset.json",
    "config/consumerOffset.json.bak",
    "config/delayOffset.json",
    "config/delayOffset.json.bak",
];

/// Checks that the node may open the store in its role, and ends a cut that was begun.
pub(super) fn admit(
    opening: &Opening,
    geometry: &Geometry,
    settings: &mut Option<Settings>,
    claim: &mut Claim,
) -> Result<()> {
    let storage = &opening.storage;
    let Some(mut epochs) = Epochs::load(storage.as_ref())? else { return Ok(()) };
    if !opening.options.is_replica() && !epochs.may_write() {
        return Err(refused(&epochs));
    }
    let Some(cut) = epochs.cut.take() else { return Ok(()) };
    // The next opening recovers, whatever becomes of this one.
    claim.is_clean = false;
    claim.has_changes = true;
    *settings = Some(cut_log(storage, geometry, settings.take().unwrap_or_default(), &cut)?);
    epochs.list.retain(|epoch| epoch.start < cut.end || epoch.start == 0);
    epochs.store(storage.as_ref())
}

fn refused(epochs: &Epochs) -> Error {
    let what = "opening it for writing";
    if epochs.is_fenced() { Error::Fenced { what, by: epochs.source.clone() } } else { Error::Replica { what } }
}

fn cut_log(storage: &Arc<dyn Storage>, geometry: &Geometry, settings: Settings, cut: &Cut) -> Result<Settings> {
    let files = storage.as_ref();
    // Readers in other processes wait from here on.
    Published::clear(files)?;
    Snapshot::remove(files)?;
    for path in PROGRESS {
        files.unlink(path)?;
    }
    for directory in ["index", STATISTICS] {
        files.remove_dir(directory)?;
    }
    remove_new_queues(storage, geometry, cut.end)?;
    // This comes before the log, because the settings tell which end the log is known to have.
    let settings = before(settings, cut.end);
    settings.store(files)?;
    for (base, file) in SegmentQueue::files(files, commit_log::DIRECTORY)?.iter().rev() {
        let path = format!("{}/{}", commit_log::DIRECTORY, file.name);
        if *base >= cut.end {
            files.unlink(&path)?;
        } else if cut.end < base + file.len {
            let file = files.open(&path, OpenMode::Write)?;
            file.punch(cut.end - base..file.len()?)?;
            file.sync()?;
        }
    }
    for directory in [commit_log::DIRECTORY, "txstore", "config", ""] {
        if files.list(directory)?.is_some() {
            files.sync_dir(directory)?;
        }
    }
    Ok(settings)
}

/// Returns the settings of a log that ends at `end`. The range that txstore wrote there is open, because the source
/// continues it.
fn before(mut settings: Settings, end: u64) -> Settings {
    settings.ranges.retain(|range| range.start <= end);
    if let Some(last) = settings.ranges.last_mut().filter(|last| last.end.is_none_or(|last_end| last_end >= end)) {
        last.end = None;
    }
    settings.deleted.retain(|deleted| deleted.log_end <= end);
    settings
}

/// Removes queues that had no message before `end`: the source may not have them.
fn remove_new_queues(storage: &Arc<dyn Storage>, geometry: &Geometry, end: u64) -> Result<()> {
    let queues = QueueFiles::new(Arc::clone(storage), geometry.consume_queue, true);
    for queue in queues.list()? {
        let is_new = queue.first == 0
            && queues
                .first_entry(&queue.topic, queue.queue_id)?
                .is_some_and(|(at, entry)| at == 0 && entry.physical_offset.0 >= end);
        if is_new {
            let QueueId(number) = queue.queue_id;
            storage.remove_dir(&format!("{}/{}/{number}", consume_queue::DIRECTORY, queue.topic))?;
        }
    }
    Ok(())
}
