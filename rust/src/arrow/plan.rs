//! Plans what a stream reads next.
//!
//! In:     a log, a scan's options.
//! Out:    where a range of so many rows or bytes ends; the topics that a pattern may mean.
//! Always: a range ends where a record ends.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Map, Value};

use super::Log;
use super::options::{ScanOptions, TopicMemory};
use crate::base::error::Result;
use crate::recovery::log_view::Skips;
use crate::storage::config_file;

/// More queues of a topic are not listed.
const QUEUES_MAX: i64 = 1 << 16;

impl Log {
    /// Returns what a scan with these options can skip in a range; `None` if it has to read all of it.
    pub(super) fn skips_of(&self, options: &ScanOptions, range: Range<u64>) -> Result<Option<Skips>> {
        if !options.is_by_queue() {
            return Ok(None);
        }
        let mut topics = TopicMemory::default();
        self.skips(range, options.skip_bytes_min, |topic, queue_id| options.wanted_of(topic, queue_id, &mut topics))
    }

    /// Returns where a range ends that begins at the record boundary `start` and has so many wanted rows or so many
    /// bytes. The result is a record boundary. The options' end must be one, too, not after the visible end; without it
    /// the range reaches up to the visible end, which may need a search.
    pub fn advance(&self, options: &ScanOptions, start: u64, rows: Option<u64>, bytes: Option<u64>) -> Result<u64> {
        let end = options.end.map_or_else(|| self.visible_end(None), Ok)?.max(start);
        let start = start.max(self.first());
        // The range has at least one record; otherwise it would never end.
        let end = match bytes.map(|bytes| start.saturating_add(bytes).max(start + 1)) {
            Some(most) if most < end => self.boundary(most, end)?,
            _ => end,
        };
        let Some(rows) = rows else { return Ok(end) };
        let (mut left, mut topics) = (rows.max(1), TopicMemory::default());
        let skips = self.skips_of(options, start..end)?;
        let reached = self.walk_past(skips, start..end, |view| {
            let wanted = options.wants(view, &mut topics);
            let is_room = left > 0 || !wanted;
            left -= u64::from(wanted && is_room);
            is_room
        })?;
        Ok(reached.min(end))
    }

    /// Returns how many records of a range are wanted, at most `most`. The range begins at a record, and its end is not
    /// after the log's.
    pub fn count(&self, options: &ScanOptions, range: Range<u64>, most: u64) -> Result<u64> {
        let (mut found, mut topics) = (0, TopicMemory::default());
        let skips = self.skips_of(options, range.clone())?;
        self.walk_past(skips, range, |view| {
            found += u64::from(options.wants(view, &mut topics));
            found < most
        })?;
        Ok(found)
    }

    /// Returns the numbers of a topic's queues, sorted: those of its settings, and those that have files.
    pub fn queue_ids(&self, topic: &str) -> Result<Vec<i32>> {
        let settings = self.topic_settings()?;
        let number = |name: &str| settings.get(topic)?.get(name)?.as_i64();
        let configured = ["readQueueNums", "writeQueueNums"].into_iter().filter_map(number).max().unwrap_or(0);
        let configured = 0..i32::try_from(configured.min(QUEUES_MAX)).unwrap_or(0);
        let files = self.queue_files()?.and_then(|files| files.list().ok()).unwrap_or_default();
        let found = files.into_iter().filter(|queue| &*queue.topic == topic).map(|queue| queue.queue_id.0);
        Ok(configured.chain(found).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns the topics that have queues, or will have some, sorted. A new queue's file is written after its first
    /// messages.
    pub fn topics(&self) -> Result<Vec<String>> {
        let entries = self.storage().list(crate::index::consume_queue::DIRECTORY)?.unwrap_or_default();
        let queues = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name);
        let configured = self.topic_settings()?.into_iter().map(|(topic, _)| topic);
        Ok(queues.chain(configured).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn topic_settings(&self) -> Result<Map<String, Value>> {
        let file = config_file::load(self.storage(), "topics.json")?.value.unwrap_or_default();
        Ok(file.get("topicConfigTable").and_then(Value::as_object).cloned().unwrap_or_default())
    }
}
