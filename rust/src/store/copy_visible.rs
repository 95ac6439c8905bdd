//! Passes the log on to a slave of RocketMQ, which takes every byte as it comes and says only where its own log ends.
//!
//! In:     the physical offset where the slave's log ends.
//! Out:    the bytes from there on; the last whole record before it, by which two logs are compared.
//! Always: no byte above the visible end is passed on: a slave shows its readers what it has. A piece ends at the end of
//!         a file at the latest, because a slave cannot append one that goes beyond it.
//! Not here: replicas of txstore, which verify what they take (`replicate`).

use super::Store;
use crate::base::error::Result;
use crate::base::units::{PhysicalOffset, to_u64, to_usize};
use crate::log::commit_log::{Step, step};
use crate::record::decode::{DecodeError, Verify};
use crate::storage::segment::Segment;

impl Store {
    /// Returns at most `bytes_max` bytes of the log from a physical offset on, as readers see it: empty at the visible
    /// end and above. They end at the end of a file at the latest.
    ///
    /// Fails with `OffsetTooOld` below the log's first byte.
    pub fn copy_visible(&self, from: PhysicalOffset, bytes_max: usize) -> Result<Vec<u8>> {
        let visible = self.visible_end().0.min(self.copyable_end().0);
        match visible.checked_sub(from.0) {
            None | Some(0) => Ok(Vec::new()),
            Some(left) => self.copy_log(from, to_usize(left).min(bytes_max)),
        }
    }

    /// Returns the last record that ends at or below a physical offset, and where it begins; `None` if the log has none.
    pub fn record_before(&self, end: PhysicalOffset) -> Result<Option<(PhysicalOffset, Vec<u8>)>> {
        self.shared.check_open()?;
        let log = &self.shared.log;
        let mut below = end.0.min(log.appended());
        // A file may have no whole record below the offset: then the last one is in the file before it.
        while let Some(segment) = below.checked_sub(1).and_then(|at| log.segments.at(at)) {
            if let Some(found) = last_whole(&segment, below)? {
                return Ok(Some(found));
            }
            below = segment.base();
        }
        Ok(None)
    }
}

/// Returns the last record of a file that ends at or below a physical offset.
fn last_whole(segment: &Segment, below: u64) -> Result<Option<(PhysicalOffset, Vec<u8>)>> {
    let bytes = segment.bytes(segment.base()..segment.end().min(below))?;
    let (mut at, mut rest, mut last) = (segment.base(), &*bytes, None);
    while !rest.is_empty() {
        match step(rest, at, segment.end(), Verify::NOTHING) {
            Step::Record(view) => {
                let (record, after) = rest.split_at_checked(to_usize(view.size.into())).unwrap_or((rest, &[]));
                last = Some((at, record));
                at += to_u64(record.len());
                rest = after;
            }
            // The offset is within a record, or within the blank record of a file.
            Step::FileEnd | Step::Unwritten | Step::Bad(DecodeError::Truncated { .. }) => break,
            Step::Bad(why) => return Err(segment.corrupt(at, why.to_string())),
            Step::BadBlank(why) => return Err(segment.corrupt(at, why)),
        }
    }
    Ok(last.map(|(at, record)| (PhysicalOffset(at), record.to_vec())))
}
