//! Collects the records of a broker's answers into record batches.
//!
//! In:     the body of an answer to a pull: whole records, one after another.
//! Out:    record batches, in the order of the answers.
//! Always: memory is bounded by one batch and one record, whatever the answer holds. Verifies what a scan verifies.
//! Not here: connections, which answers belong to which queue.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema};

use super::batch::{Batch, Row};
use super::options::{BadRecords, ScanOptions, TopicMemory};
use super::schema::View;
use crate::base::error::Result;
use crate::base::units::{PhysicalOffset, to_usize};
use crate::record::compression::{BODY_MAX, decompress};
use crate::record::layout::{PHYSICAL_OFFSET_AT, SYS_COMPRESSED};
use crate::record::{DecodeError, RecordView, Scanned, Verify, decode};

/// Rows that go into their columns together.
const CHUNK_ROWS: usize = 32;
/// No row of the view of messages shows it.
const NO_HALF: u64 = u64::MAX;

/// Why an answer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record at byte {at} of an answer: {why}")]
pub struct Unreadable {
    at: usize,
    why: String,
}

/// Records of answers, as far as they are not in a finished batch.
#[derive(Debug)]
pub struct Pulled {
    options: ScanOptions,
    batch: Batch,
    batch_bytes: usize,
    topics: TopicMemory,
    takes_body: bool,
    bad_records: u64,
    bad_bytes: u64,
}

/// A row, or `None` if the record is not shown, and the record's size.
type Read<'a> = (Option<Row<'a>>, usize);
type Checked<T> = std::result::Result<T, Unreadable>;

impl Pulled {
    /// Checks the options, which are those of a scan of the view of messages.
    pub fn new(options: ScanOptions) -> Result<Self> {
        options.check()?;
        debug_assert!(options.view == View::Messages);
        Ok(Self {
            batch: Batch::new(&options.columns),
            batch_bytes: 0,
            topics: TopicMemory::default(),
            takes_body: options.takes_body(),
            bad_records: 0,
            bad_bytes: 0,
            options,
        })
    }

    /// Returns the schema of the batches.
    pub fn schema(&self) -> Arc<Schema> {
        self.batch.schema()
    }

    /// Returns how many rows the unfinished batch has.
    pub const fn rows(&self) -> usize {
        self.batch.rows()
    }

    /// Returns how many bad records were skipped, and their bytes.
    pub const fn bad(&self) -> (u64, u64) {
        (self.bad_records, self.bad_bytes)
    }

    /// Appends the records of an answer from the byte `at` on, as far as the batch has room. Only those with a queue
    /// offset in `queue` become rows. Returns the byte where the next record begins; the answer's length if all are
    /// read.
    pub fn append(&mut self, answer: &[u8], mut at: usize, queue: &Range<u64>) -> Checked<usize> {
        let mut rows = Vec::with_capacity(CHUNK_ROWS);
        while at < answer.len() {
            let Some((row, size)) = self.next(answer, at, queue, rows.len())? else { break };
            rows.extend(row);
            at += size;
            if rows.len() == CHUNK_ROWS {
                self.batch.append(&rows);
                rows.clear();
            }
        }
        self.batch.append(&rows);
        Ok(at)
    }

    /// Returns the batch and begins the next one.
    pub fn finish(&mut self) -> std::result::Result<RecordBatch, ArrowError> {
        self.batch_bytes = 0;
        self.batch.finish()
    }

    /// Reads the record at a byte of an answer; `None` if it must go into the next batch. `waiting` rows are not in the
    /// batch yet.
    #[inline]
    fn next<'a>(
        &mut self,
        answer: &'a [u8],
        at: usize,
        queue: &Range<u64>,
        waiting: usize,
    ) -> Checked<Option<Read<'a>>> {
        let bytes = answer.get(at..).unwrap_or_default();
        let view = match view_of(bytes, self.takes_body) {
            Ok(view) => view,
            Err(why) => return self.pass(bytes, at, why.to_string()),
        };
        let size = to_usize(view.size.into());
        if !queue.contains(&view.queue_offset.0) || !self.options.wants(&view, &mut self.topics) {
            return Ok(Some((None, size)));
        }
        let body = match self.body(&view) {
            Ok(body) => body,
            Err(why) => return self.pass(bytes, at, why),
        };
        let filled = self.batch.rows() + waiting;
        let taken = self.batch_bytes.saturating_add(size.max(body.len()));
        if filled >= self.options.batch_rows || (filled > 0 && taken > self.options.batch_bytes) {
            return Ok(None);
        }
        self.batch_bytes = taken;
        Ok(Some((Some(Row { view, body, half_queue_offset: NO_HALF }), size)))
    }

    fn body<'a>(&self, view: &RecordView<'a>) -> std::result::Result<Cow<'a, [u8]>, String> {
        if !self.takes_body {
            return Ok(Cow::Borrowed(&[]));
        }
        if view.sys_flag & SYS_COMPRESSED == 0 {
            return Ok(Cow::Borrowed(view.body));
        }
        decompress(view.sys_flag, view.body, BODY_MAX)
    }

    /// Counts a bad record and passes over it, or fails. Without a valid size the rest of the answer is passed over.
    #[cold]
    fn pass<'a>(&mut self, bytes: &[u8], at: usize, why: String) -> Checked<Option<Read<'a>>> {
        if self.options.bad_records == BadRecords::Fail {
            return Err(Unreadable { at, why });
        }
        let size = match bytes.first_chunk::<4>().map(|size| to_usize(u32::from_be_bytes(*size).into())) {
            Some(size) if size > 0 && size <= bytes.len() => size,
            _ => bytes.len(),
        };
        self.bad_records += 1;
        self.bad_bytes += u64::try_from(size).unwrap_or(u64::MAX);
        Ok(Some((None, size)))
    }
}

/// Decodes the record at the start of `bytes`, which states its own physical offset.
#[inline]
fn view_of(bytes: &[u8], takes_body: bool) -> std::result::Result<RecordView<'_>, DecodeError> {
    let physical_offset = bytes.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
    let physical_offset = physical_offset.ok_or(DecodeError::BadLength { field: "total size" })?;
    let physical_offset = PhysicalOffset(u64::from_be_bytes(*physical_offset));
    let verify = if takes_body { Verify::BODY } else { Verify::NOTHING };
    match decode(bytes, physical_offset, verify)? {
        Scanned::Record(view) => Ok(view),
        Scanned::Blank { size } => Err(DecodeError::BadSize { found: size }),
    }
}
