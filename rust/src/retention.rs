//! Retention: what may go from the log's front, and why it must stay.
//!
//! In:     the log's files, the queues, how far each group has read, what pends.
//! Out:    facts about each file, from the front.
//! Always: only whole files, never the one that holds the last record or one behind it; a pending half and a delayed
//!         message that waits hold their file.
//! Not here: how old is too old (Python), removing (store/expire.rs).

use crate::commit_log::CommitLog;
use crate::consume_queue::{ConsumeQueue, QueueFiles};
use crate::delay::DelayProgress;
use crate::error::Result;
use crate::mutant::{Mutant, mutated};
use crate::names::{SCHEDULE_TOPIC, is_system_topic};
use crate::offsets::ConsumerOffsets;
use crate::recovery::Derived;
use crate::units::{PhysicalOffset, TimestampMs};

/// Facts about one file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its first byte in the log.
    pub first: u64,
    /// One past its last byte.
    pub end: u64,
    /// How long ago its newest record was stored, or a little less: by the record that followed it. The least of what
    /// the clocks say, and never less than the age of a file after it.
    pub age_ms: i64,
    /// A half message in it, or in front of it, pends; or a delayed message waits there.
    pub is_held: bool,
    /// A message in it, or in front of it, was not read by each group of its topic.
    pub is_unread: bool,
}

/// The lowest places of the log that something needs; `u64::MAX`: nothing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// A copy of a pending half, or a delayed message.
    pub held: u64,
    /// A message that not all groups of its topic have passed.
    pub unread: u64,
}

/// What pends and where the slowest reader of each queue goes on, as far as that is known without reading files.
#[derive(Debug)]
pub struct Unread {
    pending: u64,
    queues: Vec<UnreadQueue>,
}

/// A queue with unread messages.
#[derive(Debug)]
struct UnreadQueue {
    /// As far as it is in files.
    settled: ConsumeQueue,
    next_read: u64,
    /// Its first unread message that is only in memory.
    in_memory: Option<u64>,
}

impl Unread {
    /// Looks through what pends and what is read. Reads no file: this runs under the put lock.
    pub fn of(derived: &mut Derived, half_queue_end: u64, offsets: &ConsumerOffsets) -> Self {
        let pending = derived.table.lowest_place(half_queue_end).unwrap_or(u64::MAX);
        let unread = |queue: &ConsumeQueue| {
            let next_read = next_read(&derived.delays, offsets, &queue.topic, queue.queue_id)?;
            let next_read = Some(next_read.max(queue.first)).filter(|next_read| *next_read < queue.next())?;
            let in_memory = (next_read.max(queue.settled())..queue.next()).filter_map(|at| queue.in_memory(at));
            let in_memory = in_memory.filter(|entry| !entry.is_padding()).map(|entry| entry.physical_offset.0).next();
            Some(UnreadQueue { settled: queue.without_tail(), next_read, in_memory })
        };
        Self { pending, queues: derived.dispatcher.queues.iter().filter_map(|(_, queue)| unread(queue)).collect() }
    }
}

impl Needed {
    /// Returns the lowest places of what is unread; reads queue files.
    pub fn of(unread: &Unread, queue_files: &QueueFiles) -> Result<Self> {
        let mut needed = Self { held: unread.pending, unread: u64::MAX };
        for UnreadQueue { settled, next_read, in_memory } in &unread.queues {
            let in_files = queue_files.message_from(settled, *next_read)?.map(|(_, entry)| entry.physical_offset.0);
            let delayed = &*settled.topic == SCHEDULE_TOPIC;
            let lowest = if delayed { &mut needed.held } else { &mut needed.unread };
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

    /// Returns the lowest place that must stay.
    pub fn lowest(&self, keep_unread: bool) -> u64 {
        if keep_unread { self.held.min(self.unread) } else { self.held }
    }
}

/// Returns where the slowest reader of a queue goes on; `None`: nobody reads it.
fn next_read(
    delays: &DelayProgress,
    offsets: &ConsumerOffsets,
    topic: &str,
    queue_id: crate::units::QueueId,
) -> Option<u64> {
    if topic == SCHEDULE_TOPIC {
        return Some(delays.get(&queue_id).copied().unwrap_or(0));
    }
    offsets.lowest(topic, queue_id).filter(|_| !is_system_topic(topic))
}

/// Returns one past the files that may go at all: the one that holds the last record stays.
pub fn removable_end(log: &CommitLog, derived: &Derived) -> u64 {
    let last = derived.anchor.and_then(|anchor| log.segments.at(anchor.physical_offset));
    last.map_or(log.segments.first(), |segment| segment.base())
}

/// Facts about the first files of the log that may go at all, at most `limit`; `now` is the time in the sense of store
/// timestamps. `seen_full_ms` tells for how long this process has known that a file is full.
pub fn log_files(
    log: &CommitLog,
    removable_end: u64,
    needed: Needed,
    now: TimestampMs,
    limit: usize,
    mut seen_full_ms: impl FnMut(u64) -> i64,
) -> Result<Vec<LogFile>> {
    let segments = log.segments.all();
    let expirable = segments.iter().take_while(|segment| segment.end() <= removable_end).take(limit);
    let facts = expirable.map(|segment| {
        let (first, end) = (segment.base(), segment.end());
        let stored = log.read(PhysicalOffset(end), log.appended(), |view, _| view.store_timestamp)?;
        let age_ms = age_ms(now, stored, log.segments.modified(segment)?, seen_full_ms(first));
        Ok(LogFile { first, end, age_ms, is_held: needed.held < end, is_unread: needed.unread < end })
    });
    let mut files = facts.collect::<Result<Vec<_>>>()?;
    // Where every clock was ahead once, the files after it still grow old, and it is older than they are.
    let mut after_ms = 0;
    for file in files.iter_mut().rev() {
        after_ms = file.age_ms.max(after_ms);
        file.age_ms = after_ms;
    }
    Ok(files)
}

/// Returns how old a file is, as the clocks agree: its newest record's store time, when it was written last. A time
/// that is ahead of `now` was told by a clock that was ahead, and says nothing; where both are, this process's own
/// clock counts.
fn age_ms(now: TimestampMs, stored: TimestampMs, modified: Option<TimestampMs>, seen_full_ms: i64) -> i64 {
    let ages = [Some(stored), modified].into_iter().flatten().map(|time| now.0.saturating_sub(time.0));
    ages.filter(|age| *age >= 0).min().unwrap_or(seen_full_ms)
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
            assert_eq!(age_ms(at(1_000), at(stored), modified.map(at), 7), expected, "{stored}, {modified:?}");
        }
    }
}
