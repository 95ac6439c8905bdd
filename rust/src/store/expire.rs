//! Expire: files go from the log's front, and what is derived from them follows.
//!
//! In: how far. Out: what was removed. Always, in this order, so that a crash at any point leaves a store that opens: what
//! is derived from the files is durable (a snapshot), groups' offsets too; queues begin after them; it is published,
//! durably, where the log begins; the log's files go, one by one; then files of queues and index. Not here: which are old
//! (Python).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::consume_queue::{ConsumeQueue, Slot};
use crate::delay::Moment;
use crate::error::Result;
use crate::mutant::{Mutant, mutated};
use crate::retention::{LogFile, Needed, Unread, log_files, removable_end};
use crate::sync::Mutex;
use crate::units::{PhysicalOffset, QueueId, TimestampMs};

/// What a removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Where the log begins now.
    pub minimum: u64,
    /// Files of the log that were removed.
    pub log_files: usize,
    /// Files of queues that were removed.
    pub queue_files: usize,
    /// Files of the index that were removed.
    pub index_files: usize,
}

/// How old the files of the log are.
#[derive(Debug)]
pub(super) struct LogAges {
    /// The wall clock, no earlier than the newest record, and the monotonic one when the store was opened.
    opened_at: Moment,
    /// When this process first saw that a file of the log was full, by its first byte: the monotonic clock.
    seen_full: Mutex<BTreeMap<u64, i64>>,
}

impl LogAges {
    pub(super) fn new(opened_at: Moment) -> Self {
        Self { opened_at, seen_full: Mutex::default() }
    }
}

impl Store {
    /// Facts about the files at the log's front, at most `limit`, without the one that is written.
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
        let mut seen_full = shared.ages.seen_full.lock();
        seen_full.retain(|base, _| *base >= shared.log.segments.first());
        let seen_full_ms = |base| now_ms - *seen_full.entry(base).or_insert(now_ms);
        log_files(&shared.log, end, needed, shared.store_time(), limit, seen_full_ms)
    }

    /// Removes the files of the log that end at or below `below`: from the front, up to the first that holds a pending
    /// half, a delayed message that waits or, with `keep_unread`, an unread message; never the one that is written.
    pub fn remove_log_files(&self, below: PhysicalOffset, keep_unread: bool) -> Result<Expired> {
        self.shared.check_writable("removing files of the log")?;
        self.shared.remove_log_files(below.0, keep_unread)
    }
}

impl Shared {
    /// The time in the sense of store timestamps: what a jump of the wall clock says only where things are younger by it.
    fn store_time(&self) -> TimestampMs {
        let Moment { wall, monotonic_ms } = self.ages.opened_at;
        let passed = wall.0.saturating_add(self.clock.monotonic_ms() - monotonic_ms);
        TimestampMs(passed.min(self.clock.wall().0))
    }

    fn unread(&self, inner: &mut Inner) -> Unread {
        let half_end = inner.derived.dispatcher.queues.next(inner.derived.half_slot);
        Unread::of(&mut inner.derived, half_end, &self.configuration.offsets.lock())
    }

    /// How far files may go: a file's beginning. Queue files are read without the put lock: what is needed only becomes
    /// less meanwhile, or is at the log's end.
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
        // What follows writes much: not where nothing may go.
        if self.expirable(below, keep_unread)? <= first {
            return Ok(nothing);
        }
        if !mutated(Mutant::RemovedBeforeSnapshot) {
            self.snapshot_alone()?;
        }
        self.write_progress_alone()?;
        let minimum = self.expirable(below, keep_unread)?;
        if minimum <= first {
            return Ok(nothing);
        }
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
            // What could not be removed is there, and its queues begin with it.
            for (slot, _, _, first) in before {
                inner.derived.dispatcher.queues.get_mut(slot).into_iter().for_each(|queue| queue.first = first);
            }
            self.begin_queues_at(&mut inner, self.log.segments.first())?;
        }
        let log_files = removed?;
        let half_first = inner.derived.dispatcher.queues.get(inner.derived.half_slot).map_or(0, |queue| queue.first);
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

    /// Publishes where the log begins. A log that begins after what is published would look as if somebody had removed its
    /// front.
    fn publish_minimum(&self, minimum: u64) -> Result<()> {
        let Some(published) = self.readers.page() else { return Ok(()) };
        published.set_minimum(PhysicalOffset(minimum));
        self.synced(published.sync())
    }

    /// From here on no queue leads below `minimum`. Reads files: for a reader's follow and for an error's path.
    pub(super) fn begin_queues_at(&self, inner: &mut Inner, minimum: u64) -> Result<()> {
        let firsts = self.firsts_left(&settled_queues(inner), minimum)?;
        begin_queues(inner, firsts, minimum);
        Ok(())
    }

    /// The first entry of each queue's files that leads to `minimum` or after it.
    fn firsts_left(&self, settled: &[(Slot, ConsumeQueue)], minimum: u64) -> Result<Vec<(Slot, u64)>> {
        let first_left = |(slot, queue): &(Slot, ConsumeQueue)| {
            let queue_files = &self.queue_files;
            Ok((*slot, queue_files.first_left(queue, minimum)?))
        };
        settled.iter().map(first_left).collect()
    }

    /// A file that its writer is about to remove, or has removed: this reader goes on without it.
    pub(super) fn let_go_of_the_front(&self, inner: &mut Inner, minimum: u64) -> Result<()> {
        self.begin_queues_at(inner, minimum)?;
        self.log.segments.forget_below(minimum);
        inner.derived.dispatcher.index.retain(|entry| entry.physical_offset.0 >= minimum);
        Ok(())
    }
}

/// The queues as far as they are in files.
fn settled_queues(inner: &Inner) -> Vec<(Slot, ConsumeQueue)> {
    inner.derived.dispatcher.queues.iter().map(|(slot, queue)| (slot, queue.without_tail())).collect()
}

/// Lets queues begin at the entries that were found in their files, or after them in memory.
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
