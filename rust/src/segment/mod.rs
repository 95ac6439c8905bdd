//! Segments: files of one size in a row, which together are one long array of bytes.

mod file;
mod queue;

pub use file::{Segment, make_file};
pub use queue::SegmentQueue;
