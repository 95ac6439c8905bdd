//! Finds where a record begins among damaged or foreign bytes.
//!
//! In:     bytes of one file, and their physical offset.
//! Out:    the distance to the next magic, or the next whole record.
//! Always: a record states its own offset, so a copy of a record in another one's body is not mistaken for a record.

use memchr::memmem;

use crate::base::units::to_u64;
use crate::log::commit_log::{Step, step};
use crate::record::decode::Verify;

/// The common beginning of both versions' magics; the last byte is 0xA7 or 0xAB.
const MAGIC_HEAD: [u8; 3] = [0xDA, 0xA3, 0x20];
/// The magic ends this many bytes after a record's beginning.
pub(super) const MAGIC_END: u64 = 8;

/// Returns the distance to the first offset where four bytes and then a record's magic follow.
pub(super) fn find_magic(bytes: &[u8]) -> Option<usize> {
    const SIZE: usize = size_of::<u32>();
    let after = bytes.get(SIZE..)?;
    let is_magic = |at: &usize| matches!(after.get(at + MAGIC_HEAD.len()), Some(0xA7 | 0xAB));
    memmem::find_iter(after, &MAGIC_HEAD).find(is_magic)
}

/// A record found among other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where it begins.
    pub(crate) physical_offset: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Its store time.
    pub(crate) stored_ms: i64,
}

/// Returns the next whole record that begins after `at`. `rest` is the file from `at` to its end.
pub(crate) fn next_record(rest: &[u8], at: u64, file_end: u64, verify: impl Fn(u64) -> Verify) -> Option<Found> {
    let mut skipped = 1;
    while let Some(distance) = rest.get(skipped..).and_then(find_magic) {
        let (from, physical_offset) = (skipped + distance, at + to_u64(skipped + distance));
        if let Step::Record(view) = step(rest.get(from..)?, physical_offset, file_end, verify(physical_offset)) {
            let (size, stored_ms) = (view.size.into(), view.store_timestamp.0);
            return Some(Found { physical_offset, size, stored_ms });
        }
        skipped = from + 1;
    }
    None
}
