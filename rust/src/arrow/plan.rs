//! Plans what a stream reads next.
//!
//! In:     a log, a scan's options.
//! Out:    where a range of so many rows or bytes ends; the topics that a pattern may mean.
//! Always: a range ends where a record ends.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Log;
use super::options::{ScanOptions, TopicMemory};
use crate::base::error::Result;
use crate::recovery::log_view::Stop;
use crate::storage::config_file;

impl Log {
    /// Returns where a range ends that begins at the record boundary `start` and has so many wanted rows or so many
    /// bytes. The result is a record boundary. The options' end must be one, too, not after the visible end; without it
    /// the range reaches up to the visible end, which may need a search.
    pub fn advance(&self, options: &ScanOptions, start: u64, rows: Option<u64>, bytes: Option<u64>) -> Result<u64> {
        let end = options.end.map_or_else(|| self.visible_end(Some(start)), Ok)?.max(start);
        let start = start.max(self.first());
        let by_bytes = bytes.map_or(end, |bytes| start.saturating_add(bytes).min(end));
        let Some(rows) = rows else {
            // The range has at least one record; otherwise it would never end.
            return if by_bytes < end { self.boundary(by_bytes.max(start + 1), end) } else { Ok(end) };
        };
        let (mut left, mut at, mut topics) = (rows, start, TopicMemory::default());
        let walk = self.walk(start, end, |view| {
            let wanted = options.wants(view, &mut topics);
            let is_room = at == start || (at < by_bytes && (left > 0 || !wanted));
            if is_room {
                left -= u64::from(wanted && left > 0);
                at = view.physical_offset.0 + u64::from(view.size);
            }
            is_room
        })?;
        match walk.stop {
            Stop::NoRecord(_) if at == walk.at || at == start => self.resume_before(walk.at, end),
            // After the last record there is only the blank rest of its file.
            Stop::Limit if walk.at > at && left > 0 && at < by_bytes => Ok(walk.at.min(end)),
            _ => Ok(at.min(end)),
        }
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
