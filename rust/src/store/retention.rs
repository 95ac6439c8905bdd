//! Finds which log files may be removed from the front, and why a file must stay.
//!
//! In:     the log's files, the queues, how far each group has read, pending transactions.
//! Out:    facts about each file, from the front.
//! Always: considers only whole files before the one with the last record. A pending half, and a
//!         delayed or timed message that waits, hold their file.
//! Not here: the maximum age (Python), removing (store/expire.rs).

use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{SCHEDULE_TOPIC, is_system_topic};
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::index::consume_queue::{ConsumeQueue, QueueFiles};
use crate::index::delay::DelayProgress;
use crate::index::offsets::ConsumerOffsets;
use crate::index::timed::Waiting;
use crate::log::commit_log::CommitLog;
use crate::recovery::Derived;

/// Facts about one file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its first byte in the log.
    pub first: u64,
    /// One past its last byte.
    pub end: u64,
    /// How long ago its newest record was stored, or a little less, in milliseconds: measured by the next record. The
    /// lowest age by any clock, and never less than the age of a later file.
    pub age_ms: i64,
    /// The file, or one before it, holds a pending half message, or a delayed or timed message that waits.
    pub is_held: bool,
    /// The file, or one before it, holds a message that some group of its topic has not read.
    pub is_unread: bool,
}

/// For how long a file is full, in milliseconds on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullFor {
    /// This process filled the file.
    Whole(i64),
    /// The file was full when this process opened the store, and this process has known it for this time.
    AtLeast(i64),
}

/// The lowest physical offsets of the log that are needed; `u64::MAX` if nothing is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The lowest copy of a pending half, or delayed or timed message.
    pub held: u64,
    /// The lowest message that some group of its topic has not read.
    pub unread: u64,
}

/// The pending transactions, and where the slowest reader of each queue continues, as known without reading files.
#[derive(Debug)]
pub struct Unread {
    pending: u64,
    timed: Waiting,
    queues: Vec<UnreadQueue>,
}

/// A queue with unread messages.
#[derive(Debug)]
struct UnreadQueue {
    /// The queue without the entries that are only in memory.
    settled: ConsumeQueue,
    next_read: u64,
    /// Its first unread message that is only in memory.
    in_memory: Option<u64>,
}

impl Unread {
    /// Collects pending transactions and read positions. Reads no file, because it runs under the put lock.
    pub fn of(derived: &mut Derived, half_queue_end: u64, offsets: &ConsumerOffsets) -> Self {
        let pending = derived.table.lowest_physical_offset(half_queue_end).unwrap_or(u64::MAX);
        let unread = |queue: &ConsumeQueue| {
            let next_read = next_read(&derived.delays, offsets, &queue.topic, queue.queue_id)?;
            let next_read = Some(next_read.max(queue.first)).filter(|next_read| *next_read < queue.next())?;
            let in_memory = (next_read.max(queue.settled())..queue.next()).filter_map(|at| queue.in_memory(at));
            let in_memory = in_memory.filter(|entry| !entry.is_padding()).map(|entry| entry.physical_offset.0).next();
            Some(UnreadQueue { settled: queue.without_tail(), next_read, in_memory })
        };
        let timed = derived.timed.clone();
        Self {
            pending,
            timed,
            queues: derived.dispatcher.queues.iter().filter_map(|(_, queue)| unread(queue)).collect(),
        }
    }
}

impl Needed {
    /// Returns the lowest offsets that are needed. Reads queue files.
    pub fn of(unread: &Unread, queue_files: &QueueFiles) -> Result<Self> {
        let timed = unread.timed.lowest_physical_offset().filter(|_| !mutated(Mutant::TimedFileRemoved));
        let mut needed = Self { held: unread.pending.min(timed.unwrap_or(u64::MAX)), unread: u64::MAX };
        for UnreadQueue { settled, next_read, in_memory } in &unread.queues {
            let in_files = queue_files.message_from(settled, *next_read)?.map(|(_, entry)| entry.physical_offset.0);
            let delayed = &*settled.topic == SCHEDULE_TOPIC;
            let lowest = if delayed { &mut needed.held } else { &mut needed.unread };
            if delayed && mutated(Mutant::DelayedFileRemoved) {
                continue;
            }
            *lowest = in_files.or(*in_memory).unwrap_or(u64::MAX).min(*lowest);
        }
        if mutated(Mutant::PendingFileRemoved) {
            needed.held = u64::MAX;
        }
        if mutated(Mutant::UnreadFileRemoved) {
            needed.unread = u64::MAX;
        }
        Ok(needed)
    }

    /// Returns the lowest physical offset that must stay.
    pub fn lowest(&self, keep_unread: bool) -> u64 {
        if keep_unread { self.held.min(self.unread) } else { self.held }
    }
}

/// Returns the queue offset at which the slowest reader continues; `None` if no group reads the queue.
fn next_read(
    delays: &DelayProgress,
    offsets: &ConsumerOffsets,
    topic: &str,
    queue_id: crate::base::units::QueueId,
) -> Option<u64> {
    if topic == SCHEDULE_TOPIC {
        return Some(delays.get(&queue_id).copied().unwrap_or(0));
    }
    offsets.lowest(topic, queue_id).filter(|_| !is_system_topic(topic))
}

/// Returns one past the files that may be removed. The file with the last record stays.
pub fn removable_end(log: &CommitLog, derived: &Derived) -> u64 {
    let last = derived.anchor.and_then(|anchor| log.segments.at(anchor.physical_offset));
    last.map_or(log.segments.first(), |segment| segment.base())
}

/// Returns facts about at most `limit` removable files from the front of the log. `now` is comparable with store
/// timestamps. `full_for` returns for how long this process has known that a file is full.
pub fn log_files(
    log: &CommitLog,
    removable_end: u64,
    needed: Needed,
    now: TimestampMs,
    limit: usize,
    mut full_for: impl FnMut(u64) -> FullFor,
) -> Result<Vec<LogFile>> {
    let segments = log.segments.all();
    let expirable = segments.iter().take_while(|segment| segment.end() <= removable_end).take(limit);
    let facts = expirable.map(|segment| {
        let (first, end) = (segment.base(), segment.end());
        let stored = log.read(PhysicalOffset(end), log.appended(), |view, _| view.store_timestamp)?;
        let age_ms = age_ms(now, stored, log.segments.modified(segment)?, full_for(first));
        Ok(LogFile { first, end, age_ms, is_held: needed.held < end, is_unread: needed.unread < end })
    });
    let mut files = facts.collect::<Result<Vec<_>>>()?;
    // If all clocks were ahead when a file was written, later files still age, and the file is at least as old as they
    // are.
    let mut after_ms = 0;
    for file in files.iter_mut().rev() {
        after_ms = file.age_ms.max(after_ms);
        file.age_ms = after_ms;
    }
    Ok(files)
}

/// Returns a file's age in milliseconds: the lowest age by its newest record's store time and its modification time. A
/// time later than `now` is ignored, because that clock was ahead. If both are ignored, this process's own measurement
/// counts. No file that this process filled is older than by that measurement: the clock may have been set back then.
fn age_ms(now: TimestampMs, stored: TimestampMs, modified: Option<TimestampMs>, full_for: FullFor) -> i64 {
    let ages = [Some(stored), modified].into_iter().flatten().map(|time| now.0.saturating_sub(time.0));
    let by_wall_clock = ages.filter(|age| *age >= 0).min();
    match (full_for, by_wall_clock) {
        (FullFor::Whole(ms), Some(age)) => age.min(ms),
        (FullFor::AtLeast(_), Some(age)) => age,
        (FullFor::Whole(ms) | FullFor::AtLeast(ms), None) => ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_the_least_that_is_not_in_the_future() {
        let at = |ms| TimestampMs(ms);
        for (stored, modified, expected) in [
            (700, Some(800), 200),
            (800, Some(700), 200),
            (700, None, 300),
            (1_000, Some(900), 0),
            (1_001, Some(900), 100),
            (900, Some(1_001), 100),
            (1_001, Some(1_001), 7),
            (i64::MAX, None, 7),
            (i64::MIN, Some(i64::MAX), i64::MAX),
        ] {
            let age = |full_for| age_ms(at(1_000), at(stored), modified.map(at), full_for);
            assert_eq!(age(FullFor::AtLeast(7)), expected, "{stored}, {modified:?}");
            assert_eq!(age(FullFor::Whole(7)), expected.min(7), "{stored}, {modified:?}");
        }
    }
}
