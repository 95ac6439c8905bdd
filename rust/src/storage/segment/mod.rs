//! Stores one long array of bytes in a list of files of equal size.

mod file;
mod queue;
#[cfg(test)]
mod tests;

pub use file::{Segment, make_file, make_file_unsynced};
pub use queue::SegmentQueue;
