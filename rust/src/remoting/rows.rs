//! Encodes rows of columns as the bodies of requests that store them as messages.
//!
//! In:     the columns topic, body, keys, tags, properties, `queue_id` and `message_group`, in Arrow arrays.
//! Out:    the body of a request that stores half messages, or bodies that each store a batch in one queue.
//! Always: a row is checked as a message that an application makes; the error shows the row.
//! Not here: which queues there are, and whose turn it is (the caller), Arrow's arrays in Python (`python::rows`).

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::{Array, BinaryArray, Int32Array, Int64Array};

use super::batch::push_message;
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::units::to_usize;
use crate::record::message::{Envelope, Parts, Topic, check_body, push_key};
use crate::record::properties::{self, REAL_QUEUE_ID, REAL_TOPIC, UNIQUE_KEY};

/// What a message has in a request in addition to its own bytes, at most.
const AROUND: usize = 256;

/// Lists of texts, or of pairs of texts.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Where each row's values begin, and where the last ones end.
    starts: Vec<usize>,
    values: Vec<BinaryArray>,
}

impl Lists {
    /// Creates lists from the length of each row's, which may be null, and their values, one after another.
    pub fn new(lengths: &Int32Array, values: Vec<BinaryArray>) -> Self {
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += length.map_or(0, |length| usize::try_from(length).unwrap_or(0));
            end
        });
        let starts = std::iter::once(0).chain(ends).collect();
        Self { starts, values }
    }

    fn range(&self, row: usize) -> Range<usize> {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or_default();
        at(row)..at(row + 1)
    }

    /// Returns the bytes of a row's values.
    fn bytes(&self, row: usize) -> usize {
        let range = self.range(row);
        self.values
            .iter()
            .map(|values| range.clone().filter_map(|at| cell(values, at)).map(<[u8]>::len).sum::<usize>())
            .sum()
    }
}

/// The keys of messages.
#[derive(Clone, Debug)]
pub enum Keys {
    /// One text with all keys of a row, separated by spaces.
    Joined(BinaryArray),
    /// A list for each row.
    Lists(Lists),
}

/// Rows to be sent. Columns that are `None` have no values.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The topic of rows without one.
    pub default_topic: Option<String>,
    /// Topics.
    pub topic: Option<BinaryArray>,
    /// Bodies. As many as there are rows.
    pub body: BinaryArray,
    /// Keys.
    pub keys: Option<Keys>,
    /// Tags.
    pub tags: Option<BinaryArray>,
    /// Names and values of the application's properties.
    pub properties: Option<Lists>,
    /// The queue that a row asks for.
    pub queue_id: Option<Int64Array>,
    /// Messages of one group go to one queue.
    pub message_group: Option<BinaryArray>,
}

/// The queues of a topic, as a client numbers them.
#[derive(Clone, Debug)]
pub struct TopicQueues {
    /// Those that accept messages: the number and the id at its broker.
    pub queues: Vec<(i64, i32)>,
    /// Which of them gets the rows that ask for none, and have no group.
    pub turn: usize,
}

/// Messages for one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBatch {
    /// The topic.
    pub topic: String,
    /// The queue's number.
    pub queue: i64,
    /// How many messages it has.
    pub count: usize,
    /// The body of the request.
    pub body: Vec<u8>,
}

impl Rows {
    /// Returns how many rows there are.
    pub fn count(&self) -> usize {
        self.body.len()
    }

    /// Returns where the rows end that begin at `start` and are stored by one request.
    pub fn group_end(&self, start: usize, rows_max: usize, bytes_max: usize) -> usize {
        let last = self.count().min(start.saturating_add(rows_max));
        let mut bytes = 0_usize;
        for row in start..last {
            bytes = bytes.saturating_add(self.bytes(row));
            if row > start && bytes > bytes_max {
                return row;
            }
        }
        last
    }

    /// Returns the topics of rows.
    pub fn topics(&self, range: Range<usize>) -> Result<Vec<String>> {
        let Some(column) = &self.topic else {
            return Ok(self.default_topic.iter().cloned().collect());
        };
        let mut found: Vec<String> = Vec::new();
        let start = range.start;
        for row in range {
            // Most rows have the topic of the row before.
            if row > start && cell(column, row) == cell(column, row - 1) {
                continue;
            }
            let topic = self.topic(row).map_err(|why| self.refused(row, &why))?;
            if !found.iter().any(|known| known == topic) {
                found.push(topic.to_owned());
            }
        }
        Ok(found)
    }

    /// Encodes rows as the half messages of one transaction. `labels` are properties of the first one.
    pub fn halves(
        &self,
        range: Range<usize>,
        queues: &BTreeMap<String, TopicQueues>,
        unique_ids: &[String],
        labels: &[(String, String)],
    ) -> Result<Vec<u8>> {
        let mut bytes = self.buffer(&range);
        let mut known = None;
        let mut labels: Vec<(&str, &str)> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        for (row, id) in range.zip(unique_ids) {
            let message = self.message(row, &mut known, std::mem::take(&mut labels))?;
            let (_, queue_id) = self.queue(row, &message, queues)?;
            let mut own = message.envelope.properties;
            properties::push(&mut own, UNIQUE_KEY, id);
            properties::push(&mut own, REAL_TOPIC, &message.envelope.topic);
            properties::push(&mut own, REAL_QUEUE_ID, itoa::Buffer::new().format(queue_id));
            push_message(&mut bytes, 0, message.body, &own)?;
        }
        Ok(bytes)
    }

    /// Encodes rows as batches, one for each queue that they go to.
    pub fn batches(
        &self,
        range: Range<usize>,
        queues: &BTreeMap<String, TopicQueues>,
        unique_ids: &[String],
    ) -> Result<Vec<QueueBatch>> {
        let mut found: Vec<QueueBatch> = Vec::new();
        let mut known = None;
        for (row, id) in range.zip(unique_ids) {
            let message = self.message(row, &mut known, Vec::new())?;
            let (queue, _) = self.queue(row, &message, queues)?;
            let mut own = message.envelope.properties;
            properties::push(&mut own, UNIQUE_KEY, id);
            let topic = &*message.envelope.topic;
            let at = found.iter().position(|batch| batch.queue == queue && batch.topic == topic);
            let at = at.unwrap_or_else(|| {
                found.push(QueueBatch { topic: topic.to_owned(), queue, count: 0, body: Vec::new() });
                found.len() - 1
            });
            if let Some(batch) = found.get_mut(at) {
                push_message(&mut batch.body, 0, message.body, &own)?;
                batch.count += 1;
            }
        }
        Ok(found)
    }

    /// Returns a buffer that is large enough for most rows.
    fn buffer(&self, range: &Range<usize>) -> Vec<u8> {
        Vec::with_capacity(range.clone().map(|row| self.bytes(row)).sum())
    }

    /// Returns the bytes of a row in a request, at most, if its list of keys is short.
    fn bytes(&self, row: usize) -> usize {
        let texts = [Some(&self.body), self.topic.as_ref(), self.tags.as_ref(), self.message_group.as_ref()];
        let texts: usize = texts.into_iter().flatten().filter_map(|texts| cell(texts, row)).map(<[u8]>::len).sum();
        let keys = match &self.keys {
            Some(Keys::Joined(texts)) => cell(texts, row).map_or(0, <[u8]>::len),
            Some(Keys::Lists(lists)) => lists.bytes(row) + lists.range(row).len(),
            None => 0,
        };
        let properties = self.properties.as_ref().map_or(0, |lists| lists.bytes(row) + 2 * lists.range(row).len());
        AROUND + texts + keys + properties
    }

    fn topic(&self, row: usize) -> Result<&str> {
        let named = match &self.topic {
            Some(column) => text(Some(column), row, "topic")?,
            None => None,
        };
        named
            .or(self.default_topic.as_deref())
            .ok_or_else(|| invalid("topic is null\nhint: filter such rows, or set the option topic".into()))
    }

    /// Checks a row. `known` is the topic of the row before, and `labels` are more properties.
    fn message<'a>(
        &'a self,
        row: usize,
        known: &mut Option<Topic>,
        labels: Vec<(&'a str, &'a str)>,
    ) -> Result<RowMessage<'a>> {
        self.checked(row, known, labels).map_err(|why| self.refused(row, &why))
    }

    fn checked<'a>(
        &'a self,
        row: usize,
        known: &mut Option<Topic>,
        labels: Vec<(&'a str, &'a str)>,
    ) -> Result<RowMessage<'a>> {
        let name = self.topic(row)?;
        let topic = match known.as_ref().filter(|topic| topic.name() == name) {
            Some(topic) => topic.clone(),
            None => known.insert(Topic::new(name)?).clone(),
        };
        let body = cell(&self.body, row).ok_or_else(|| invalid("body is null\nhint: filter such rows".into()))?;
        // The store knows how large a message may be.
        check_body(body, u32::MAX)?;
        let keys = self.keys(row)?;
        let group = not_empty(text(self.message_group.as_ref(), row, "message_group")?);
        let mut own = self.properties(row)?;
        own.extend(labels);
        let parts = Parts {
            topic: name,
            tags: not_empty(text(self.tags.as_ref(), row, "tags")?),
            keys: &keys,
            properties: &own,
            message_group: group,
            ..Parts::default()
        };
        Ok(RowMessage { envelope: Envelope::of(topic, &parts)?, body, group })
    }

    fn keys(&self, row: usize) -> Result<String> {
        let mut words = String::new();
        match &self.keys {
            Some(Keys::Joined(texts)) => words.push_str(text(Some(texts), row, "keys")?.unwrap_or_default().trim()),
            Some(Keys::Lists(lists)) => {
                for at in lists.range(row) {
                    let key = text(lists.values.first(), at, "keys")?;
                    push_key(&mut words, key.ok_or_else(|| invalid("a key is null".into()))?)?;
                }
            }
            None => {}
        }
        Ok(words)
    }

    fn properties(&self, row: usize) -> Result<Vec<(&str, &str)>> {
        let Some(lists) = &self.properties else { return Ok(Vec::new()) };
        let pair = |at| {
            let name = text(lists.values.first(), at, "properties")?.unwrap_or_default();
            let value = text(lists.values.get(1), at, "properties")?;
            Ok((name, value.ok_or_else(|| invalid(format!("property {name:?} is null\nhint: leave it out")))?))
        };
        lists.range(row).map(pair).collect()
    }

    /// Returns the number and the id of the queue of a message.
    fn queue(
        &self,
        row: usize,
        message: &RowMessage<'_>,
        queues: &BTreeMap<String, TopicQueues>,
    ) -> Result<(i64, i32)> {
        let topic = &*message.envelope.topic;
        let none = TopicQueues { queues: Vec::new(), turn: 0 };
        let found = queues.get(topic).unwrap_or(&none);
        let asked = self.queue_id.as_ref().filter(|column| column.is_valid(row)).map(|column| column.value(row));
        let chosen = match (asked, message.group) {
            (Some(number), _) => found.queues.iter().find(|(known, _)| *known == number),
            (None, Some(group)) => {
                let count = i64::try_from(found.queues.len().max(1)).unwrap_or(i64::MAX);
                let index = i64::from(java::hash_code(group)).rem_euclid(count);
                found.queues.get(to_usize(index.cast_unsigned()))
            }
            (None, None) => found.queues.get(found.turn),
        };
        chosen.copied().ok_or_else(|| {
            let asked = asked.map_or_else(String::new, |number| format!(" {number}"));
            let numbers: Vec<String> = found.queues.iter().map(|(number, _)| number.to_string()).collect();
            let what = format!("topic {topic:?} has no queue{asked} that accepts messages");
            Error::InvalidOption {
                option: "queue_id".into(),
                what: format!("{what}\nhint: its queues are {}", numbers.join(", ")),
            }
        })
    }

    /// Returns the error of a row.
    #[cold]
    fn refused(&self, row: usize, why: &Error) -> Error {
        let shown = |column: Option<&BinaryArray>| {
            column
                .and_then(|column| cell(column, row))
                .map_or_else(|| "null".into(), |found| format!("{:?}", String::from_utf8_lossy(found)))
        };
        let topic = self.topic(row).map_or_else(|_| shown(self.topic.as_ref()), |topic| format!("{topic:?}"));
        let keys = self.keys(row).unwrap_or_default();
        let queue = self.queue_id.as_ref().filter(|column| column.is_valid(row)).map(|column| column.value(row));
        let queue = queue.map_or_else(|| "null".into(), |number| number.to_string());
        let tags = shown(self.tags.as_ref());
        invalid(format!("a row cannot be sent (topic {topic}, keys {keys:?}, tags {tags}, queue_id {queue}): {why}"))
    }
}

/// The message of a row.
struct RowMessage<'a> {
    envelope: Envelope,
    body: &'a [u8],
    group: Option<&'a str>,
}

/// Returns a value; `None` if it is null, or if there is no such row.
fn cell(column: &BinaryArray, row: usize) -> Option<&[u8]> {
    (row < column.len() && column.is_valid(row)).then(|| column.value(row))
}

fn text<'a>(column: Option<&'a BinaryArray>, row: usize, name: &str) -> Result<Option<&'a str>> {
    let Some(found) = column.and_then(|column| cell(column, row)) else { return Ok(None) };
    let read = std::str::from_utf8(found);
    read.map(Some).map_err(|why| invalid(format!("{name} is not valid UTF-8: {why}")))
}

fn not_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn invalid(what: String) -> Error {
    Error::InvalidMessage { what }
}
