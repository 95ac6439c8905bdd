//! Traffic: what clients sent and were handed, by topic, kind and group.
//!
//! In: messages as they are stored and handed out. Out: figures. Always: a topic's counts come with its entry in the
//! tables, so counting takes no lock and no memory; one read lock a pull finds its group's. Names beyond a bound are
//! counted together, whatever clients invent; what was counted once stays. Not here: names of metrics (Python).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::half::counts::OTHER;
use crate::sync::unmodelled::{Mutex, RwLock};
use crate::units::to_u64;

/// Bounds of the buckets of messages' sizes, in bytes: RocketMQ's.
pub const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Topics that are counted apart.
const TOPICS_MAX: usize = 10_000;
/// Pairs of topic and group that are counted apart.
const READERS_MAX: usize = 10_000;

/// What a message is, as RocketMQ tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain one.
    Normal,
    /// One with a sharding key: those keep their order.
    Fifo,
    /// One that waits for its time.
    Delay,
    /// A half message.
    Transaction,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Fifo, Self::Delay, Self::Transaction];

    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
        }
    }
}

/// Messages, and bytes of their records.
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
    /// By size: up to each bound, and beyond the last.
    sizes: [AtomicU64; SIZE_BOUNDS.len() + 1],
}

/// What went in and out of a topic.
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

    /// A message was stored.
    pub(super) fn sent(&self, kind: Kind, bytes: u64) {
        let sent = self.of(kind);
        sent.flow.add(1, bytes);
        let bucket = SIZE_BOUNDS.iter().position(|bound| bytes <= *bound).unwrap_or(SIZE_BOUNDS.len());
        if let Some(size) = sent.sizes.get(bucket) {
            size.fetch_add(1, Relaxed);
        }
    }
}

/// What was sent to a topic.
#[derive(Clone, Debug)]
pub struct SentRow {
    /// The topic.
    pub topic: String,
    /// What was sent.
    pub kind: Kind,
    /// Messages.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Messages by size: up to each of `SIZE_BOUNDS`, and beyond the last.
    pub sizes: Vec<u64>,
}

/// What a group was handed of a topic.
#[derive(Clone, Debug)]
pub struct ReadRow {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// Messages.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// What went in and out of all topics.
#[derive(Debug, Default)]
pub struct Traffic {
    topics: Mutex<HashMap<String, Arc<TopicTraffic>>>,
    readers: AtomicUsize,
}

impl Traffic {
    /// A topic's counts; those of all others where too many are counted already.
    pub(super) fn topic(&self, name: &str) -> Arc<TopicTraffic> {
        let mut topics = self.topics.lock();
        let name = if topics.len() < TOPICS_MAX || topics.contains_key(name) { name } else { OTHER };
        Arc::clone(topics.entry(name.to_owned()).or_default())
    }

    /// Messages were handed to a group.
    pub(super) fn read(&self, topic: &TopicTraffic, group: &str, messages: usize, bytes: usize) {
        let (messages, bytes) = (to_u64(messages), to_u64(bytes));
        if let Some(flow) = topic.read.read().get(group) {
            return flow.add(messages, bytes);
        }
        let mut read = topic.read.write();
        let known = read.contains_key(group) || self.readers.fetch_add(1, Relaxed) < READERS_MAX;
        read.entry(if known { group } else { OTHER }.to_owned()).or_default().add(messages, bytes);
    }

    /// What was sent, by topic and kind; nothing of what was not.
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

    /// What was handed out, by topic and group.
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
