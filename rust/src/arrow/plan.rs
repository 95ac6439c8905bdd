//! Plans what a stream reads next.
//!
//! In:     a log, a scan's options.
//! Out:    where a range of so many rows or bytes ends; the topics that a pattern may mean.
//! Always: a range ends where a record ends.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::Log;
use super::options::{ScanOptions, TopicMemory};
use crate::base::error::Result;
use crate::recovery::log_view::Skips;
use crate::storage::config_file;

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

    /// Returns the topics that have queues, or will have some, sorted. A new queue's file is written after its first
    /// messages.
    pub fn topics(&self) -> Result<Vec<String>> {
        let entries = self.storage().list(crate::index::consume_queue::DIRECTORY)?.unwrap_or_default();
        let queues = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name);
        let file = config_file::load(self.storage(), "topics.json")?.value.unwrap_or_default();
        let table = file.get("topicConfigTable").and_then(Value::as_object);
        let configured = table.into_iter().flat_map(|table| table.keys().cloned());
        Ok(queues.chain(configured).collect::<BTreeSet<_>>().into_iter().collect())
    }
}
