//! Reads ranges of the commit log as Arrow record batches.
//!
//! In:     a store's directory, what to show of it.
//! Out:    a stream of record batches of one schema.
//! Always: takes no lock of the store, starts no thread unless asked for several, writes nothing. Maps nothing past the visible end. Verifies each record.
//! Not here: Python, Spark.

mod batch;
mod cells;
mod folded;
mod identity;
pub mod options;
mod parallel;
mod plan;
mod pulled;
pub mod scan;
pub mod schema;
mod statistics;
mod survey;
#[cfg(test)]
mod tests;

pub use crate::recovery::log_view::Log;
pub use identity::RecordName;
pub use options::{BadRecords, HalfMissing, ScanOptions};
pub use parallel::{ParallelScan, Threads};
pub use pulled::{Pulled, Unreadable};
pub use scan::{Counts, Scan};
pub use schema::{Column, View};
