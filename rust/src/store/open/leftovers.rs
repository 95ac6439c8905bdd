//! Removes what a crash or a broker left after the end of the log and of the queues.
//!
//! In:     the recovered state.
//! Out:    files that end at the recovered end, and that survive a power loss.
//! Always: only a writer removes data, after recovery has accepted the whole store.

use super::Opening;
use super::files::Files;
use super::stored::Marks;
use crate::base::error::Result;
use crate::base::units::PhysicalOffset;
use crate::recovery::{Known, Recovered, cut_begun_again, cut_log, cut_queues, rewrite_log};
use crate::storage::settings::Settings;

/// Removes data after the recovered end.
pub(super) fn remove(
    opening: &Opening,
    marks: &Marks,
    settings: &Settings,
    files: &Files,
    recovered: &mut Recovered,
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
    cut_queues(&files.queues, &mut derived.dispatcher)?;
    if let Some(published) = &marks.published {
        // The log is synced now, too. The page may be older than what was acknowledged: if a later sync failed, readers
        // would see only what the page says.
        let shown = if opening.options.holds_back() { derived.end.min(marks.shown) } else { derived.end };
        published.set_appended(PhysicalOffset(shown));
        published.set_durable(PhysicalOffset(derived.end));
    }
    Ok(())
}

/// Makes durable what recovery has accepted from a process that was killed.
fn confirm(opening: &Opening, settings: &Settings, files: &Files, known: &Known, end: u64) -> Result<()> {
    // The killed process may have renamed a file there without a sync.
    if opening.storage.list("config")?.is_some() {
        opening.storage.sync_dir("config")?;
    }
    // If a broker wrote last, txstore acknowledged nothing there, and the broker's log may be large.
    match settings.open_range() {
        Some(ours) => rewrite_log(&files.log, known.end.durable.max(ours.start), end),
        None => Ok(()),
    }
}
