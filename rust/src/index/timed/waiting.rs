//! The timed messages that wait, in memory, by the time at which they are due.
//!
//! In:     each message's time and physical offset.
//! Out:    those that are due, the time of the next one.
//! Always: about 30 bytes a message. A copy shares the memory until one of both changes: a copy of a million messages
//!         costs as much as a list of their minutes, and the first change after it one minute's messages.
//! Not here: the messages themselves, which are in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::base::units::{TimestampMs, to_u64};

/// Messages of one such time span share a block. A copy of the whole duplicates blocks when they change.
const BLOCK_MS: i64 = 60_000;

/// A message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timed {
    /// When it is due, in milliseconds since the epoch.
    pub due_ms: i64,
    /// The physical offset of the record that waits.
    pub physical_offset: u64,
}

/// The messages that wait.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    blocks: BTreeMap<i64, Arc<BTreeSet<Timed>>>,
    count: u64,
}

impl Waiting {
    /// Adds a message. Returns whether it is new.
    pub fn insert(&mut self, message: Timed) -> bool {
        let block = self.blocks.entry(message.due_ms.div_euclid(BLOCK_MS)).or_default();
        let is_new = Arc::make_mut(block).insert(message);
        self.count += u64::from(is_new);
        is_new
    }

    /// Removes a message. Returns whether it waited.
    pub fn remove(&mut self, message: Timed) -> bool {
        let number = message.due_ms.div_euclid(BLOCK_MS);
        let Some(block) = self.blocks.get_mut(&number).filter(|block| block.contains(&message)) else { return false };
        let left = Arc::make_mut(block);
        left.remove(&message);
        if left.is_empty() {
            self.blocks.remove(&number);
        }
        self.count -= 1;
        true
    }

    /// Returns whether a message waits.
    pub fn contains(&self, message: Timed) -> bool {
        self.blocks.get(&message.due_ms.div_euclid(BLOCK_MS)).is_some_and(|block| block.contains(&message))
    }

    /// Returns the number of messages.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the messages by their time.
    pub fn iter(&self) -> impl Iterator<Item = Timed> + '_ {
        self.blocks.values().flat_map(|block| block.iter().copied())
    }

    /// Returns the messages that are due at `now`, the oldest first.
    pub fn due(&self, now: TimestampMs) -> impl Iterator<Item = Timed> + '_ {
        self.iter().take_while(move |message| message.due_ms <= now.0)
    }

    /// Returns when the first message is due that is not due at `now`.
    pub fn next_ms(&self, now: TimestampMs) -> Option<i64> {
        let after = Timed { due_ms: now.0.saturating_add(1), physical_offset: 0 };
        let blocks = self.blocks.range(after.due_ms.div_euclid(BLOCK_MS)..);
        blocks.filter_map(|(_, block)| block.range(after..).next()).map(|message| message.due_ms).next()
    }

    /// Returns the lowest physical offset. Looks at all messages.
    pub fn lowest_physical_offset(&self) -> Option<u64> {
        self.iter().map(|message| message.physical_offset).min()
    }

    /// Removes all messages below a physical offset. Returns their number.
    pub fn remove_below(&mut self, physical_offset: u64) -> u64 {
        let gone: Vec<_> = self.iter().filter(|message| message.physical_offset < physical_offset).collect();
        for message in &gone {
            self.remove(*message);
        }
        to_u64(gone.len())
    }
}
