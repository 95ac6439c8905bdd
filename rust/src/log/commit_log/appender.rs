//! Assigns physical offsets to records and writes them, under the put lock.
//!
//! In:     drafts, as a batch.
//! Out:    their physical offsets; the bytes in the page cache.
//! Always: a batch is written whole or not at all. Store timestamps never decrease. A file is durable before the next
//!         one is begun.
//! Not here: what queue offsets mean.

use std::sync::Arc;

use super::{CommitLog, FILE_TAIL};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, QueueOffset, TimestampMs, to_u64, to_usize};
use crate::record::encode::{blank, measure, put};
use crate::record::{Draft, Position};
use crate::storage::segment::Segment;

/// The least space allocated ahead of the writer, in bytes.
const CHUNK_MIN: u64 = 1 << 20;
/// The most space allocated ahead with fallocate, in bytes.
const CHUNK_MAX: u64 = 64 << 20;
/// The most space allocated ahead by writing zeros, in bytes: writing this much has no visible cost between syncs.
const WRITTEN_MAX: u64 = 1 << 20;
/// One write of zeros ahead of small records. Creating pages together costs a third less than creating them for each
/// record, and larger writes cost more again (docs/internals/performance.md).
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Bytes of the log that are kept in memory after they are written.
const RECENT_MAX: usize = 256 << 10;
/// Bytes of memory that the buffer keeps after a large batch.
const BUFFER_MAX: usize = 8 << 20;
/// Ends may still use this many bytes when sends find the disk full, in addition to what each of them may need.
const END_RESERVE: u64 = 1 << 20;
/// Bytes that an end may write in addition to a copy of its half message: its op message (about 165 bytes), a longer
/// topic or the time at which it is delivered.
const END_EXTRA: u64 = 224;

/// The pending half messages. Each may be copied by its end when no more space can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndsToCome {
    /// Total size of their records in bytes.
    pub bytes: u64,
    /// Number of half messages.
    pub count: u64,
    /// Upper bound of the largest record, in bytes.
    pub largest: u32,
}

impl EndsToCome {
    /// Returns these with one more record of `size` bytes.
    #[must_use]
    pub fn with(self, size: u32) -> Self {
        Self { bytes: self.bytes + u64::from(size), count: self.count + 1, largest: self.largest.max(size) }
    }

    /// Returns how much of the log they may take. If a copy does not fit into the rest of a file, that rest is lost.
    fn room(self, file_size: u64) -> u64 {
        let extra = if mutated(Mutant::NoRoomForOps) { 0 } else { END_EXTRA };
        let records = self.bytes + self.count * extra;
        if mutated(Mutant::NoRoomForFileEnds) {
            return records;
        }
        let lost = u64::from(self.largest) + extra + FILE_TAIL;
        records + (records / file_size.saturating_sub(lost).max(1) + 1) * lost
    }
}

/// Whether a batch may use the space that is reserved for ending transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// No: it leaves the space that the ends of pending transactions need.
    Send(EndsToCome),
    /// Yes.
    End,
}

/// Where a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its physical offset.
    pub physical_offset: PhysicalOffset,
    /// Its size in bytes.
    pub size: u32,
    /// Its store timestamp.
    pub store_timestamp: TimestampMs,
}

/// Bytes of the buffer that go to one file without a gap.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    start: usize,
}

/// The only writer of the log.
#[derive(Debug)]
pub struct Appender {
    log: Arc<CommitLog>,
    with_crc: bool,
    write_space: bool,
    store_timestamp: TimestampMs,
    cursor: u64,
    /// The newest bytes of the log, then the batch. Records that were just written are read again soonest.
    buffer: Vec<u8>,
    /// How many bytes of `buffer` are in the log.
    written: usize,
    /// The physical offset of `buffer`'s first byte.
    buffer_start: u64,
    parts: Vec<Part>,
    current: Option<Arc<Segment>>,
    space_end: u64,
    /// The page cache holds zeros at least up to this offset, from where the next record is written.
    zeros_end: u64,
    /// Up to this offset the log may hold bytes of a failed batch, because a full disk kept them from being cleared.
    dirty_end: u64,
    chunk: u64,
}

impl Appender {
    /// Creates a writer at the log's appended end. With `write_space`, space is written when it is allocated, which
    /// makes small syncs cheap.
    pub fn new(log: Arc<CommitLog>, with_crc: bool, write_space: bool, newest: TimestampMs) -> Self {
        let end = log.appended();
        Self {
            current: log.segments.at(end),
            log,
            with_crc,
            write_space,
            store_timestamp: newest,
            cursor: end,
            // The buffer grows to this size anyway.
            buffer: Vec::with_capacity(2 * RECENT_MAX),
            written: 0,
            buffer_start: end,
            parts: Vec::new(),
            space_end: end,
            zeros_end: end,
            dirty_end: end,
            chunk: CHUNK_MIN,
        }
    }

    /// Begins a batch and discards one that was not written.
    pub fn begin(&mut self, wall: TimestampMs) {
        self.cursor = self.log.appended();
        if self.written > RECENT_MAX {
            (self.written, self.buffer_start) = (0, self.cursor);
        }
        // The previous batch was small, so the memory of an earlier large batch is released.
        let is_too_large = self.buffer.capacity() > BUFFER_MAX && self.buffer.len() < self.buffer.capacity() / 8;
        self.buffer.truncate(self.written);
        if is_too_large {
            self.buffer.shrink_to(2 * RECENT_MAX);
        }
        self.parts.clear();
        self.store_timestamp = if mutated(Mutant::StoreTimeGoesBack) { wall } else { self.store_timestamp.max(wall) };
        self.parts.push(Part { offset: self.cursor, start: self.written });
    }

    /// Returns the log's bytes from a physical offset on, if they are still in memory.
    pub fn recent(&self, physical_offset: PhysicalOffset) -> Option<&[u8]> {
        let from = to_usize(physical_offset.0.checked_sub(self.buffer_start)?);
        self.buffer.get(from..self.written).filter(|bytes| !bytes.is_empty())
    }

    /// Returns the bytes of memory that batches occupy.
    #[cfg(test)]
    pub(super) const fn memory(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the store timestamp of the records in this batch.
    pub const fn store_timestamp(&self) -> TimestampMs {
        self.store_timestamp
    }

    /// Adds a record to the batch.
    pub fn push(&mut self, draft: &Draft<'_>, queue_offset: QueueOffset) -> Result<Appended> {
        let measured = measure(draft, self.with_crc)?;
        let size = measured.total;
        let file_size = self.log.segments.file_size();
        let needed = u64::from(size) + FILE_TAIL;
        if needed > file_size {
            return Err(Error::InvalidMessage {
                what: format!(
                    "the record takes {size} bytes, a commit log file only {file_size}\nhint: store the body elsewhere and send a reference to it; the size of files is chosen when a store is made"
                ),
            });
        }
        let file_end = (self.cursor / file_size + 1) * file_size;
        if self.cursor + needed > file_end {
            let rest = file_end - self.cursor;
            // A file has at most 2 GiB (base/options.rs), so its rest fits.
            self.buffer.extend_from_slice(&blank(u32::try_from(rest).unwrap_or(u32::MAX)));
            self.cursor = file_end;
            self.parts.push(Part { offset: file_end, start: self.buffer.len() });
        }
        let physical_offset = PhysicalOffset(self.cursor);
        let position = Position { physical_offset, queue_offset, store_timestamp: self.store_timestamp };
        put(draft, &measured, position, self.with_crc, &mut self.buffer);
        self.cursor += u64::from(size);
        Ok(Appended { physical_offset, size, store_timestamp: self.store_timestamp })
    }

    /// Returns whether `write` neither waits nor creates a file, because the batch fits into allocated space.
    pub fn is_ready(&self, urgency: Urgency) -> bool {
        self.parts.len() == 1 && self.current.is_some() && self.wanted(urgency) <= self.space_end
    }

    /// Allocates the space that the batch needs. On a full disk the batch is discarded and nothing has changed.
    pub fn make_room(&mut self, urgency: Urgency) -> Result<()> {
        let wanted = self.wanted(urgency);
        while self.space_end < wanted {
            let segment = self.log.segments.at_or_create(self.space_end)?;
            let generous = (self.space_end + self.chunk).max(wanted).min(segment.end());
            if self.take_space(&segment, generous).is_err() {
                self.take_space(&segment, wanted.min(segment.end()))?;
            }
            self.chunk = (self.chunk * 2).min(if self.write_space { WRITTEN_MAX } else { CHUNK_MAX });
        }
        Ok(())
    }

    /// Writes the batch. `synced_soon` says that a caller will wait until it is durable. After an error nothing of it
    /// is in the log. If that cannot be ensured, the error is `StorePoisoned`.
    pub fn write(&mut self, synced_soon: bool) -> Result<()> {
        let from = self.log.appended();
        if self.dirty_end > self.cursor {
            // This batch covers only a part of what a failed one left. The bytes after this batch must be zeros.
            self.clear(self.cursor, self.dirty_end)?;
            self.dirty_end = self.cursor;
        }
        match self.write_parts(synced_soon) {
            Ok(()) => {
                self.log.set_appended(self.cursor);
                if let Some(last) =
                    self.parts.last().filter(|last| last.offset != self.buffer_start && last.start != self.written)
                {
                    // The batch continued in another file. The bytes that are kept must have no gap.
                    self.buffer.drain(..last.start);
                    self.buffer_start = last.offset;
                }
                self.written = self.buffer.len();
                Ok(())
            }
            Err(error) => {
                self.current = self.log.segments.at(from);
                match self.take_back(from) {
                    Ok(()) => self.dirty_end = from,
                    // Making zeros needs space if the file system copies on write. The next batch begins at the same
                    // offset, and readers do not read there.
                    Err(Error::DiskFull { .. }) if !mutated(Mutant::FullDiskPoisons) => {
                        self.dirty_end = self.cursor.max(self.dirty_end);
                    }
                    Err(second) => {
                        return Err(Error::StorePoisoned { why: format!("{error}; then {second}") });
                    }
                }
                Err(error)
            }
        }
    }

    fn write_parts(&mut self, synced_soon: bool) -> Result<()> {
        let block = to_u64(ZEROS.len());
        for (index, part) in self.parts.iter().enumerate() {
            let end = self.parts.get(index + 1).map_or(self.buffer.len(), |next| next.start);
            let bytes = self.buffer.get(part.start..end).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            let segment = match &self.current {
                Some(segment) if part.offset < segment.end() => segment,
                _ => {
                    // A file is durable before the next one is begun; otherwise a power loss could leave a hole (L1,
                    // L8).
                    if let Some(full) = self.current.as_ref().filter(|_| !mutated(Mutant::RollWithoutSync)) {
                        full.sync().map_err(|error| Error::StorePoisoned { why: error.to_string() })?;
                    }
                    self.current.insert(self.log.segments.at_or_create(part.offset)?)
                }
            };
            let bytes_end = part.offset + to_u64(bytes.len());
            // A sync after the first write to new space also waits for the file system's journal. So a batch that is
            // synced soon writes more space at once (docs/internals/performance.md).
            let (wanted, ahead) = if synced_soon {
                (bytes_end + block, bytes_end + WRITTEN_MAX)
            } else {
                (bytes_end, (bytes_end / block + 1) * block)
            };
            let to = ahead.min(self.space_end).min(segment.end());
            if self.zeros_end < wanted.min(to) && bytes.len() <= ZEROS.len() / 2 {
                write_zeros(segment, self.zeros_end.max(part.offset), to)?;
                self.zeros_end = to;
            }
            segment.write(bytes, part.offset)?;
        }
        Ok(())
    }

    /// Overwrites the batch's bytes with zeros.
    fn take_back(&mut self, from: u64) -> Result<()> {
        (self.space_end, self.zeros_end) = (from, from);
        self.clear(from, self.cursor)
    }

    /// Overwrites a range with zeros, the last file first. If only the failed batch began a file, that file is durable
    /// without its record before the previous file loses its end. Otherwise a power loss could leave the record after a
    /// hole.
    fn clear(&self, from: u64, to: u64) -> Result<()> {
        let appended = self.log.appended();
        for segment in self.log.segments.all().iter().rev() {
            let range = from.max(segment.base())..to.min(segment.end());
            if range.start < range.end {
                segment.punch(range)?;
                if segment.base() > appended {
                    segment.sync()?;
                }
            }
        }
        Ok(())
    }

    fn take_space(&mut self, segment: &Segment, to: u64) -> Result<()> {
        segment.allocate(self.space_end..to)?;
        if self.write_space {
            write_zeros(segment, self.space_end, to)?;
            self.zeros_end = to;
        }
        self.space_end = to;
        Ok(())
    }

    fn wanted(&self, urgency: Urgency) -> u64 {
        // Without this limit, small files (in tests) would be created far ahead.
        let reserve = END_RESERVE.min(self.log.segments.file_size() / 4);
        match urgency {
            Urgency::Send(ends) if ends.count == 0 => self.cursor + reserve,
            Urgency::Send(ends) => self.cursor + reserve + ends.room(self.log.segments.file_size()),
            Urgency::End => self.cursor,
        }
    }
}

fn write_zeros(segment: &Segment, mut from: u64, to: u64) -> Result<()> {
    while from < to {
        let length = (to - from).min(to_u64(ZEROS.len()));
        segment.write(ZEROS.get(..to_usize(length)).unwrap_or_default(), from)?;
        from += length;
    }
    Ok(())
}
