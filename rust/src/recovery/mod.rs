//! Recovers the state of a store from its files, after a clean close, a crash or a power loss.
//!
//! In:     the opened log, and what is known about it (snapshot, settings, published and checkpointed ends).
//! Out:    the derived state with the log's true end, and a report of what was found.
//! Always: repeatable from the start. What a snapshot covers is not read again. A bad record below the durable end is
//!         damage, after it a torn tail.
//! Not here: locks. The store writes the missing ops with its ordinary append.

mod cut;
mod derived;
pub mod log_view;
mod queue_facts;
mod queues;
mod run;
pub mod snapshot;
mod snapshot_fit;
#[cfg(test)]
mod tests;

use crate::base::error::Result;
use crate::base::names::HALF_TOPIC;
use crate::base::units::PhysicalOffset;
use crate::index::consume_queue::QueueFiles;
use crate::index::delay::DelayProgress;
use crate::index::key_index::IndexFiles;
use crate::log::commit_log::{CommitLog, Scanner, Tail, verified_ahead};
use crate::recovery::log_view::KnownEnd;
use crate::recovery::snapshot::Snapshot;
use crate::storage::settings::{OwnRange, Settings};
use crate::transaction::HALF_QUEUE;
use crate::transaction::replay::{Keep, Replay, Unfinished};
pub use cut::{cut_begun_again, cut_log, cut_queues, rewrite_log};
pub use derived::Derived;
use run::Run;

/// How many bytes of the log must be left to read before a second thread is worth its start.
const ALONE_BYTES: u64 = 16 << 20;
/// The maximum number of warnings to keep. The first ones say what is wrong.
const WARNINGS_MAX: usize = 1_000;

/// What is known before the log is read.
#[derive(Debug)]
pub struct Known {
    /// Recovery may not write anything.
    pub read_only: bool,
    /// The last writer closed the store cleanly.
    pub clean: bool,
    /// What is known about the log's end.
    pub(crate) end: KnownEnd,
    /// The physical offset at which to stop: the end that a live writer has published, or `u64::MAX`.
    pub limit: u64,
    /// The same replay will read a writer's next records.
    pub followed: bool,
    /// The stored progress of the half queue.
    pub half_progress: u64,
    /// The stored progress of the delayed messages.
    pub delays: DelayProgress,
}

/// A recovered store.
#[derive(Debug)]
pub struct Recovered {
    /// The state that the store continues with.
    pub derived: Derived,
    /// What recovery found.
    pub report: RecoveryReport,
}

/// What recovery found.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// The physical offset at which reading the log began.
    pub scanned_from: u64,
    /// The size of a torn tail in bytes.
    pub torn_bytes: u64,
    /// A broker left bytes after the end of the log or of a queue.
    pub stale: bool,
    /// What is still to be written for decided halves.
    pub unfinished: Unfinished,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl RecoveryReport {
    fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        }
    }
}

/// Returns the physical offset from which only txstore wrote the log; `u64::MAX` if a broker wrote its end.
fn sets_from(log: &CommitLog, settings: &Settings) -> u64 {
    match settings.ours_from() {
        Some(OwnRange { end: Some(end), .. }) if log.read(PhysicalOffset(end), u64::MAX, |_, _| ()).is_ok() => u64::MAX,
        Some(ours) => ours.start,
        None => u64::MAX,
    }
}

/// Reads the log and builds the derived state.
pub fn recover(
    log: &CommitLog,
    queue_files: &QueueFiles,
    index: Option<&mut IndexFiles>,
    settings: &Settings,
    snapshot: Option<Snapshot>,
    known: &Known,
) -> Result<Recovered> {
    let snapshot = snapshot_fit::usable(log, queue_files, index.as_deref(), settings, snapshot)?;
    let sets_from = sets_from(log, settings);
    // A broker ends each half of a set by itself, so the whole log is read if it wrote after one.
    let snapshot = snapshot.filter(|snapshot| !snapshot.table.has_set_below(sets_from));
    let mut derived = Derived::empty(log.segments.first(), known.half_progress);
    let mut report = RecoveryReport::default();
    let mut run = Run::new(log, queue_files, settings, known, &mut derived, &mut report);
    run.begin(index, snapshot)?;
    let from = run.derived.end;
    // If only txstore wrote the log, decided transactions do not come back. A broker may put back any of them.
    let keep = if run.all_ours { Keep::Open } else { Keep::Identities };
    run.derived.replay = Replay::new(keep, log.segments.first(), known.half_progress);
    run.derived.replay.know_sets(sets_from, &run.derived.table);
    if known.followed && !known.read_only {
        run.derived.replay.watch_writes();
    }
    let queues = &run.derived.dispatcher.queues;
    run.derived.replay.begin_at(queues.next_of(HALF_TOPIC, HALF_QUEUE));
    let scan = verified_ahead(
        log,
        from.saturating_add(ALONE_BYTES),
        known.limit,
        |offset| settings.verify(offset),
        |verify| {
            Scanner::new(log, PhysicalOffset(from), known.limit)
                .run(verify, |view, bytes| run.record(view, bytes).map(|()| true))
        },
    )?;
    run.derived.end = scan.end.max(from);
    run.check_tail(&scan.tail)?;
    run.finish()?;
    derived.begin_deleted(settings);
    Ok(Recovered { derived, report })
}

/// Applies the records between the end of `derived` and `known.limit`, which a replica has copied. Queue and index entries
/// stay in memory, as after a write.
pub fn apply_copied(
    log: &CommitLog,
    queue_files: &QueueFiles,
    settings: &Settings,
    derived: &mut Derived,
    known: &Known,
) -> Result<()> {
    let mut report = RecoveryReport::default();
    let mut run = Run::new(log, queue_files, settings, known, derived, &mut report);
    run.settles = false;
    let scan = Scanner::new(log, PhysicalOffset(run.derived.end), known.limit)
        .run(|offset| settings.verify(offset), |view, bytes| run.record(view, bytes).map(|()| true))?;
    if let Some(why) = scan.damage_before(known.limit) {
        return Err(run.damage(scan.end, why));
    }
    derived.end = scan.end;
    Ok(())
}

/// Continues reading after the end of `derived`, for a reader that follows a writer. Returns what the scan found at the
/// end. The caller decides what it means, because the caller knows how far there must be records.
pub fn follow(
    log: &CommitLog,
    queue_files: &QueueFiles,
    settings: &Settings,
    derived: &mut Derived,
    known: &Known,
) -> Result<Tail> {
    let mut report = RecoveryReport::default();
    let mut run = Run::new(log, queue_files, settings, known, derived, &mut report);
    let scan = Scanner::new(log, PhysicalOffset(run.derived.end), known.limit)
        .run(|offset| settings.verify(offset), |view, bytes| run.record(view, bytes).map(|()| true));
    // Needed after an error, too, because records that were applied are not applied again.
    let settled = run.settle();
    let scan = scan?;
    derived.end = derived.end.max(scan.end);
    settled.map(|()| scan.tail)
}
