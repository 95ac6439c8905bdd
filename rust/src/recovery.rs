//! Recovery: from the files of a store to its state, after any end.
//!
//! In:     the opened log, what is known about it (snapshot, settings, published and checkpointed ends).
//! Out:    the derived state with the log's true end, and a report of what was found.
//! Always: repeatable from the start. What a snapshot covers is not read again. A bad record below the durable end is
//!         damage, after it a torn tail.
//! Not here: locks, and writing the missing ops, which the store does with its ordinary append.

mod cut;
mod derived;
mod queues;
mod run;
mod snapshot_fit;

use crate::commit_log::{CommitLog, Scanner, Tail, verified_ahead};
use crate::consume_queue::QueueFiles;
use crate::delay::DelayProgress;
use crate::error::Result;
use crate::half::HALF_QUEUE;
use crate::half::replay::{Keep, Replay};
use crate::index::IndexFiles;
use crate::log_view::KnownEnd;
use crate::names::HALF_TOPIC;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::units::PhysicalOffset;
pub use cut::{cut_begun_again, cut_log, cut_queues, rewrite_log};
pub use derived::Derived;
use run::Run;

/// Bytes of the log that are read before a second thread is worth its start.
const ALONE_BYTES: u64 = 16 << 20;
/// Warnings that are kept: the first ones tell what is wrong.
const WARNINGS_MAX: usize = 1_000;

/// What is known before the log is read.
#[derive(Debug)]
pub struct Known {
    /// Nothing may be written.
    pub read_only: bool,
    /// The last writer closed the store.
    pub clean: bool,
    /// What is known of the log's end.
    pub(crate) end: KnownEnd,
    /// Where to stop: what a live writer has published, or `u64::MAX`.
    pub limit: u64,
    /// A writer's next records will be read with the same replay.
    pub followed: bool,
    /// The stored progress of the half queue.
    pub half_progress: u64,
    /// The stored progress of the delayed messages.
    pub delays: DelayProgress,
}

impl Known {
    /// Whether records can follow those that are read: a writer lives, or published an end that was not reached.
    pub(crate) fn may_grow(&self) -> bool {
        self.followed || self.limit < u64::MAX
    }
}

/// A recovered store.
#[derive(Debug)]
pub struct Recovered {
    /// The state that the store continues with.
    pub derived: Derived,
    /// What was found on the way.
    pub report: RecoveryReport,
}

/// What recovery found.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Where reading the log began.
    pub scanned_from: u64,
    /// Bytes of a torn tail.
    pub torn_bytes: u64,
    /// A broker left bytes after the end of the log or of a queue.
    pub stale: bool,
    /// Half queue offsets of decided halves that no op names.
    pub unnamed: Vec<u64>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

impl RecoveryReport {
    fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        }
    }
}

/// Reads the log and builds all that is derived from it.
pub fn recover(
    log: &CommitLog,
    queue_files: &QueueFiles,
    index: Option<&mut IndexFiles>,
    settings: &Settings,
    snapshot: Option<Snapshot>,
    known: &Known,
) -> Result<Recovered> {
    let snapshot = snapshot_fit::usable(log, queue_files, index.as_deref(), settings, snapshot)?;
    let mut derived = Derived::empty(log.segments.first(), known.half_progress);
    let mut report = RecoveryReport::default();
    let mut run = Run::new(log, queue_files, settings, known, &mut derived, &mut report);
    run.begin(index, snapshot)?;
    let from = run.derived.end;
    // Where only txstore wrote, nothing that is decided comes back; a broker may put back anything.
    let keep = if run.all_ours { Keep::Open } else { Keep::Identities };
    run.derived.replay = Replay::new(keep, log.segments.first(), known.half_progress);
    let queues = &run.derived.dispatcher.queues;
    run.derived.replay.begin_at(queues.find(HALF_TOPIC, HALF_QUEUE).map_or(0, |slot| queues.next(slot)));
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

/// Reads on after the end of `derived`, for a reader that follows a writer. Returns what the scan met at the end; the caller
/// decides what it means, because it knows how far there must be records.
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
    // Also after an error: what was applied is not applied again.
    let settled = run.settle();
    let scan = scan?;
    derived.end = derived.end.max(scan.end);
    settled.map(|()| scan.tail)
}
