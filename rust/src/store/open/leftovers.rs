//! Leftovers: what a crash, or a broker, left after the end of the log and of the queues.
//!
//! In:     the recovered state.
//! Out:    files that end where it ends, and that lost power cannot take back.
//! Always: only a writer removes, after recovery has accepted the whole store.

use super::Opening;
use super::files::Files;
use super::stored::Marks;
use crate::error::Result;
use crate::recovery::{Known, Recovered, cut_begun_again, cut_log, cut_queues, rewrite_log};
use crate::settings::Settings;
use crate::units::PhysicalOffset;

/// Removes what is after the recovered end.
pub(super) fn remove(
    opening: &Opening,
    marks: &Marks,
    settings: &Settings,
    files: &Files,
    recovered: &Recovered,
    known: &Known,
) -> Result<()> {
    let Recovered { derived, report } = recovered;
    files.log.segments.remove_empty()?;
    if !marks.is_clean {
        confirm(opening, settings, files, known, derived.end)?;
    }
    if marks.is_clean && !report.stale {
        return cut_begun_again(&files.queues, derived);
    }
    cut_log(&files.log, derived.end)?;
    cut_queues(&files.queues, &derived.dispatcher)?;
    if let Some(published) = &marks.published {
        // That synced the log, too. The page may be older than what was acknowledged: should a sync fail from here on,
        // readers would be shown no more than the page says.
        published.set_appended(PhysicalOffset(derived.end));
        published.set_durable(PhysicalOffset(derived.end));
    }
    Ok(())
}

/// Makes sure that lost power cannot take back what recovery has accepted from a process that was killed.
fn confirm(opening: &Opening, settings: &Settings, files: &Files, known: &Known, end: u64) -> Result<()> {
    // It may have renamed a file there and not synced it.
    if opening.storage.list("config")?.is_some() {
        opening.storage.sync_dir("config")?;
    }
    // Where a broker wrote last nothing was acknowledged by us, and its log may be large.
    match settings.ranges.last().filter(|range| range.end.is_none()) {
        Some(ours) => rewrite_log(&files.log, known.end.durable.max(ours.start), end),
        None => Ok(()),
    }
}
