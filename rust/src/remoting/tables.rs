//! Tables: what Python has told the data path of topics and subscriptions.
//!
//! In: topics with their queues, groups with what they want. Out: look-ups. Always: a copy of what Python knows; what
//! is not here is asked for. Not here: how a topic comes to be.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::traffic::{TopicTraffic, Traffic};
use crate::error::Result;
use crate::message::Topic;
use crate::sync::unmodelled::RwLock;

/// A topic that may be sent to or read.
#[derive(Clone, Debug)]
pub struct TopicEntry {
    /// Its name, checked.
    pub topic: Topic,
    /// Queues that may be read; 0: none.
    pub read_queues: i32,
    /// Queues that may be sent to; 0: none.
    pub write_queues: i32,
    /// What goes in and out of it.
    pub traffic: Arc<TopicTraffic>,
}

/// What a group wants of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The tags; `None`: all messages.
    pub tags: Option<Vec<String>>,
    /// When it was said, by the client's clock.
    pub version: i64,
}

/// What is known of topics and subscriptions.
#[derive(Debug, Default)]
pub struct Tables {
    topics: RwLock<HashMap<String, TopicEntry>>,
    /// By group, then by topic.
    subscriptions: RwLock<HashMap<String, HashMap<String, Arc<Subscription>>>>,
    orderly: RwLock<HashSet<String>>,
    /// What goes in and out of all topics.
    pub traffic: Traffic,
}

impl Tables {
    pub(super) fn topic(&self, name: &str) -> Option<TopicEntry> {
        self.topics.read().get(name).cloned()
    }

    /// Makes a topic known. Raises an error for a name that clients may not send to.
    pub fn set_topic(&self, name: &str, read_queues: i32, write_queues: i32) -> Result<()> {
        let topic = Topic::new(name)?;
        let traffic = self.traffic.topic(name);
        self.topics.write().insert(name.to_owned(), TopicEntry { topic, read_queues, write_queues, traffic });
        Ok(())
    }

    /// Has a topic asked for again.
    pub fn forget_topic(&self, name: &str) {
        self.topics.write().remove(name);
    }

    pub(super) fn subscription(&self, group: &str, topic: &str) -> Option<Arc<Subscription>> {
        self.subscriptions.read().get(group)?.get(topic).cloned()
    }

    /// Whether a group has members that said what they want.
    pub(super) fn has_members(&self, group: &str) -> bool {
        self.subscriptions.read().contains_key(group)
    }

    /// Says what a group wants of its topics, in place of what it wanted before.
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

    /// Says whether a group holds locks on queues: what it gives up then goes to its dead letters at once.
    pub fn set_orderly(&self, group: &str, orderly: bool) {
        let mut groups = self.orderly.write();
        if orderly {
            groups.insert(group.to_owned())
        } else {
            groups.remove(group)
        };
    }
}
