//! Topics and subscriptions that the data path knows from Python.
//!
//! In:     topics with their queues, groups with their settings and subscriptions.
//! Out:    look-ups.
//! Always: a copy of what Python knows. Python is asked about anything missing.
//! Not here: the creation of topics.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::traffic::{Kind, TopicTraffic, Traffic};
use crate::base::error::Result;
use crate::base::sync::unmodelled::RwLock;
use crate::filter::Selector;
use crate::record::message::Topic;

/// A topic that may be sent to or read.
#[derive(Clone, Debug)]
pub struct TopicEntry {
    /// The checked name.
    pub topic: Topic,
    /// The number of queues to read. 0: none.
    pub read_queues: i32,
    /// The number of queues to send to. 0: none.
    pub write_queues: i32,
    /// The only type of messages that gRPC clients may send. `None`: all types.
    pub message_type: Option<Kind>,
    /// The counts of its messages.
    pub traffic: Arc<TopicTraffic>,
}

/// A group's subscription to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// What it wants. `None`: all messages.
    pub selector: Option<Selector>,
    /// The subscription's version: the time at which it was made, by the client's clock.
    pub version: i64,
}

/// A group whose members may be clients of the gRPC protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// Whether the messages of a queue are delivered one after another, in their order.
    pub fifo: bool,
    /// How often a message is delivered again before it is a dead letter.
    pub retries_max: u32,
}

/// The known topics, groups and subscriptions.
#[derive(Debug, Default)]
pub struct Tables {
    topics: RwLock<HashMap<String, TopicEntry>>,
    groups: RwLock<HashMap<String, GroupEntry>>,
    /// Subscriptions by group, then by topic.
    subscriptions: RwLock<HashMap<String, HashMap<String, Arc<Subscription>>>>,
    orderly: RwLock<HashSet<String>>,
    /// The message counts of all topics.
    pub traffic: Traffic,
}

impl TopicEntry {
    /// Returns the topic's name.
    pub fn name(&self) -> &str {
        self.topic.name()
    }
}

impl Tables {
    pub(super) fn topic(&self, name: &str) -> Option<TopicEntry> {
        self.topics.read().get(name).cloned()
    }

    /// Adds or replaces a topic. Fails for a name that clients may not send to.
    pub fn set_topic(&self, name: &str, read_queues: i32, write_queues: i32, message_type: Option<Kind>) -> Result<()> {
        let topic = Topic::new(name)?;
        let traffic = self.traffic.topic(name);
        self.topics
            .write()
            .insert(name.to_owned(), TopicEntry { topic, read_queues, write_queues, message_type, traffic });
        Ok(())
    }

    /// Removes a topic. The next request for it asks Python again.
    pub fn forget_topic(&self, name: &str) {
        self.topics.write().remove(name);
    }

    pub(super) fn group(&self, name: &str) -> Option<GroupEntry> {
        self.groups.read().get(name).copied()
    }

    /// Adds or replaces a group.
    pub fn set_group(&self, name: &str, entry: GroupEntry) {
        self.groups.write().insert(name.to_owned(), entry);
    }

    /// Removes a group. The next request of its clients asks Python again.
    pub fn forget_group(&self, name: &str) {
        self.groups.write().remove(name);
    }

    pub(super) fn subscription(&self, group: &str, topic: &str) -> Option<Arc<Subscription>> {
        self.subscriptions.read().get(group)?.get(topic).cloned()
    }

    /// Returns whether a group has members with known subscriptions.
    pub(super) fn has_members(&self, group: &str) -> bool {
        self.subscriptions.read().contains_key(group)
    }

    /// Replaces the subscriptions of a group.
    pub fn set_subscriptions(&self, group: &str, wanted: Vec<(String, Subscription)>) {
        let wanted: HashMap<_, _> = wanted.into_iter().map(|(topic, wanted)| (topic, Arc::new(wanted))).collect();
        let mut subscriptions = self.subscriptions.write();
        if wanted.is_empty() {
            subscriptions.remove(group);
        } else {
            subscriptions.insert(group.to_owned(), wanted);
        }
    }

    pub(super) fn is_orderly(&self, group: &str) -> bool {
        self.orderly.read().contains(group)
    }

    /// Sets whether a group locks queues. Messages that it sends back then become dead letters at once.
    pub fn set_orderly(&self, group: &str, orderly: bool) {
        let mut groups = self.orderly.write();
        if orderly {
            groups.insert(group.to_owned())
        } else {
            groups.remove(group)
        };
    }
}
