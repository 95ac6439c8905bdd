//! Keeps how far each consumer group has read each queue.
//!
//! In:     acknowledged queue offsets.
//! Out:    `config/consumerOffset.json`, as a broker keeps it.
//! Always: unknown content of the file is kept.
//! Not here: when to write, and whether an offset is above its queue's end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::base::error::Result;
use crate::base::names::RETRY_PREFIX;
use crate::base::units::{QueueId, TimestampMs};
use crate::storage::Storage;
use crate::storage::config_file;

const FILE: &str = "consumerOffset.json";

/// How far each consumer group has read each queue.
#[derive(Debug)]
pub struct ConsumerOffsets {
    /// Topic → group → queue → offset. Lookups borrow the names, so that updating a known offset allocates nothing.
    table: BTreeMap<String, BTreeMap<String, BTreeMap<QueueId, u64>>>,
    /// The file as it was read. A write merges the table into it.
    file: Value,
    dirty: bool,
}

impl Default for ConsumerOffsets {
    fn default() -> Self {
        Self { table: BTreeMap::new(), file: json!({}), dirty: false }
    }
}

impl ConsumerOffsets {
    /// Reads the file, or its backup. The texts name the damage. If both are bad, the offsets are lost and a text says
    /// so.
    pub fn load(storage: &dyn Storage) -> Result<(Self, Vec<String>)> {
        let loaded = config_file::load(storage, FILE)?;
        let mut offsets = Self::default();
        if let Some(file) = loaded.value {
            offsets.take_table(&file);
            offsets.file = file;
        }
        Ok((offsets, loaded.damaged))
    }

    fn take_table(&mut self, file: &Value) {
        for (key, queues) in file.get("offsetTable").and_then(Value::as_object).into_iter().flatten() {
            let Some((topic, group)) = key.split_once('@').filter(|(_, group)| !group.contains('@')) else { continue };
            for (queue, offset) in queues.as_object().into_iter().flatten() {
                // Anything except a queue with an offset stays in the file, unread.
                if let (Ok(queue), Some(offset)) = (queue.parse(), offset.as_u64()) {
                    self.put(topic, group, QueueId(queue), offset);
                }
            }
        }
    }

    /// Returns the next offset that a group reads of a queue.
    pub fn get(&self, topic: &str, group: &str, queue: QueueId) -> Option<u64> {
        self.table.get(topic)?.get(group)?.get(&queue).copied()
    }

    /// Returns the lowest offset at which a group continues in a queue. A group without an offset there begins at the
    /// first message. `None` if no group reads the topic.
    pub fn lowest(&self, topic: &str, queue: QueueId) -> Option<u64> {
        let offset = |queues: &BTreeMap<QueueId, u64>| queues.get(&queue).copied().unwrap_or(0);
        if let Some(group) = topic.strip_prefix(RETRY_PREFIX) {
            // Only the topic's own group reads it, whatever other names are stored for it (docs/internals/format.md).
            return Some(self.table.get(topic).and_then(|groups| groups.get(group)).map_or(0, offset));
        }
        self.table.get(topic)?.values().map(offset).min()
    }

    /// Sets the next offset that a group reads of a queue.
    pub fn set(&mut self, topic: &str, group: &str, queue: QueueId, offset: u64) {
        let known = self.table.get_mut(topic).and_then(|groups| groups.get_mut(group)?.get_mut(&queue));
        match known {
            Some(known) if *known == offset => return,
            Some(known) => *known = offset,
            None => self.put(topic, group, queue, offset),
        }
        self.dirty = true;
    }

    /// Returns a group's offset in its retry topic for one of its topics, named GROUP%TOPIC. Sets it on the first call.
    pub fn begin_retry(&mut self, topic: &str, group: &str, name: &str, queue: QueueId) -> u64 {
        if let Some(known) = self.get(topic, name, queue) {
            return known;
        }
        // The name for a topic without a name keeps where the group began to have an offset for each topic.
        let base_name = format!("{group}%");
        let base = self.get(topic, &base_name, queue).unwrap_or_else(|| self.get(topic, group, queue).unwrap_or(0));
        self.set(topic, &base_name, queue, base);
        self.set(topic, name, queue, base);
        base
    }

    /// Sets a group's offset in its retry topic for one of its topics, and the least of them as the group's own.
    pub fn set_retry(&mut self, topic: &str, group: &str, name: &str, queue: QueueId, offset: u64) {
        self.set(topic, name, queue, offset);
        let base_name = format!("{group}%");
        let groups = self.table.get(topic).into_iter().flatten();
        let of_topics = groups.filter(|(of, _)| of.starts_with(&base_name) && **of != base_name);
        let least = of_topics.filter_map(|(_, queues)| queues.get(&queue).copied()).min();
        if let Some(least) = least {
            self.set(topic, group, queue, least);
        }
    }

    fn put(&mut self, topic: &str, group: &str, queue: QueueId, offset: u64) {
        let groups = self.table.entry(topic.to_owned()).or_default();
        groups.entry(group.to_owned()).or_default().insert(queue, offset);
    }

    /// Removes a group's offsets in a topic, also from the file.
    pub fn remove(&mut self, topic: &str, group: &str) {
        if let Some(groups) = self.table.get_mut(topic) {
            groups.remove(group);
        }
        self.table.retain(|_, groups| !groups.is_empty());
        if let Some(queues) = self.file.get_mut("offsetTable").and_then(Value::as_object_mut) {
            queues.remove(&format!("{topic}@{group}"));
        }
        let topics = self.file.get_mut("groupTopicMap").and_then(|groups| groups.get_mut(group));
        if let Some(topics) = topics.and_then(Value::as_array_mut) {
            topics.retain(|known| known != topic);
        }
        self.dirty = true;
    }

    /// Returns all offsets, by topic, group and queue.
    pub fn all(&self) -> Vec<(String, String, QueueId, u64)> {
        self.rows().map(|(topic, group, queue, offset)| (topic.to_owned(), group.to_owned(), queue, offset)).collect()
    }

    fn rows(&self) -> impl Iterator<Item = (&str, &str, QueueId, u64)> {
        self.table.iter().flat_map(|(topic, groups)| {
            groups.iter().flat_map(move |(group, queues)| {
                queues.iter().map(move |(queue, offset)| (topic.as_str(), group.as_str(), *queue, *offset))
            })
        })
    }

    /// Returns whether something was set since the last write.
    pub const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Makes the next write due in any case, because another program may have replaced the file.
    pub const fn distrust_file(&mut self) {
        self.dirty = true;
    }

    /// Adds to each group's list the topics that it has an offset in.
    fn note_topics(&self, groups: &mut Map<String, Value>) {
        let mut topics_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (topic, readers) in &self.table {
            for group in readers.keys() {
                topics_of.entry(group).or_default().insert(topic);
            }
        }
        for (group, mut fresh) in topics_of {
            let list = groups.entry(group).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                for known in list.iter().filter_map(Value::as_str) {
                    fresh.remove(known);
                }
                list.extend(fresh.into_iter().map(Value::from));
            }
        }
    }

    /// Replaces the file.
    pub fn write(&mut self, storage: &dyn Storage, now: TimestampMs) -> Result<()> {
        let mut file = self.laid_over();
        config_file::bump_data_version(&mut file, now);
        config_file::replace(storage, FILE, &config_file::to_text(&file))?;
        self.file = file;
        self.dirty = false;
        Ok(())
    }

    /// Returns the file's value with the table's offsets merged in. Both of a broker's tables are present, even if
    /// empty.
    fn laid_over(&self) -> Value {
        let mut file = self.file.clone();
        for table in ["groupTopicMap", "offsetTable"] {
            below(&mut file, table);
        }
        for (topic, group, queue, offset) in self.rows() {
            let key = format!("{topic}@{group}");
            if let Some(queues) = below(&mut file, "offsetTable").and_then(|table| inside(table, &key)) {
                queues.insert(queue.to_string(), offset.into());
            }
        }
        if let Some(groups) = below(&mut file, "groupTopicMap") {
            self.note_topics(groups);
        }
        file
    }
}

fn below<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Map<String, Value>> {
    inside(value.as_object_mut()?, key)
}

/// Returns the object at a key. Creates it if it is missing or not an object.
fn inside<'v>(object: &'v mut Map<String, Value>, key: &str) -> Option<&'v mut Map<String, Value>> {
    let value = object.entry(key).or_insert(Value::Null);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut()
}

#[cfg(test)]
mod tests;
