//! Holds one queue's entries, which point into the commit log.
//!
//! In:     dispatch requests in log order.
//! Out:    entries by queue offset. They are derived: they may be deleted and rebuilt.
//! Always: entry i points at a whole record below the log's end. The newest entries are in memory until a block of them
//!         is written.
//! Not here: the record's bytes.

mod entry;
mod files;
mod table;
#[cfg(test)]
mod tests;

pub use entry::{ENTRY_SIZE, Entry, PADDING_SIZE, QUEUE_OFFSET_MAX};
pub use files::{DIRECTORY, NewFiles, QueueExtent, QueueFiles};
pub use table::{Block, QueueTable, Slot};

use std::sync::Arc;

use crate::base::units::{QueueId, to_u64, to_usize};

/// One queue: how many entries it has, and those that are not in a file yet.
#[derive(Debug)]
pub struct ConsumeQueue {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The queue id.
    pub queue_id: QueueId,
    /// The first remaining entry.
    pub first: u64,
    /// Entries below this offset are in the files.
    settled: u64,
    /// The entries from `settled` on.
    tail: Vec<u8>,
    /// The first entry written since the last sync; `None` if nothing was written.
    pub unsynced_from: Option<u64>,
}

impl ConsumeQueue {
    /// Creates a queue whose entries `first..next` are in its files.
    pub const fn new(topic: Arc<str>, queue_id: QueueId, first: u64, next: u64) -> Self {
        Self { topic, queue_id, first, settled: next, tail: Vec::new(), unsynced_from: None }
    }

    /// Creates a queue that begins at `first`, with padding before it in its first file.
    pub fn padded(topic: Arc<str>, queue_id: QueueId, first: u64, entries_per_file: u64) -> Self {
        let base = first - first % entries_per_file;
        let padding = Entry::PADDING.to_bytes().repeat(to_usize(first - base));
        Self { topic, queue_id, first, settled: base, tail: padding, unsynced_from: None }
    }

    /// Returns a copy that has only the entries in files.
    #[must_use]
    pub fn without_tail(&self) -> Self {
        Self { topic: Arc::clone(&self.topic), tail: Vec::new(), ..*self }
    }

    /// Returns the queue offset that the next message gets.
    pub fn next(&self) -> u64 {
        self.settled + to_u64(self.tail.len() / ENTRY_SIZE)
    }

    /// Returns the first entry that is only in memory.
    pub const fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns the bytes that are only in memory.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Returns an entry that is only in memory.
    pub fn in_memory(&self, at: u64) -> Option<Entry> {
        let start = at.checked_sub(self.settled).map(|index| to_usize(index) * ENTRY_SIZE)?;
        Entry::from_bytes(self.tail.get(start..)?)
    }

    /// Adds the next entry.
    pub fn push(&mut self, entry: Entry) {
        self.tail.extend_from_slice(&entry.to_bytes());
    }

    /// Drops the entries from `at` on: the next one is `at`.
    fn begin_again(&mut self, at: u64) {
        self.first = self.first.min(at);
        if let Some(kept) = at.checked_sub(self.settled) {
            self.tail.truncate(to_usize(kept) * ENTRY_SIZE);
        } else {
            self.tail.clear();
            self.settled = at;
        }
        self.unsynced_from = self.unsynced_from.map(|from| from.min(at));
    }

    /// Notes that the entries below `to` are in the files.
    fn settle(&mut self, to: u64) {
        let entries = to.min(self.next()).saturating_sub(self.settled);
        self.unsynced_from = Some(self.unsynced_from.unwrap_or(self.settled).min(self.settled));
        self.tail.drain(..to_usize(entries) * ENTRY_SIZE);
        self.settled += entries;
        if self.tail.is_empty() && self.tail.capacity() > 1 << 16 {
            self.tail = Vec::new();
        }
    }
}
