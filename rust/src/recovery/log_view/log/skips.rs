//! Finds ranges of the log that need not be read, because the queues say that no wanted record is there.
//!
//! In:     the files of all queues, which of their messages are wanted.
//! Out:    the next range that may be skipped.
//! Always: loses no wanted record, whatever the queues' files hold. An entry counts only if it begins where a record
//!         begins and another entry begins where it ends. All else is read: records without an entry (of a topic that
//!         was deleted, or newer than the files), the rest of a log file, damage.
//! Not here: which messages are wanted.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Log;
use crate::base::error::Result;
use crate::base::names::LIGHT_QUEUE_PREFIX;
use crate::base::units::{QueueId, to_u64};
use crate::index::consume_queue::{DIRECTORY, ENTRY_SIZE, Entry, QueueExtent, QueueFiles};

/// A longer range is skipped in several steps, so that the caller regains control in between.
const SKIP_MAX: u64 = if cfg!(test) { 1 << 14 } else { 256 << 20 };
/// Bytes of the log whose entries are in memory.
const CHUNK: u64 = if cfg!(test) { 1 << 11 } else { 32 << 20 };
/// Where nothing can be skipped, up to so many bytes are read before the entries are compared again.
const REST_MAX: u64 = if cfg!(test) { 1 << 13 } else { 1 << 30 };
/// A range of fewer skips is read: finding the first entry of a queue reads about as much as the shortest skip.
const SKIPS_MIN: u64 = if cfg!(test) { 1 } else { 64 };
/// In a store with more queues all records are read.
const QUEUES_MAX: usize = 4_096;
/// Entries of a queue that are read at once. All queues' are in memory together.
const ENTRIES_AT_ONCE: u64 = 256;

/// The ranges of the log that need not be read.
#[derive(Debug)]
pub(crate) struct Skips {
    files: QueueFiles,
    cursors: Vec<Cursor>,
    /// The entries that begin in `known`, in the log's order.
    parts: Vec<Part>,
    /// The part that was used last, near which the next one is.
    here: usize,
    known: Range<u64>,
    /// Nothing is skipped from here on.
    limit: u64,
    /// Shorter ranges are read.
    bytes_min: u64,
    /// Bytes to be read before the next attempt.
    rest: u64,
    /// The size of a log file, if what is skipped is counted by file.
    counts_by: Option<u64>,
    /// What is in the next range, by cursor and by the beginning of the log file.
    counted: HashMap<(usize, u64), Counted>,
}

/// What an entry says about the log.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    end: u64,
    is_wanted: bool,
    /// Which of the cursors has the entry.
    queue: usize,
}

/// The messages of a queue in a file of the log, as their entries say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// The first record and the last one.
    pub(super) first: Extent,
    pub(super) last: Extent,
}

/// Where a record begins and ends.
type Extent = (u64, u64);

/// One queue, read in order.
#[derive(Debug)]
pub(super) struct Cursor {
    queue: QueueExtent,
    /// The queue offsets that are wanted.
    wanted: Range<u64>,
    /// The next queue offset.
    next: u64,
    /// Entries that were read, and the position of the next one in bytes.
    bytes: Vec<u8>,
    position: usize,
}

impl Log {
    /// Returns what can be skipped in a range if only some messages of each queue are wanted, by queue offset; `None`
    /// if the whole range has to be read, or if that is faster. The range begins at a record; its end may be
    /// `u64::MAX`. A skip has at least `bytes_min` bytes.
    pub(crate) fn skips(
        &self,
        range: Range<u64>,
        bytes_min: u64,
        mut wanted: impl FnMut(&str, QueueId) -> Range<u64>,
    ) -> Result<Option<Skips>> {
        let is_worth = |end: u64, queues: usize| {
            let least = bytes_min.saturating_mul(to_u64(queues).max(SKIPS_MIN));
            end.saturating_sub(range.start) >= least && queues <= QUEUES_MAX
        };
        let topics = self.storage().list(DIRECTORY)?.map_or(0, |topics| topics.len());
        if !is_worth(range.end.min(self.files.range().end), topics) {
            return Ok(None);
        }
        // Entries after the log's end may be left of what a crash has cut.
        let limit = if range.end == u64::MAX { self.visible_end(None)? } else { range.end };
        let Some(files) = self.queue_files()?.filter(|_| is_worth(limit, topics)) else { return Ok(None) };
        // Of queues that are damaged nothing is skipped. Opening the store for writing builds them again.
        let Ok(queues) = files.list() else { return Ok(None) };
        let cursor = |queue: QueueExtent| {
            let wanted = wanted(&queue.topic, queue.queue_id);
            Cursor::of(queue, wanted)
        };
        // The entries of a light queue lead to messages of other topics.
        let own = queues.into_iter().filter(|queue| !queue.topic.starts_with(LIGHT_QUEUE_PREFIX));
        let cursors: Vec<Cursor> = own.map(cursor).collect();
        let can_skip = is_worth(limit, cursors.len()) && cursors.iter().any(Cursor::has_unwanted);
        Ok(can_skip.then(|| Skips::new(files, cursors, limit, bytes_min.max(1))))
    }
}

impl Skips {
    fn new(files: QueueFiles, cursors: Vec<Cursor>, limit: u64, bytes_min: u64) -> Self {
        Self {
            files,
            cursors,
            parts: Vec::new(),
            here: 0,
            known: 0..0,
            limit,
            bytes_min,
            rest: 0,
            counts_by: None,
            counted: HashMap::new(),
        }
    }

    /// Counts what is skipped, by queue and by log file of so many bytes.
    pub(super) const fn count_by(&mut self, file_size: u64) {
        self.counts_by = Some(file_size);
    }

    /// Returns what is in the range that `next` returned last: topic, queue id, beginning of the log file, and counts.
    pub(super) fn take_counted(&mut self) -> Vec<(Arc<str>, QueueId, u64, Counted)> {
        let named = |((cursor, file), counted): ((usize, u64), Counted)| {
            let queue = &self.cursors.get(cursor)?.queue;
            Some((Arc::clone(&queue.topic), queue.queue_id, file, counted))
        };
        let counted = std::mem::take(&mut self.counted);
        counted.into_iter().filter_map(named).collect()
    }

    /// Returns the next range that may be skipped, at or after `at`, where a record begins.
    ///
    /// It may be skipped only if a record ends where it begins. Whether or not, the next call is due there; an empty
    /// range says nothing else. After the last one it is at `u64::MAX`.
    pub(crate) fn next(&mut self, at: u64) -> Range<u64> {
        let until = at.saturating_add(CHUNK);
        let (mut from, mut to) = (at, at);
        self.counted.clear();
        while to < self.limit {
            if let Some(end) = self.unwanted_at(to) {
                to = end;
                if to - from < SKIP_MAX {
                    continue;
                }
            }
            if to - from >= self.bytes_min {
                self.rest = 0;
                return from..to;
            }
            if to >= until {
                break;
            }
            to = self.start_after(to);
            from = to;
            self.counted.clear();
        }
        if to >= self.limit {
            return if at < self.limit { self.limit..self.limit } else { u64::MAX..u64::MAX };
        }
        let next = to.saturating_add(self.rest).min(self.limit);
        self.rest = self.rest.saturating_mul(2).clamp(CHUNK, REST_MAX);
        next..next
    }

    /// Returns the end of the record that begins at an offset if an entry shows that it is not wanted.
    fn unwanted_at(&mut self, at: u64) -> Option<u64> {
        loop {
            if !self.known.contains(&at) {
                self.load(at);
            }
            if self.parts.get(self.here).is_none_or(|part| part.start != at) {
                self.here = self.parts.partition_point(|part| part.start < at);
            }
            let part = self.parts.get(self.here).filter(|part| part.start == at && !part.is_wanted)?;
            match self.parts.get(self.here + 1) {
                Some(next) if next.start == part.end => {
                    let part = *part;
                    self.here += 1;
                    self.count(part);
                    return Some(part.end);
                }
                None if part.end >= self.known.end && self.known.end < self.limit => self.load(at),
                _ => return None,
            }
        }
    }

    fn count(&mut self, part: Part) {
        let Some(file_size) = self.counts_by else { return };
        let record = (part.start, part.end);
        let counted = self.counted.entry((part.queue, part.start - part.start % file_size.max(1)));
        let counted = counted.or_insert(Counted { messages: 0, bytes: 0, first: record, last: record });
        counted.messages += 1;
        counted.bytes += part.end - part.start;
        counted.last = record;
    }

    /// Returns where the next entry begins after an offset, or up to where no other one does.
    fn start_after(&self, at: u64) -> u64 {
        let next = self.parts.partition_point(|part| part.start <= at);
        self.parts.get(next).map_or(self.known.end, |part| part.start)
    }

    /// Loads the entries of the next part of the log, and keeps those from `at` on.
    fn load(&mut self, at: u64) {
        if at < self.known.start || at > self.known.end {
            self.parts.clear();
            self.known = at..at;
            for cursor in &mut self.cursors {
                cursor.search(&self.files, at);
            }
        }
        self.here = 0;
        self.parts.retain(|part| part.start >= at);
        let end = self.known.end.max(at).saturating_add(CHUNK).min(self.limit);
        for (queue, cursor) in self.cursors.iter_mut().enumerate() {
            cursor.take_until(&self.files, end, queue, &mut self.parts);
        }
        self.parts.sort_by_key(|part| part.start);
        self.parts.dedup_by(|later, first| {
            let is_same = later.start == first.start;
            // Entries that contradict each other show nothing.
            first.is_wanted |= is_same && (later.is_wanted || later.end != first.end);
            is_same
        });
        self.known = at..end;
    }
}

impl Cursor {
    pub(super) const fn of(queue: QueueExtent, wanted: Range<u64>) -> Self {
        Self { next: queue.first, queue, wanted, bytes: Vec::new(), position: 0 }
    }

    fn has_unwanted(&self) -> bool {
        self.wanted.start > self.queue.first || self.wanted.end < self.queue.end
    }

    /// Continues at the first entry of a record at or after a physical offset, and returns its queue offset.
    pub(super) fn search(&mut self, files: &QueueFiles, at: u64) -> u64 {
        let (mut low, mut high) = (self.queue.first, self.queue.end);
        while low < high {
            let middle = low + (high - low) / 2;
            let read = files.read(&self.queue.topic, self.queue.queue_id, middle, 1).unwrap_or_default();
            let is_before = |entry: Entry| entry.is_padding() || entry.physical_offset.0 < at;
            if Entry::from_bytes(&read).is_some_and(is_before) { low = middle + 1 } else { high = middle }
        }
        self.next = low;
        self.bytes.clear();
        low
    }

    /// Adds the entries of records before a physical offset, up to the first one that is missing.
    fn take_until(&mut self, files: &QueueFiles, end: u64, queue: usize, parts: &mut Vec<Part>) {
        while let Some(entry) = self.peek(files).filter(|entry| entry.is_padding() || entry.physical_offset.0 < end) {
            if !entry.is_padding() {
                let is_wanted = self.wanted.contains(&self.next);
                parts.push(Part { start: entry.physical_offset.0, end: entry.end(), is_wanted, queue });
            }
            self.next += 1;
            self.position += ENTRY_SIZE;
        }
    }

    /// Returns the next entry.
    fn peek(&mut self, files: &QueueFiles) -> Option<Entry> {
        if self.position >= self.bytes.len() {
            self.bytes.clear();
        }
        if self.bytes.is_empty() && self.next < self.queue.end {
            // Nothing is known from a file that is missing or cannot be read.
            let read = files.read(&self.queue.topic, self.queue.queue_id, self.next, ENTRIES_AT_ONCE);
            (self.bytes, self.position) = (read.unwrap_or_default(), 0);
        }
        let entry = self.bytes.get(self.position..).and_then(Entry::from_bytes);
        if entry.is_none() {
            // It may be written soon.
            self.bytes.clear();
        }
        entry
    }
}
