//! Finds where the messages of a queue begin and end, and the first one since a time.
//!
//! In:     a topic, a queue id, a queue offset or a time.
//! Out:    queue offsets, a physical offset.
//! Always: includes messages whose entries are not in the queue's files yet. A time is found by binary search, as a
//!         broker does it, so a clock that stepped back can hide an earlier message of that time.

use std::ops::Range;

use super::Log;
use super::skips::Cursor;
use crate::base::error::Result;
use crate::base::units::QueueId;
use crate::index::consume_queue::{Entry, QueueFiles};
use crate::log::commit_log::Step;
use crate::record::RecordView;

/// Records of other queues are skipped if they are at least so many bytes of the log.
const SKIP_BYTES_MIN: u64 = if cfg!(test) { 1 << 8 } else { 1 << 16 };

/// The messages of a queue that its files know.
struct InFiles {
    files: QueueFiles,
    /// Their queue offsets.
    offsets: Range<u64>,
    /// Where the record of the last one ends.
    log_end: u64,
}

impl Log {
    /// Returns the queue offsets of a queue's messages that are still in the log; `None` if it has never had any.
    pub fn queue_range(&self, topic: &str, queue_id: QueueId) -> Result<Option<Range<u64>>> {
        let visible = self.visible_end(None)?;
        let found = self.in_files(topic, queue_id, visible)?;
        let mut range = found.as_ref().map(|found| found.offsets.clone());
        let from = found.map_or(self.first(), |found| found.log_end);
        self.each_of(topic, queue_id, from..visible, |view| {
            let at = view.queue_offset.0;
            let first = range.as_ref().filter(|range| !range.is_empty()).map_or(at, |range| range.start);
            range = Some(first..at + 1);
            true
        })?;
        Ok(range)
    }

    /// Returns the first queue offset of a queue whose message was stored at or after a time, in milliseconds since the
    /// epoch; `None` if there is none.
    pub fn queue_offset_since(&self, topic: &str, queue_id: QueueId, store_ms: i64) -> Result<Option<u64>> {
        let visible = self.visible_end(None)?;
        let found = self.in_files(topic, queue_id, visible)?;
        if let Some(InFiles { files, offsets, .. }) = &found {
            let (mut low, mut high) = (offsets.start, offsets.end);
            while low < high {
                let middle = low + (high - low) / 2;
                let entry = Entry::from_bytes(&files.read(&topic.into(), queue_id, middle, 1)?);
                match entry.map(|entry| self.stored_ms(entry.physical_offset.0, entry.end())).transpose()?.flatten() {
                    Some(stored_ms) if stored_ms < store_ms => low = middle + 1,
                    _ => high = middle,
                }
            }
            if low < offsets.end {
                return Ok(Some(low));
            }
        }
        let (from, mut since) = (found.map_or(self.first(), |found| found.log_end), None);
        self.each_of(topic, queue_id, from..visible, |view| {
            since = Some(view.queue_offset.0).filter(|_| view.store_timestamp.0 >= store_ms);
            since.is_none()
        })?;
        Ok(since)
    }

    /// Returns where the first message of a queue at or after a queue offset begins in the log; the visible end if the
    /// queue ends before.
    pub fn physical_offset_of(&self, topic: &str, queue_id: QueueId, queue_offset: u64) -> Result<u64> {
        let visible = self.visible_end(None)?;
        let found = self.in_files(topic, queue_id, visible)?;
        if let Some(InFiles { files, offsets, .. }) = &found
            && let wanted = queue_offset.max(offsets.start)
            && wanted < offsets.end
            && let Some(entry) = Entry::from_bytes(&files.read(&topic.into(), queue_id, wanted, 1)?)
        {
            return Ok(entry.physical_offset.0);
        }
        let (from, mut at) = (found.map_or(self.first(), |found| found.log_end), visible);
        self.each_of(topic, queue_id, from..visible, |view| {
            let is_before = view.queue_offset.0 < queue_offset;
            if !is_before {
                at = view.physical_offset.0;
            }
            is_before
        })?;
        Ok(at)
    }

    /// Returns the store time of the record that begins and ends at these offsets; `None` if there is none. Reads nothing
    /// else.
    pub(super) fn stored_ms(&self, at: u64, end: u64) -> Result<Option<i64>> {
        let Some(window) = self.window(at, end, end.saturating_sub(at))? else { return Ok(None) };
        let bytes = window.from(at);
        match window.step(&bytes, at, self.verify(at, None, false)) {
            Step::Record(view) => Ok(Some(view.store_timestamp.0)),
            _ => Ok(None),
        }
    }

    /// Returns what a queue's files know of its messages below the log's end; `None` if it has no files.
    fn in_files(&self, topic: &str, queue_id: QueueId, visible: u64) -> Result<Option<InFiles>> {
        let Some(files) = self.queue_files()? else { return Ok(None) };
        let mut queues = files.list().unwrap_or_default().into_iter();
        let Some(queue) = queues.find(|queue| (&*queue.topic, queue.queue_id) == (topic, queue_id)) else {
            return Ok(None);
        };
        let mut cursor = Cursor::of(queue, 0..u64::MAX);
        let first = cursor.search(&files, self.first());
        let end = cursor.search(&files, visible).max(first);
        let last = end.checked_sub(1).filter(|last| *last >= first);
        let read = |last| files.read(&topic.into(), queue_id, last, 1);
        let last = last.map(read).transpose()?.and_then(|bytes| Entry::from_bytes(&bytes));
        let log_end = last.map_or(self.first(), |last| last.end());
        Ok(Some(InFiles { files, offsets: first..end, log_end }))
    }

    /// Calls `visit` for each message of a queue in a range of the log that begins at a record, until `visit` has
    /// enough. What cannot be read is left out; a scan reports it.
    fn each_of(
        &self,
        topic: &str,
        queue_id: QueueId,
        range: Range<u64>,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<()> {
        let is_asked = |other: &str, other_id: QueueId| (other, other_id) == (topic, queue_id);
        let wanted = |other: &str, other_id| if is_asked(other, other_id) { 0..u64::MAX } else { 0..0 };
        let skips = self.skips(range.clone(), SKIP_BYTES_MIN, wanted)?;
        self.walk_past(skips, range, |view| {
            let is_message = is_asked(view.topic, view.queue_id) && view.transaction_type().is_queued();
            !is_message || visit(view)
        })?;
        Ok(())
    }
}
