//! What all queues together may have in flight, or acknowledged above their lowest unacknowledged message.
//!
//! In:     the counts of queues.
//! Out:    how many more messages may be taken.
//! Always: a share of the server's memory, because clients that receive and never acknowledge cost memory here. What is
//!         in flight can still be acknowledged, and taken again.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes of a message that is in flight: its lease, and when it ends.
const MESSAGE_COST: usize = 160;
/// The part of the server's memory that they may take.
const SHARE: usize = 4;

/// What all queues together have outstanding.
#[derive(Debug)]
pub struct Room {
    max: usize,
    taken: AtomicUsize,
}

impl Room {
    /// Creates the room in a server with this much memory, in bytes.
    pub const fn new(memory_max: usize) -> Self {
        Self { max: memory_max / SHARE / MESSAGE_COST, taken: AtomicUsize::new(0) }
    }

    /// Returns how many more messages may be taken. Queues that look at the same time may exceed it by one batch each.
    pub fn left(&self) -> usize {
        self.max.saturating_sub(self.taken.load(Relaxed))
    }

    /// Replaces one queue's count.
    pub fn replace(&self, before: usize, now: usize) {
        if now >= before {
            self.taken.fetch_add(now - before, Relaxed);
        } else {
            self.taken.fetch_sub(before - now, Relaxed);
        }
    }
}
