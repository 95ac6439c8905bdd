//! Counts messages that clients sent and received, by topic, kind and group.
//!
//! In:     messages as they are stored and sent out.
//! Out:    counts.
//! Always: a topic's counts belong to its entry in the tables, so counting needs no lock and no memory. A pull takes
//!         one read lock to find its group's counts. Names above a limit are counted together, whatever names clients
//!         invent. Counts are never removed.
//! Not here: names of metrics (Python).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::base::sync::unmodelled::{Mutex, RwLock};
use crate::base::units::to_u64;
use crate::transaction::counts::OTHER;

/// Bucket bounds for message sizes, in bytes. The same as RocketMQ's.
pub const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// The maximum number of topics with their own counts.
const TOPICS_MAX: usize = 10_000;
/// The maximum number of pairs of topic and group with their own counts.
const READERS_MAX: usize = 10_000;

/// The message types of RocketMQ's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ordinary message.
    Normal,
    /// A message with a sharding key, which keeps its order.
    Fifo,
    /// A delayed message.
    Delay,
    /// A half message.
    Transaction,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Fifo, Self::Delay, Self::Transaction];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
        }
    }

    /// Returns the kind of this name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// A number of messages, and the bytes of their records.
#[derive(Debug, Default)]
pub struct Flow {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Flow {
    fn add(&self, messages: u64, bytes: u64) {
        self.messages.fetch_add(messages, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.messages.load(Relaxed), self.bytes.load(Relaxed))
    }
}

#[derive(Debug, Default)]
struct Sent {
    flow: Flow,
    /// Counts by size: one bucket up to each bound, and one above the last.
    sizes: [AtomicU64; SIZE_BOUNDS.len() + 1],
}

/// The counts of one topic.
#[derive(Debug, Default)]
pub struct TopicTraffic {
    normal: Sent,
    fifo: Sent,
    delay: Sent,
    transaction: Sent,
    read: RwLock<HashMap<String, Arc<Flow>>>,
}

impl TopicTraffic {
    const fn of(&self, kind: Kind) -> &Sent {
        match kind {
            Kind::Normal => &self.normal,
            Kind::Fifo => &self.fifo,
            Kind::Delay => &self.delay,
            Kind::Transaction => &self.transaction,
        }
    }

    /// Counts a stored message.
    pub(super) fn sent(&self, kind: Kind, bytes: u64) {
        let sent = self.of(kind);
        sent.flow.add(1, bytes);
        let bucket = SIZE_BOUNDS.iter().position(|bound| bytes <= *bound).unwrap_or(SIZE_BOUNDS.len());
        if let Some(size) = sent.sizes.get(bucket) {
            size.fetch_add(1, Relaxed);
        }
    }
}

/// The messages of one kind that were sent to a topic.
#[derive(Clone, Debug)]
pub struct SentRow {
    /// The topic.
    pub topic: String,
    /// The kind.
    pub kind: Kind,
    /// The number of messages.
    pub messages: u64,
    /// The bytes of their records.
    pub bytes: u64,
    /// Counts by size: one bucket up to each of `SIZE_BOUNDS`, and one above the last.
    pub sizes: Vec<u64>,
}

/// The messages of a topic that a group received.
#[derive(Clone, Debug)]
pub struct ReadRow {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The number of messages.
    pub messages: u64,
    /// The bytes of their records.
    pub bytes: u64,
}

/// The counts of all topics.
#[derive(Debug, Default)]
pub struct Traffic {
    topics: Mutex<HashMap<String, Arc<TopicTraffic>>>,
    readers: AtomicUsize,
}

impl Traffic {
    /// Returns a topic's counts, or the counts of all others if there are too many topics.
    pub(super) fn topic(&self, name: &str) -> Arc<TopicTraffic> {
        let mut topics = self.topics.lock();
        let name = if topics.len() < TOPICS_MAX || topics.contains_key(name) { name } else { OTHER };
        Arc::clone(topics.entry(name.to_owned()).or_default())
    }

    /// Counts messages that were sent to a group.
    pub(super) fn read(&self, topic: &TopicTraffic, group: &str, messages: usize, bytes: usize) {
        let (messages, bytes) = (to_u64(messages), to_u64(bytes));
        if let Some(flow) = topic.read.read().get(group) {
            return flow.add(messages, bytes);
        }
        let mut read = topic.read.write();
        let known = read.contains_key(group) || self.readers.fetch_add(1, Relaxed) < READERS_MAX;
        read.entry(if known { group } else { OTHER }.to_owned()).or_default().add(messages, bytes);
    }

    /// Returns the sent messages by topic and kind, without empty rows.
    pub fn all_sent(&self) -> Vec<SentRow> {
        let mut rows = Vec::new();
        for (topic, traffic) in self.topics.lock().iter() {
            for (kind, sent) in Kind::ALL.map(|kind| (kind, traffic.of(kind))) {
                let (messages, bytes) = sent.flow.read();
                let sizes = sent.sizes.iter().map(|size| size.load(Relaxed)).collect();
                if messages > 0 {
                    rows.push(SentRow { topic: topic.clone(), kind, messages, bytes, sizes });
                }
            }
        }
        rows
    }

    /// Returns the received messages by topic and group.
    pub fn all_read(&self) -> Vec<ReadRow> {
        let mut rows = Vec::new();
        for (topic, traffic) in self.topics.lock().iter() {
            for (group, flow) in traffic.read.read().iter() {
                let (messages, bytes) = flow.read();
                rows.push(ReadRow { topic: topic.clone(), group: group.clone(), messages, bytes });
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_are_counted_together() {
        let traffic = Traffic::default();
        for number in 0..10_002 {
            traffic.topic(&format!("topic-{number}")).sent(Kind::Normal, 100);
        }
        for number in 0..10_003 {
            traffic.read(&traffic.topic("topic-1"), &format!("group-{number}"), 1, 100);
        }
        let (sent, read) = (traffic.all_sent(), traffic.all_read());
        assert_eq!((sent.len(), read.len()), (10_001, 10_001));
        assert_eq!(sent.iter().find(|row| row.topic == "(other)").map(|row| row.messages), Some(2));
        assert_eq!(read.iter().find(|row| row.group == "(other)").map(|row| row.messages), Some(3));
    }
}
