//! Opens a store for reading, while writers in other processes start and stop.
//!
//! In:     a store that another process may write.
//! Out:    the store's state between two equal sights.
//! Always: takes no lock and writes nothing. Everything shown was synced.

use super::stored::Marks;
use super::{Opening, open_as};
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::log::commit_log::{self, CommitLog};
use crate::log::published::Published;
use crate::recovery::Known;
use crate::recovery::log_view::foreign;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;
use crate::store::Shared;
use crate::store::layout_check::geometry;
use crate::store::reader_view::Sight;

/// How often a reader starts again because a writer started or stopped during the read.
const TRIES_MAX: u32 = 8;

/// Opens for reading. How the log is read depends on whether a process writes. So this is checked before and after the
/// read, and if a writer started or stopped in between, the read starts again.
pub(super) fn open(opening: &Opening) -> Result<Shared> {
    let storage = opening.storage.as_ref();
    let sight = || Sight::of(storage, Published::open(storage)?.as_ref());
    let mut tries = 0;
    loop {
        let before = sight()?;
        let opened = open_once(opening);
        tries += 1;
        if tries == TRIES_MAX || mutated(Mutant::OpenedUnderAWriter) || sight()?.is_same(&before) {
            return opened;
        }
    }
}

fn open_once(opening: &Opening) -> Result<Shared> {
    let storage = opening.storage.as_ref();
    let settings = Settings::load(storage)?;
    let geometry = geometry(storage, &opening.options, settings.as_ref())?;
    if settings.is_none() && SegmentQueue::files(storage, commit_log::DIRECTORY)?.is_empty() {
        // A reader that guessed the file sizes would not see later messages.
        let what = "its log has no file yet, so the size of its files is unknown\nhint: open it again after its writer has started";
        return Err(foreign(storage, commit_log::DIRECTORY, what));
    }
    open_as(opening, &geometry, settings, None)
}

/// Syncs everything that this reader shows, and sets the log's end there.
pub(super) fn keep_what_is_shown(
    marks: &Marks,
    settings: &Settings,
    log: &CommitLog,
    known: &Known,
    end: u64,
) -> Result<()> {
    if !known.followed && !marks.is_clean && !mutated(Mutant::ShownIsNotSynced) {
        // A killed writer may have left unsynced data. A power loss must not take back what was shown.
        if let Some(ours) = settings.open_range().filter(|_| known.end.durable < end) {
            log.segments.sync(known.end.durable.max(ours.start), end)?;
        }
    }
    log.segments.forget_above(end);
    Ok(())
}
