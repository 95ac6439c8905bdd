//! Maps topic and queue id to a queue.
//!
//! In:     names.
//! Out:    slots, which stay valid while the store is open.
//! Always: each name has one queue.
//! Not here: files.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{ConsumeQueue, ENTRY_SIZE, Entry};
use crate::base::units::QueueId;

/// A queue's index in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(usize);

impl Slot {
    /// A slot without a queue.
    pub const NONE: Self = Self(usize::MAX);
}

/// Entries of one queue that are to be written.
#[derive(Debug)]
pub struct Block {
    /// Which queue.
    pub slot: Slot,
    /// Its topic.
    pub topic: Arc<str>,
    /// Its queue id.
    pub queue_id: QueueId,
    /// The first entry.
    pub from: u64,
    /// The entries.
    pub bytes: Vec<u8>,
}

impl Block {
    /// Returns one past the last entry.
    pub fn end(&self) -> u64 {
        self.from + crate::base::units::to_u64(self.bytes.len() / ENTRY_SIZE)
    }
}

/// The queues of a store.
#[derive(Debug, Default)]
pub struct QueueTable {
    by_topic: HashMap<Arc<str>, Vec<(QueueId, Slot)>>,
    queues: Vec<ConsumeQueue>,
    buffered: usize,
}

impl QueueTable {
    /// Returns the slot of a queue.
    pub fn find(&self, topic: &str, queue_id: QueueId) -> Option<Slot> {
        self.by_topic.get(topic)?.iter().find(|(id, _)| *id == queue_id).map(|(_, slot)| *slot)
    }

    /// Adds a queue.
    pub fn insert(&mut self, queue: ConsumeQueue) -> Slot {
        let slot = Slot(self.queues.len());
        self.buffered += queue.tail().len();
        self.by_topic.entry(Arc::clone(&queue.topic)).or_default().push((queue.queue_id, slot));
        self.queues.push(queue);
        slot
    }

    /// Returns the slot of a queue. Creates an empty queue if it is new.
    pub fn find_or_insert(&mut self, topic: &str, queue_id: QueueId) -> Slot {
        self.find(topic, queue_id).unwrap_or_else(|| {
            let name = self.by_topic.get_key_value(topic).map_or_else(|| topic.into(), |(name, _)| Arc::clone(name));
            self.insert(ConsumeQueue::new(name, queue_id, 0, 0))
        })
    }

    /// Returns a queue.
    pub fn get(&self, slot: Slot) -> Option<&ConsumeQueue> {
        self.queues.get(slot.0)
    }

    /// Returns a queue, to be changed.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut ConsumeQueue> {
        self.queues.get_mut(slot.0)
    }

    /// Returns all queues with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &ConsumeQueue)> {
        self.queues.iter().enumerate().map(|(index, queue)| (Slot(index), queue))
    }

    /// Returns the offset that the next message of a queue gets.
    pub fn next(&self, slot: Slot) -> u64 {
        self.get(slot).map_or(0, ConsumeQueue::next)
    }

    /// Returns the offset that the next message of a queue gets, by the queue's name. 0 if there is no such queue.
    pub fn next_of(&self, topic: &str, queue_id: QueueId) -> u64 {
        self.find(topic, queue_id).map_or(0, |slot| self.next(slot))
    }

    /// Adds an entry to a queue.
    pub fn push(&mut self, slot: Slot, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(slot.0) {
            queue.push(entry);
            self.buffered += ENTRY_SIZE;
        }
    }

    /// Returns the bytes of entries that are only in memory.
    pub const fn buffered(&self) -> usize {
        self.buffered
    }

    /// Returns copies of everything that is only in memory.
    pub fn blocks(&self) -> Vec<Block> {
        let has_tail = |(_, queue): &(Slot, &ConsumeQueue)| !queue.tail().is_empty();
        self.iter().filter(has_tail).map(|(slot, queue)| Self::block(slot, queue)).collect()
    }

    fn block(slot: Slot, queue: &ConsumeQueue) -> Block {
        Block {
            slot,
            topic: Arc::clone(&queue.topic),
            queue_id: queue.queue_id,
            from: queue.settled(),
            bytes: queue.tail().to_vec(),
        }
    }

    /// Notes that a block is in the files.
    pub fn settle(&mut self, block: &Block) {
        self.settle_to(block.slot, block.end());
    }

    /// Notes that a queue's entries below `to` are in the files.
    pub fn settle_to(&mut self, slot: Slot, to: u64) {
        self.change(slot, |queue| queue.settle(to));
    }

    /// Drops a queue's entries from `at` on: the next one is `at`.
    pub fn begin_again(&mut self, slot: Slot, at: u64) {
        self.change(slot, |queue| queue.begin_again(at));
    }

    /// Returns whether everything written to the files is durable.
    pub fn are_synced(&self) -> bool {
        self.queues.iter().all(|queue| queue.unsynced_from.is_none())
    }

    /// Notes that everything written to the files is durable.
    pub fn set_synced(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.unsynced_from = None);
    }

    fn change(&mut self, slot: Slot, change: impl FnOnce(&mut ConsumeQueue)) {
        if let Some(queue) = self.queues.get_mut(slot.0) {
            let before = queue.tail().len();
            change(queue);
            self.buffered -= before - queue.tail().len();
        }
    }
}
