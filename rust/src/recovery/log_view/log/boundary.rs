//! Finds offsets at which a record begins, near any given offset.
//!
//! In:     any offset, or damage at one.
//! Out:    the next record's offset, parts of a range, where the log continues after damage.
//! Always: bytes in a body that look like a record do not count. The record's own queue or a walk must confirm it.

use std::ops::Range;
use std::sync::Arc;

use super::Log;
use super::walk::Stop;
use crate::base::error::Result;
use crate::base::names;
use crate::base::units::{to_u64, to_usize};
use crate::index::consume_queue::{ENTRY_SIZE, Entry, QUEUE_OFFSET_MAX, QueueFiles};
use crate::log::commit_log::{Step, step};
use crate::record::RecordView;
use crate::recovery::log_view::directory::consume_queue_file_size;
use crate::recovery::log_view::files::WINDOW;
use crate::recovery::log_view::find::find_magic;
use crate::recovery::log_view::known::Verdict;

/// How far before an end the first search for its last record begins, in bytes.
const REACH: u64 = 1 << 14;
/// A search for the log's end walks at most about this many bytes.
const NEAR_END: u64 = if cfg!(test) { WINDOW } else { 1 << 20 };
/// How many records are compared with their queues before the file is walked from its beginning.
const CANDIDATES_MAX: usize = 64;

/// Bytes that are read first where a record is searched. A record that does not end there is not found there.
pub(super) const SAMPLE: u64 = if cfg!(test) { 1 << 9 } else { 1 << 14 };

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Where it begins.
    pub(crate) physical_offset: u64,
    /// When it was stored, in milliseconds since the epoch.
    pub(crate) store_ms: i64,
}

impl Log {
    /// Returns an offset near the end at which a record begins, found by binary search. Whole records that a broker has
    /// cut may still be there, so only a record that is known to be before the end counts.
    pub(super) fn late_record(&self) -> Result<u64> {
        let (range, file_size) = (self.files.range(), self.files.file_size());
        // What is known to be durable ends where a record ends.
        let durable = self.known.durable;
        if self.known.is_clean && durable > range.start && range.contains(&durable) {
            return Ok(durable);
        }
        let mut file = range.end.saturating_sub(file_size).max(range.start);
        while file > range.start && !self.begins_before_the_end(file)? {
            file -= file_size;
        }
        // Binary search finds some record long before the end; walking on from it reliably finds the end.
        let (mut low, mut high) = (file, (file + file_size).min(range.end));
        if (low..high).contains(&durable) {
            low = durable;
        }
        while high - low > NEAR_END {
            let middle = low + (high - low) / 2;
            let near = middle..(middle + NEAR_END).min(high);
            match self.confirmed(near, |view| self.is_before_the_end(view))? {
                Some(found) => low = found,
                None => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns whether a file begins with a record before the log's end. Without a checkpoint nothing was cut before a
    /// later file that holds records.
    fn begins_before_the_end(&self, file: u64) -> Result<bool> {
        let Some(window) = self.window(file, u64::MAX, 0)? else { return Ok(false) };
        let bytes = window.from(file);
        Ok(match window.step(&bytes, file, self.whole(file)) {
            Step::Record(view) => self.known.safe_ms <= 0 || self.is_before_the_end(&view),
            _ => false,
        })
    }

    /// Returns whether a record is before the log's end: its offset or its store time is known to be durable.
    fn is_before_the_end(&self, view: &RecordView<'_>) -> bool {
        view.physical_offset.0 < self.known.durable || view.store_timestamp.0 < self.known.safe_ms
    }

    /// Returns the first offset from `at` on, below `end`, at which a record begins; `end` if there is no such offset.
    ///
    /// A body may hold bytes that look like a record, even one of that offset. So an offset counts only if the record's
    /// own queue points to it, or if walking from the file's first record leads there.
    pub fn boundary(&self, at: u64, end: u64) -> Result<u64> {
        let at = at.max(self.first());
        let Some(file) = self.files.file_of(at).filter(|_| at < end) else { return Ok(end) };
        if at == file.start {
            return Ok(at);
        }
        let until = file.end.min(end);
        if let Some(found) = self.confirmed(at..until, |_| true)? {
            return Ok(found);
        }
        let mut found = until;
        let walk = self.walk(file.start, until, |view| {
            let is_before = view.physical_offset.0 < at;
            if !is_before {
                found = view.physical_offset.0;
            }
            is_before
        })?;
        match walk.stop {
            Stop::NoRecord(_) => {
                let from = walk.at.max(at).saturating_add(1);
                Ok(self.files.record_in(from..until, |at| self.whole(at))?.unwrap_or(until))
            }
            Stop::Limit | Stop::Visitor => Ok(found),
        }
    }

    /// Returns the first offset of a range where a wanted record begins that its queue confirms.
    fn confirmed(&self, range: Range<u64>, wants: impl Fn(&RecordView<'_>) -> bool) -> Result<Option<u64>> {
        let Some(queues) = self.queue_files()? else { return Ok(None) };
        let mut looked = 0;
        let mut wants = |view: &RecordView<'_>| {
            looked += 1;
            looked <= CANDIDATES_MAX && wants(view)
        };
        for bytes in [SAMPLE, 16 * SAMPLE] {
            if let Some(sample) = self.sample(range.clone(), &queues, bytes, &mut wants)? {
                return Ok(Some(sample.physical_offset));
            }
        }
        let (mut found, mut looked) = (None, 0);
        let show = |view: &RecordView<'_>| {
            looked += 1;
            if wants(view) && is_in_queue(&queues, view) {
                found = Some(view.physical_offset.0);
            }
            found.is_none() && looked < CANDIDATES_MAX
        };
        self.files.records_in(range, |at| self.whole(at), show)?;
        Ok(found)
    }

    /// Returns the files of the queues; `None` if there are none.
    pub(crate) fn queue_files(&self) -> Result<Option<QueueFiles>> {
        let size = consume_queue_file_size(self.storage(), self.settings.as_ref())?;
        Ok(size.map(|size| QueueFiles::new(Arc::clone(self.files.storage()), size, true)))
    }

    /// Returns the first wanted record that begins in a range and that its queue confirms, if it ends in the first
    /// bytes of the range. Reads only these: a view would read ahead, often many times as much.
    pub(super) fn sample(
        &self,
        range: Range<u64>,
        queues: &QueueFiles,
        bytes: u64,
        wants: &mut impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Option<Sample>> {
        let Some(file) = self.files.file_of(range.start) else { return Ok(None) };
        let read = self.files.read(range.start..file.end.min(range.start.saturating_add(bytes)))?;
        let (mut at, mut rest) = (range.start, read.as_slice());
        while let Some(distance) = find_magic(rest) {
            at += to_u64(distance);
            rest = rest.get(distance..).unwrap_or_default();
            if at >= range.end {
                break;
            }
            let skipped = match step(rest, at, file.end, self.whole(at)) {
                Step::Record(view) if wants(&view) && is_in_queue(queues, &view) => {
                    return Ok(Some(Sample { physical_offset: at, store_ms: view.store_timestamp.0 }));
                }
                Step::Record(view) => view.size.into(),
                _ => 1,
            };
            at += skipped;
            rest = rest.get(to_usize(skipped)..).unwrap_or_default();
        }
        Ok(None)
    }

    /// Returns where the log continues after damage at an offset: at the next whole record, else at its known end.
    pub(crate) fn resume_after(&self, damaged: u64, verdict: &Verdict) -> Result<u64> {
        let Some(file) = self.files.file_of(damaged) else { return Ok(verdict.written.max(damaged)) };
        let found = self.files.record_in(damaged + 1..file.end, |at| self.whole(at))?;
        let continues = verdict.later_record.is_some() || verdict.written > file.end;
        let later = || if continues { file.end } else { verdict.written.max(damaged + 1) };
        Ok(found.unwrap_or_else(later))
    }

    /// Returns where the log continues after damage at an offset that is known to be before its end.
    pub(crate) fn resume_before(&self, damaged: u64, end: u64) -> Result<u64> {
        let Some(file) = self.files.file_of(damaged) else { return Ok(end) };
        let until = file.end.min(end);
        Ok(self.files.record_in(damaged + 1..until, |at| self.whole(at))?.unwrap_or(until))
    }

    /// Returns the last record that begins before `end`; `None` if there is none.
    pub(crate) fn last_before(&self, end: u64) -> Result<Option<Sample>> {
        let mut reach = REACH;
        loop {
            let start = end.saturating_sub(reach).max(self.first());
            let last = self.last_between(start, end)?;
            if last.is_some() || start <= self.first() {
                return Ok(last);
            }
            reach = reach.saturating_mul(4);
        }
    }

    /// Returns the last record that begins in a range. Skips what cannot be read; a scan reports it.
    fn last_between(&self, start: u64, end: u64) -> Result<Option<Sample>> {
        let mut last = None;
        let mut at = self.boundary(start, end)?;
        while at < end {
            let walk = self.walk(at, end, |view| {
                last = Some(Sample { physical_offset: view.physical_offset.0, store_ms: view.store_timestamp.0 });
                true
            })?;
            at = match walk.stop {
                Stop::NoRecord(_) => self.resume_before(walk.at, end)?,
                Stop::Limit | Stop::Visitor => end,
            };
        }
        Ok(last)
    }

    /// Cuts a range into about `parts` equal parts. Each begins and ends at a record boundary.
    pub fn cut(&self, range: Range<u64>, parts: u64) -> Result<Vec<Range<u64>>> {
        let parts = parts.max(1);
        let bytes = range.end.saturating_sub(range.start);
        let mut cuts = Vec::new();
        let mut begin = range.start;
        for part in 1..=parts {
            let ideal = range.start + bytes / parts * part + bytes % parts * part / parts;
            let end = if part == parts { range.end } else { self.boundary(ideal.max(begin), range.end)? };
            if end > begin {
                cuts.push(begin..end);
                begin = end;
            }
        }
        Ok(cuts)
    }
}

/// Returns whether a record's own queue has an entry that points to it.
fn is_in_queue(queues: &QueueFiles, view: &RecordView<'_>) -> bool {
    if !view.transaction_type().is_queued() || !names::valid_path_component(view.topic) || view.queue_id.0 < 0 {
        return false;
    }
    if view.queue_offset.0 >= QUEUE_OFFSET_MAX {
        return false;
    }
    // A queue whose file is missing or too short confirms nothing.
    let entry = queues.read(&view.topic.into(), view.queue_id, view.queue_offset.0, 1).unwrap_or_default();
    let entry = entry.get(..ENTRY_SIZE).and_then(Entry::from_bytes);
    entry.is_some_and(|entry| entry.physical_offset == view.physical_offset && entry.size == view.size)
}
