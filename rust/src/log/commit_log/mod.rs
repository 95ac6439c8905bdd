//! Stores every record in order. Everything else is derived from this log.
//!
//! In:     encoded records.
//! Out:    records by physical offset, or in order.
//! Always: bytes below the appended end never change.
//! Not here: what a record means.

mod appender;
mod scanner;
#[cfg(test)]
mod tests;
mod verifier;

pub use appender::{Appended, Appender, EndsToCome, Urgency};
pub use scanner::{Scan, Scanner, Step, Tail, UNWRITTEN, step};
pub use verifier::verified_ahead;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::base::sync::AtomicU64;
use crate::base::sync::unmodelled::RwLock;
use crate::base::units::PhysicalOffset;
use crate::record::decode::{Scanned, Verify, decode};
use crate::record::{RecordView, layout};
use crate::storage::ahead::ask_for;
use crate::storage::segment::{Segment, SegmentQueue};

/// The directory of the log's files.
pub const DIRECTORY: &str = "commitlog";

/// The log's files and how far they are written and durable.
pub struct CommitLog {
    /// The files.
    pub segments: SegmentQueue,
    appended: AtomicU64,
    durable: AtomicU64,
    verify: RwLock<Option<Arc<VerifyAt>>>,
}

/// Tells how a record at an offset is verified.
pub type VerifyAt = Box<dyn Fn(u64) -> Verify + Send + Sync>;

impl std::fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, appended, durable, .. } = self;
        f.debug_struct("CommitLog")
            .field("segments", segments)
            .field("appended", appended)
            .field("durable", durable)
            .finish_non_exhaustive()
    }
}

impl CommitLog {
    /// Creates a log over opened files; its ends are set by recovery.
    pub fn new(segments: SegmentQueue) -> Self {
        Self { segments, appended: AtomicU64::new(0), durable: AtomicU64::new(0), verify: RwLock::new(None) }
    }

    /// Sets how records are verified when they are read. Records that txstore wrote are also checked by their own CRC
    /// (L5).
    pub fn set_verify(&self, verify: VerifyAt) {
        *self.verify.write() = Some(Arc::new(verify));
    }

    /// Returns one past the last record.
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Returns the end up to which a sync has succeeded.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Sets the appended end.
    pub fn set_appended(&self, end: u64) {
        self.appended.store(end, Ordering::Release);
    }

    /// Sets the durable end.
    pub fn set_durable(&self, end: u64) {
        self.durable.store(end, Ordering::Release);
    }

    /// Returns the file that holds an offset, for reading. Fails with `OffsetTooOld` or `MessageNotFound` if no file
    /// does.
    pub fn segment(&self, offset: PhysicalOffset) -> Result<Arc<Segment>> {
        self.segment_below(offset, self.appended())
    }

    fn segment_below(&self, offset: PhysicalOffset, end: u64) -> Result<Arc<Segment>> {
        let first = self.segments.first();
        if offset.0 < first {
            return Err(too_old(offset.0, first));
        }
        self.segments.at(offset.0).filter(|_| offset.0 < end).ok_or_else(|| not_found(offset))
    }

    /// Reads the record at an offset below `end` and hands it to `use_it`, as `LogReader::read` does.
    pub fn read<T>(
        &self,
        offset: PhysicalOffset,
        end: u64,
        use_it: impl FnOnce(&RecordView<'_>, &[u8]) -> T,
    ) -> Result<T> {
        self.reader(end).read(offset, use_it)
    }

    /// Creates a reader for several records below `end`.
    pub fn reader(&self, end: u64) -> LogReader<'_> {
        LogReader { log: self, end, verify: self.verify.read().clone(), segment: None }
    }
}

/// Reads records at any offsets and keeps the file of the last one mapped.
pub struct LogReader<'a> {
    log: &'a CommitLog,
    end: u64,
    verify: Option<Arc<VerifyAt>>,
    segment: Option<Arc<Segment>>,
}

impl std::fmt::Debug for LogReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { log, end, segment, .. } = self;
        f.debug_struct("LogReader")
            .field("log", log)
            .field("end", end)
            .field("segment", segment)
            .finish_non_exhaustive()
    }
}

impl LogReader<'_> {
    /// Prefetches a record that will be read soon into the processor's cache, if it is in the current file.
    pub fn ask_for(&self, offset: PhysicalOffset, size: u32) {
        let range = offset.0..offset.0.saturating_add(size.into());
        let segment = self.segment.as_ref().filter(|segment| segment.holds(range.start) && range.end <= segment.end());
        if let Some(Ok(Cow::Borrowed(bytes))) = segment.map(|segment| segment.bytes(range)) {
            ask_for(bytes, 0..bytes.len());
        }
    }

    /// Reads the record at an offset and hands it to `use_it`, borrowed from the file.
    ///
    /// Verifies its CRCs. Fails with `StoreCorrupt` for a bad record, and with `MessageNotFound` for an offset at or
    /// past the reader's end.
    pub fn read<T>(&mut self, offset: PhysicalOffset, use_it: impl FnOnce(&RecordView<'_>, &[u8]) -> T) -> Result<T> {
        if offset.0 >= self.end {
            return Err(not_found(offset));
        }
        let segment = match self.segment.take().filter(|segment| segment.holds(offset.0)) {
            Some(segment) => self.segment.insert(segment),
            None => self.segment.insert(self.log.segment_below(offset, self.end)?),
        };
        let bytes = segment.bytes(offset.0..segment.end().min(self.end))?;
        let verify = self.verify.as_ref().map_or(Verify::BODY, |verify| verify(offset.0));
        match decode(&bytes, offset, verify) {
            Ok(Scanned::Record(view)) => {
                let whole = usize::try_from(view.size).unwrap_or(usize::MAX);
                Ok(use_it(&view, bytes.get(..whole).unwrap_or_default()))
            }
            Ok(Scanned::Blank { .. }) => Err(not_found(offset)),
            Err(why) => Err(segment.corrupt(offset.0, why.to_string())),
        }
    }
}

/// Returns the error for an offset that retention removed.
pub fn too_old(requested: u64, minimum: u64) -> Error {
    Error::OffsetTooOld { of: "the commit log".into(), requested, minimum }
}

fn not_found(offset: PhysicalOffset) -> Error {
    Error::MessageNotFound { what: format!("no record begins at physical offset {offset} of the commit log") }
}

/// Bytes that must remain free after a record in its file.
pub const FILE_TAIL: u64 = 8;
const _: () =
    assert!(layout::BLANK_MIN == 8 && FILE_TAIL == 8, "the free bytes are those of the smallest blank record");
