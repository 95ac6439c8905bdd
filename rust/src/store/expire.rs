//! Removes expired files from the start of the log, and the derived entries that point to them.
//!
//! In:     the physical offset up to which to remove.
//! Out:    what was removed.
//! Always: this order, so that a store opens after a crash at any point: make derived state durable (a snapshot, and
//!         the groups' offsets), let the queues begin later, publish the log's new start durably, remove the log's
//!         files one by one, then remove files of queues and index.
//! Not here: which files are old (Python decides this).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::Mutex;
use crate::base::sync::rank::BRIEF;
use crate::base::units::{PhysicalOffset, QueueId, TimestampMs};
use crate::index::consume_queue::{ConsumeQueue, Slot};
use crate::index::delay::Moment;
use crate::store::retention::{FullFor, LogFile, Needed, Unread, log_files, removable_end};

/// The result of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// The physical offset at which the log begins now.
    pub minimum: u64,
    /// Files of the log that were removed.
    pub log_files: usize,
    /// Files of queues that were removed.
    pub queue_files: usize,
    /// Files of the index that were removed.
    pub index_files: usize,
}

/// The ages of the log's files.
#[derive(Debug)]
pub(super) struct LogAges {
    /// When the store was opened: the wall clock, but not before the newest record, and the monotonic clock.
    opened_at: Moment,
    /// Full log files by their first offset.
    full: Mutex<BTreeMap<u64, FullSince>, BRIEF>,
}

/// When this process learned that a log file is full.
#[derive(Clone, Copy, Debug)]
struct FullSince {
    monotonic_ms: i64,
    is_filled_here: bool,
}

impl LogAges {
    pub(super) fn new(opened_at: Moment) -> Self {
        Self { opened_at, full: Mutex::default() }
    }

    /// Notes that this process filled the files between the file of `before` and the file of `last`.
    #[inline]
    pub(super) fn filled(&self, before: u64, last: u64, file_size: u64, clock: &dyn Clock) {
        if before / file_size < last / file_size {
            self.note_filled(before, last, file_size, clock);
        }
    }

    #[cold]
    fn note_filled(&self, before: u64, last: u64, file_size: u64, clock: &dyn Clock) {
        let (mut file, last) = (before - before % file_size, last - last % file_size);
        let since = FullSince { monotonic_ms: clock.monotonic_ms(), is_filled_here: true };
        let mut full = self.full.lock();
        while file < last {
            full.insert(file, since);
            file += file_size;
        }
    }

    /// Returns whether this process filled a file.
    #[cfg(feature = "arrow")]
    pub(super) fn is_filled_here(&self, file: u64) -> bool {
        self.full.lock().get(&file).is_some_and(|since| since.is_filled_here)
    }

    /// Returns for how long this process has known that a file is full.
    fn full_for(full: &mut BTreeMap<u64, FullSince>, file: u64, now_ms: i64) -> FullFor {
        let since = full.entry(file).or_insert(FullSince { monotonic_ms: now_ms, is_filled_here: false });
        let ms = now_ms - since.monotonic_ms;
        if since.is_filled_here { FullFor::Whole(ms) } else { FullFor::AtLeast(ms) }
    }
}

impl Store {
    /// Returns facts about at most `limit` files at the start of the log, without the file that is being written.
    pub fn log_files(&self, limit: usize) -> Result<Vec<LogFile>> {
        let shared = &self.shared;
        shared.refresh()?;
        let mut inner = shared.inner.lock();
        let end = removable_end(&shared.log, &inner.derived);
        if end <= shared.log.segments.first() {
            return Ok(Vec::new());
        }
        let unread = shared.unread(&mut inner);
        drop(inner);
        let needed = Needed::of(&unread, &shared.queue_files)?;
        let now_ms = shared.clock.monotonic_ms();
        let mut full = shared.ages.full.lock();
        full.retain(|file, _| *file >= shared.log.segments.first());
        let full_for = |file| LogAges::full_for(&mut full, file, now_ms);
        log_files(&shared.log, end, needed, shared.store_time(), limit, full_for)
    }

    /// Removes log files that end at or below `below`, from the start of the log. Stops at the first file with a
    /// pending half message, a delayed message that is not delivered yet or, with `keep_unread`, an unread message.
    /// Never removes the file that is being written.
    pub fn remove_log_files(&self, below: PhysicalOffset, keep_unread: bool) -> Result<Expired> {
        self.shared.check_writable("removing files of the log")?;
        self.shared.remove_log_files(below.0, keep_unread)
    }
}

impl Shared {
    /// Returns the current time as a store timestamp. A jump of the wall clock counts only if it makes messages
    /// younger.
    fn store_time(&self) -> TimestampMs {
        let Moment { wall, monotonic_ms } = self.ages.opened_at;
        let passed = wall.0.saturating_add(self.clock.monotonic_ms() - monotonic_ms);
        if mutated(Mutant::WallClockFileAges) {
            return self.clock.wall();
        }
        TimestampMs(passed.min(self.clock.wall().0))
    }

    fn unread(&self, inner: &mut Inner) -> Unread {
        let half_end = inner.half_queue_end();
        Unread::of(&mut inner.derived, half_end, &self.configuration.offsets.lock())
    }

    /// Returns the start of the first file to keep. Queue files are read without the put lock, because the needed part
    /// only shrinks in the meantime, or is at the log's end.
    fn expirable(&self, below: u64, keep_unread: bool) -> Result<u64> {
        let mut inner = self.inner.lock();
        let most = below.min(removable_end(&self.log, &inner.derived));
        let first = self.log.segments.first();
        if most <= first {
            return Ok(first);
        }
        let unread = self.unread(&mut inner);
        drop(inner);
        let most = most.min(Needed::of(&unread, &self.queue_files)?.lowest(keep_unread));
        Ok(self.log.segments.at(most).map_or(first, |segment| segment.base()))
    }

    fn remove_log_files(&self, below: u64, keep_unread: bool) -> Result<Expired> {
        let _guard = PoisonOnPanic(self);
        let _one = self.maintenance.turn.lock();
        self.check_writable("removing files of the log")?;
        let first = self.log.segments.first();
        let nothing = Expired { minimum: first, ..Expired::default() };
        // What ends or is delivered from now on is not durable when the files are removed, so they are chosen first.
        let minimum = self.expirable(below, keep_unread)?;
        if minimum <= first {
            return Ok(nothing);
        }
        if !mutated(Mutant::RemovedBeforeSnapshot) {
            self.snapshot_alone()?;
            if self.snapshots.position() < minimum {
                // A replica's log ends within a write. Its next records let it take a snapshot.
                return Ok(nothing);
            }
        }
        self.write_progress_alone()?;
        let settled = settled_queues(&self.inner.lock());
        let firsts = self.firsts_left(&settled, minimum)?;
        let mut inner = self.inner.lock();
        let before: Vec<_> = first_entries(&inner);
        begin_queues(&mut inner, firsts, minimum);
        drop(inner);
        if !mutated(Mutant::RemovedBeforePublished) {
            self.publish_minimum(minimum)?;
        }
        let removed = self.log.segments.remove_below(minimum);
        let mut inner = self.inner.lock();
        if removed.is_err() {
            // A file that could not be removed still exists, and its queues begin with it.
            for (slot, _, _, first) in before {
                inner.derived.dispatcher.queues.get_mut(slot).into_iter().for_each(|queue| queue.first = first);
            }
            self.begin_queues_at(&mut inner, self.log.segments.first())?;
        }
        let log_files = removed?;
        let half_first = inner.half_queue()?.first;
        inner.derived.table.decided.forget_below(half_first);
        let queues: Vec<_> = first_entries(&inner);
        drop(inner);
        let mut queue_files = 0;
        for (_, topic, queue_id, first) in queues {
            queue_files += self.queue_files.remove_below(&topic, queue_id, first)?;
        }
        let index_files = self.index_files.lock().remove_below(PhysicalOffset(minimum))?;
        if mutated(Mutant::RemovedBeforePublished) {
            self.publish_minimum(minimum)?;
        }
        Ok(Expired { minimum, log_files, queue_files, index_files })
    }

    /// Publishes the start of the log. Without this, a log that begins later than published would look as if files had
    /// been removed from outside.
    fn publish_minimum(&self, minimum: u64) -> Result<()> {
        let Some(published) = self.readers.page() else { return Ok(()) };
        published.set_minimum(PhysicalOffset(minimum));
        self.synced(published.sync())
    }

    /// Lets the queues begin with their first entry at or after `minimum`. Reads files, for a reader and for an error's
    /// path.
    pub(super) fn begin_queues_at(&self, inner: &mut Inner, minimum: u64) -> Result<()> {
        let firsts = self.firsts_left(&settled_queues(inner), minimum)?;
        begin_queues(inner, firsts, minimum);
        Ok(())
    }

    /// Returns the first entry in each queue's files that points to `minimum` or later.
    fn firsts_left(&self, settled: &[(Slot, ConsumeQueue)], minimum: u64) -> Result<Vec<(Slot, u64)>> {
        let first_left = |(slot, queue): &(Slot, ConsumeQueue)| {
            let queue_files = &self.queue_files;
            Ok((*slot, queue_files.first_left(queue, minimum)?))
        };
        settled.iter().map(first_left).collect()
    }

    /// Lets a reader continue without a file that its writer has removed or is about to remove.
    pub(super) fn let_go_of_the_front(&self, inner: &mut Inner, minimum: u64) -> Result<()> {
        self.begin_queues_at(inner, minimum)?;
        self.log.segments.forget_below(minimum);
        inner.derived.dispatcher.index.retain(|entry| entry.physical_offset.0 >= minimum);
        Ok(())
    }
}

/// Returns the queues without the entries that are only in memory.
fn settled_queues(inner: &Inner) -> Vec<(Slot, ConsumeQueue)> {
    inner.derived.dispatcher.queues.iter().map(|(slot, queue)| (slot, queue.without_tail())).collect()
}

/// Lets queues begin at the entries found in their files, or after them in memory.
fn begin_queues(inner: &mut Inner, firsts: Vec<(Slot, u64)>, minimum: u64) {
    inner.unlogged_changes += 1;
    for (slot, first) in firsts {
        if let Some(queue) = inner.derived.dispatcher.queues.get_mut(slot) {
            let is_gone = |at: &u64| queue.in_memory(*at).is_some_and(|entry| entry.physical_offset.0 < minimum);
            let in_memory = (first.max(queue.settled())..queue.next()).find(|at| !is_gone(at)).unwrap_or(queue.next());
            let first = if first < queue.settled() { first } else { in_memory };
            queue.first = first.max(queue.first);
        }
    }
}

fn first_entries(inner: &Inner) -> Vec<(Slot, Arc<str>, QueueId, u64)> {
    let queues = inner.derived.dispatcher.queues.iter();
    queues.map(|(slot, queue)| (slot, Arc::clone(&queue.topic), queue.queue_id, queue.first)).collect()
}
