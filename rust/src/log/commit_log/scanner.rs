//! Reads the log's records in order, up to its end or to the first bytes that are not a record.
//!
//! In:     where to begin and where to stop.
//! Out:    each record, borrowed from its file; then what kind of end it met.
//! Always: stops at the first bad record. Recovery decides whether that is a torn tail or damage.

use super::CommitLog;
use crate::base::error::Result;
use crate::base::units::{PhysicalOffset, to_u64, to_usize};
use crate::record::RecordView;
use crate::record::decode::{DecodeError, RecordCrc, Scanned, Verify, decode};
use crate::storage::ahead::ask_for;

/// Says that an offset where a record should begin holds only zeros.
pub const UNWRITTEN: &str = "zeros, where a record should begin";

/// What a scan met at its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Tail {
    /// The limit, zeros, or the end of the last file.
    End,
    /// Bytes that are not a record.
    Bad(String),
    /// The visitor had enough.
    Stopped,
}

/// The result of a scan.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// One past the last good record (or blank record).
    pub end: u64,
    /// What is at the end.
    pub tail: Tail,
}

impl Scan {
    /// Returns why no record begins where the scan ended, if the log is known to continue up to `end`.
    pub fn damage_before(&self, end: u64) -> Option<&str> {
        match &self.tail {
            Tail::Bad(why) => Some(why),
            Tail::End if self.end < end => Some(UNWRITTEN),
            Tail::End | Tail::Stopped => None,
        }
    }
}

/// What is at an offset of the log.
#[derive(Debug)]
pub enum Step<'a> {
    /// A record.
    Record(RecordView<'a>),
    /// A blank record, which fills the file to its end.
    FileEnd,
    /// Nothing was written here.
    Unwritten,
    /// Bytes that are not a record.
    Bad(DecodeError),
    /// A blank record that does not fill its file.
    BadBlank(String),
}

/// Classifies the bytes `rest` at offset `at` of a file that ends at `file_end`.
#[inline]
pub fn step(rest: &[u8], at: u64, file_end: u64, verify: Verify) -> Step<'_> {
    match decode(rest, PhysicalOffset(at), verify) {
        Ok(Scanned::Record(view)) => Step::Record(view),
        Ok(Scanned::Blank { size }) if at + u64::from(size) == file_end => Step::FileEnd,
        // A broker reads only the magic number of a blank record, and lost power may leave another size before it. So
        // the size counts only where records have a CRC, which are not a broker's.
        Ok(Scanned::Blank { .. }) if verify.record_crc != RecordCrc::Required => Step::FileEnd,
        Ok(Scanned::Blank { size }) => {
            Step::BadBlank(format!("a blank record of {size} bytes where {} are left in the file", file_end - at))
        }
        Err(DecodeError::Empty) => Step::Unwritten,
        // Fewer bytes than a record header, all zeros, are the end of a file where not even a blank record fits.
        Err(_) if is_too_short(rest) => {
            if at + to_u64(rest.len()) == file_end {
                Step::FileEnd
            } else {
                Step::Unwritten
            }
        }
        Err(why) => Step::Bad(why),
    }
}

fn is_too_short(rest: &[u8]) -> bool {
    to_u64(rest.len()) < super::FILE_TAIL && rest.iter().all(|byte| *byte == 0)
}

/// Whether a visitor wants the next record.
pub(super) type Continue = bool;

/// Reads records in order.
#[derive(Debug)]
pub struct Scanner<'a> {
    log: &'a CommitLog,
    from: u64,
    limit: u64,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner from a record's beginning up to `limit`: the end of a record, or `u64::MAX` for the end of the
    /// files.
    pub const fn new(log: &'a CommitLog, from: PhysicalOffset, limit: u64) -> Self {
        Self { log, from: from.0, limit }
    }

    /// Calls `visit` for each record, with its bytes. `verify` returns how to verify the record at an offset.
    pub fn run(
        &self,
        verify: impl Fn(u64) -> Verify,
        mut visit: impl FnMut(&RecordView<'_>, &[u8]) -> Result<Continue>,
    ) -> Result<Scan> {
        let mut at = self.from;
        while at < self.limit {
            let Some(segment) = self.log.segments.at(at) else { break };
            let stop = segment.end().min(self.limit);
            let bytes = segment.bytes(at..stop)?;
            let mut rest: &[u8] = &bytes;
            while !rest.is_empty() {
                match step(rest, at, segment.end(), verify(at)) {
                    Step::Record(view) => {
                        let size = to_usize(u64::from(view.size));
                        // Prefetches the record after the next one, which often has a similar size, because memory is
                        // slow to respond.
                        ask_for(rest, 2 * size..3 * size);
                        let (record, after) = rest.split_at_checked(size).unwrap_or((rest, &[]));
                        at += u64::from(view.size);
                        rest = after;
                        if !visit(&view, record)? {
                            return Ok(Scan { end: at, tail: Tail::Stopped });
                        }
                    }
                    Step::FileEnd => {
                        at = segment.end();
                        rest = &[];
                    }
                    Step::Unwritten => return Ok(Scan { end: at, tail: Tail::End }),
                    Step::Bad(why) => return Ok(Scan { end: at, tail: Tail::Bad(why.to_string()) }),
                    Step::BadBlank(why) => return Ok(Scan { end: at, tail: Tail::Bad(why) }),
                }
            }
        }
        Ok(Scan { end: at, tail: Tail::End })
    }
}
