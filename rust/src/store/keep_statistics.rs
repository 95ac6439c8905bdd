//! Keeps the statistics of full log files, so that readers need not count.
//!
//! In:     calls: with each snapshot, and at the close.
//! Out:    a small file for each full log file.
//! Always: holds no lock that a send needs. A failure changes nothing, because readers count where there is no file.
//! Not here: counting, and the files (`recovery::log_view`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Shared;
use super::retention::removable_end;
use crate::base::error::Result;
use crate::recovery::log_view::{Log, StatisticsFiles};

/// How many files are counted in one call, except at the close. A file of 1 GiB takes some hundredths of a second.
const COUNTED_MAX: usize = 4;
/// How many files are looked at in one call.
const LOOKED_AT_MAX: usize = 64;

/// What this process knows about the statistics in its store.
#[derive(Debug, Default)]
pub(super) struct KeptStatistics {
    /// Log files that have statistics, or cannot have them.
    done: BTreeSet<u64>,
    /// There are none of log files before this offset.
    first: u64,
}

/// The log files whose statistics are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FullFiles {
    /// All that are full.
    All,
    /// Those that this process filled.
    FilledHere,
}

impl Shared {
    /// Keeps the statistics of some full log files, the newest first.
    pub(super) fn keep_statistics(&self, which: FullFiles) {
        let end = removable_end(&self.log, &self.inner.lock().derived);
        let (first, file_size) = (self.log.segments.first(), self.log.segments.file_size());
        let mut known = self.statistics.lock();
        let files = self.log.segments.all();
        let full =
            files.iter().rev().map(|segment| segment.base()).filter(|base| base.saturating_add(file_size) <= end);
        let wanted = |base: &u64| which == FullFiles::All || self.ages.is_filled_here(*base);
        let missing: Vec<u64> = full.filter(|base| !known.done.contains(base)).filter(wanted).collect();
        if missing.is_empty() && known.first == first {
            return;
        }
        // Whatever fails here, a file of the log or a full disk, is of no consequence, and the next opening tries again.
        let _ = self.remove_statistics_below(first, &mut known);
        let Ok(log) = Log::open_with(Arc::clone(&self.storage)) else { return };
        let mut counted = 0;
        for base in missing.into_iter().take(LOOKED_AT_MAX) {
            if which == FullFiles::All && counted == COUNTED_MAX {
                break;
            }
            counted += usize::from(log.keep_statistics(base).unwrap_or(true));
            known.done.insert(base);
        }
    }

    fn remove_statistics_below(&self, first: u64, known: &mut KeptStatistics) -> Result<()> {
        if known.first != first {
            StatisticsFiles::of_store(Arc::clone(&self.storage)).remove_below(first)?;
            known.first = first;
            known.done.retain(|base| *base >= first);
        }
        Ok(())
    }
}
