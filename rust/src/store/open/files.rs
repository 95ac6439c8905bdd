//! Opens the log, the queues and the index, and recovers the state that is derived from the log.
//!
//! In:     the sizes of the files, and what is known before the log is read.
//! Out:    open files whose ends are set, and the recovered state.
//! Always: if only txstore wrote the log, a log whose first files were removed from outside is refused.

use std::sync::Arc;

use super::Opening;
use super::stored::{Marks, Stored};
use crate::base::error::Result;
use crate::index::consume_queue::QueueFiles;
use crate::index::key_index::IndexFiles;
use crate::log::commit_log::{self, CommitLog};
use crate::log::published::Published;
use crate::recovery::snapshot::Snapshot;
use crate::recovery::{Known, Recovered, recover};
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;
use crate::store::layout_check::Geometry;

/// The large files of a store.
pub(super) struct Files {
    pub(super) log: Arc<CommitLog>,
    pub(super) queues: QueueFiles,
    pub(super) index: IndexFiles,
}

impl Files {
    pub(super) fn open(opening: &Opening, geometry: &Geometry, marks: &Marks, stored: &mut Stored) -> Result<Self> {
        let (storage, read_only) = (&opening.storage, opening.options.read_only);
        let segments = SegmentQueue::open(Arc::clone(storage), commit_log::DIRECTORY, geometry.commit_log, read_only)?;
        stored.warnings.extend(check_front(marks.published.as_ref(), &segments, &stored.settings)?);
        let log = Arc::new(CommitLog::new(segments));
        let queues = QueueFiles::new(Arc::clone(storage), geometry.consume_queue, read_only);
        let open_index = if stored.settings.index_slots.is_some() { IndexFiles::open_own } else { IndexFiles::open };
        let mut index = open_index(Arc::clone(storage), geometry.index, !read_only)?;
        index.name_after(stored.index_mark.as_ref());
        Ok(Self { log, queues, index })
    }

    /// Recovers the derived state, and sets the log's ends.
    pub(super) fn recover(
        &mut self,
        settings: &Settings,
        snapshot: Option<Snapshot>,
        known: &Known,
    ) -> Result<Recovered> {
        self.log.set_appended(u64::MAX); // Recovery reads all that exists and finds the end.
        let recovered = self.recover_or_rebuild(settings, snapshot, known)?;
        let end = recovered.derived.end;
        self.log.set_appended(end);
        self.log.set_durable(if known.read_only { end } else { known.end.durable.min(end) });
        Ok(recovered)
    }

    /// Recovers the derived state. Rebuilds index files that a crash damaged.
    fn recover_or_rebuild(
        &mut self,
        settings: &Settings,
        snapshot: Option<Snapshot>,
        known: &Known,
    ) -> Result<Recovered> {
        let Self { log, queues, index } = self;
        let mark = snapshot.as_ref().and_then(|snapshot| snapshot.index.as_ref());
        if !known.clean && !known.read_only && mark.is_some() && index.roll_back(mark).is_err() {
            index.roll_back(None)?;
            return recover(log, queues, Some(index), settings, None, known);
        }
        recover(log, queues, Some(index), settings, snapshot, known)
    }
}

/// Checks that the log begins where the last txstore writer published its start. Nobody may remove files of a txstore
/// store. After a broker, whose retention may remove files, a difference is only a warning.
fn check_front(published: Option<&Published>, segments: &SegmentQueue, settings: &Settings) -> Result<Option<String>> {
    let Some(published) = published.filter(|published| published.appended().0 > 0) else { return Ok(None) };
    let (known, first) = (published.minimum().0, segments.first());
    if known >= first {
        return Ok(None);
    }
    if settings.open_range().is_some() {
        return Err(segments.missing(known, first));
    }
    Ok(Some(format!("the log begins at {first}, and began at {known} before: files were removed from its front")))
}
