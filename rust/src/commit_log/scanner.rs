//! Scanner: the log's records in order, to its end or to the first that is none.
//!
//! In: where to begin and where to stop. Out: each record, borrowed from its file; then what kind of end it met.
//! Always: stops at the first bad record; whether that is a torn tail or damage is recovery's question.

use super::CommitLog;
use crate::error::Result;
use crate::record::RecordView;
use crate::record::decode::{DecodeError, Scanned, Verify, decode};
use crate::units::{PhysicalOffset, to_u64, to_usize};

/// What a scan met at its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Tail {
    /// The limit, zeros, or the end of the last file.
    End,
    /// Bytes that are no record.
    Bad(String),
    /// The visitor had enough.
    Stopped,
}

/// How far a scan came.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// One past the last good record (or blank record).
    pub end: u64,
    /// What is there.
    pub tail: Tail,
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
    /// From a record's beginning up to `limit`, which is a record's end (or `u64::MAX`: to the end of the files).
    pub const fn new(log: &'a CommitLog, from: PhysicalOffset, limit: u64) -> Self {
        Self { log, from: from.0, limit }
    }

    /// Calls `visit` for each record, with its bytes; `verify` says how to look at the record at an offset.
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
                match decode(rest, PhysicalOffset(at), verify(at)) {
                    Ok(Scanned::Record(view)) => {
                        let size = to_usize(u64::from(view.size));
                        let (record, behind) = rest.split_at_checked(size).unwrap_or((rest, &[]));
                        at += u64::from(view.size);
                        rest = behind;
                        if !visit(&view, record)? {
                            return Ok(Scan { end: at, tail: Tail::Stopped });
                        }
                    }
                    Ok(Scanned::Blank { size }) if at + u64::from(size) == segment.end() => {
                        at = segment.end();
                        rest = &[];
                    }
                    Ok(Scanned::Blank { size }) => {
                        let left = segment.end() - at;
                        let why = format!("a blank record of {size} bytes where {left} are left in the file");
                        return Ok(Scan { end: at, tail: Tail::Bad(why) });
                    }
                    Err(DecodeError::Empty) => return Ok(Scan { end: at, tail: Tail::End }),
                    // Fewer bytes than a record begins with, and all zeros: the end of a file without a blank record.
                    Err(_) if to_u64(rest.len()) < super::FILE_TAIL && rest.iter().all(|byte| *byte == 0) => {
                        return Ok(Scan { end: at, tail: Tail::End });
                    }
                    Err(why) => return Ok(Scan { end: at, tail: Tail::Bad(why.to_string()) }),
                }
            }
        }
        Ok(Scan { end: at, tail: Tail::End })
    }
}
