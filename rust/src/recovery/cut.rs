//! Cuts what a crash left after the end of the log and of the queues, and makes the rest durable.
//!
//! In:     the recovered end and queues.
//! Out:    files that end where the log and the queues end.
//! Always: repeatable. Data that was cut never comes back.

use super::Derived;
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::index::consume_queue::QueueFiles;
use crate::index::dispatch::Dispatcher;
use crate::log::commit_log::CommitLog;

/// How many bytes to rewrite in one call.
const REWRITTEN_AT_ONCE: u64 = 1 << 20;

/// Rewrites a range of the log, unchanged. After a failed sync the page cache shows bytes that are not on disk and that
/// no later sync would write. After the rewrite, the next sync makes them durable.
pub fn rewrite_log(log: &CommitLog, from: u64, end: u64) -> Result<()> {
    for segment in log.segments.all() {
        if segment.end() > from && segment.base() <= end {
            segment.renew_length()?;
        }
        let (mut at, stop) = (from.max(segment.base()), end.min(segment.end()));
        while at < stop && !mutated(Mutant::NoRewrite) {
            let next = stop.min(at + REWRITTEN_AT_ONCE);
            let bytes = segment.bytes(at..next)?.into_owned();
            segment.write(&bytes, at)?;
            at = next;
        }
    }
    Ok(())
}

/// Zeroes the log's last file after `end` and removes the files after it (L3: data that was cut never comes back).
pub fn cut_log(log: &CommitLog, end: u64) -> Result<()> {
    if let Some(segment) = log.segments.at(end) {
        if !mutated(Mutant::NoZeroing) {
            segment.punch(end..segment.end())?;
        }
        segment.sync()?;
    }
    log.segments.remove_from(end + 1)
}

/// Cuts the queues' files where the queues end, then makes all files of the store durable.
pub fn cut_queues(queue_files: &QueueFiles, dispatcher: &mut Dispatcher) -> Result<()> {
    queue_files.remove_empty()?;
    for (_, queue) in dispatcher.queues.iter().filter(|_| !mutated(Mutant::QueuesNotCut)) {
        queue_files.cut(&queue.topic, queue.queue_id, queue.next())?;
    }
    sync_all(queue_files, dispatcher)
}

/// Cuts only queues that a broker deleted and began again. Recovery may have written entries of the deleted queue.
pub fn cut_begun_again(queue_files: &QueueFiles, derived: &mut Derived) -> Result<()> {
    let queues = &derived.dispatcher.queues;
    for queue in derived.begun_again.keys().filter_map(|slot| queues.get(*slot)) {
        queue_files.cut(&queue.topic, queue.queue_id, queue.next())?;
    }
    if derived.begun_again.is_empty() && queues.are_synced() {
        return Ok(());
    }
    sync_all(queue_files, &mut derived.dispatcher)
}

/// Makes all files of the store durable with one sync of the file system. Recovery creates queue files without a sync of
/// their own: three for each queue would take minutes for many queues.
fn sync_all(queue_files: &QueueFiles, dispatcher: &mut Dispatcher) -> Result<()> {
    if !mutated(Mutant::RecoveryNotSynced) {
        queue_files.sync_all()?;
    }
    dispatcher.queues.set_synced();
    Ok(())
}
