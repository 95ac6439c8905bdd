//! Defines one type for each number that must not be mistaken for another.
//!
//! In:     plain integers at the edges (bytes on disk, Python).
//! Out:    newtypes with the few operations that make sense.
//! Always: a physical offset counts bytes of the commit log, a queue offset counts entries of a queue.

use std::fmt;

/// A position in the commit log, in bytes from the very first record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalOffset(pub u64);

/// A position in a queue, in entries from its first message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(pub u64);

/// The number of a queue within its topic. It is signed because RocketMQ's records carry a signed number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub i32);

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimestampMs(pub i64);

impl PhysicalOffset {
    /// Returns the offset `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl QueueOffset {
    /// Returns the offset `entries` further on.
    #[must_use]
    pub const fn plus(self, entries: u64) -> Self {
        Self(self.0.saturating_add(entries))
    }
}

impl fmt::Display for PhysicalOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TimestampMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Converts a length in memory to a file length. Lossless on the 64-bit machines that this crate supports.
#[inline]
pub(crate) fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Converts a file length to a length in memory. Lossless on the 64-bit machines that this crate supports.
#[inline]
pub(crate) fn to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

const _: () = assert!(usize::BITS == 64, "maps of whole log files need a 64-bit machine");
