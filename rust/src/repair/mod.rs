//! Finds out what is wrong with a store, and repairs it so that it opens again.
//!
//! In:     a directory.
//! Out:    facts, as far as anything can be read; then repaired files, each with a copy of its previous bytes.
//! Always: examining writes nothing. What can be read keeps its physical offset. Nothing is guessed: a lost record is
//!         replaced by a record that no reader shows.
//! Not here: opening, which rebuilds derived files; when to repair, and the words for it (Python).

mod examine;
mod filler;
mod mend;
#[cfg(test)]
mod tests;

pub use examine::Examiner;
pub use filler::{TOPIC, is_filler};
#[cfg(feature = "arrow")]
pub(crate) use mend::settings_of_copy;
pub use mend::{Mended, mend, report};

use std::collections::{BTreeMap, BTreeSet};

use crate::base::units::{QueueId, TimestampMs};

/// The kind of damage to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The first files of the log are missing.
    Front,
    /// A file in the middle is missing or empty.
    Missing,
    /// A file differs in length from the others.
    Length,
    /// Bytes that are not a record, with records after them.
    Bad,
    /// Bytes that are not a record, with nothing after them.
    Tail,
    /// The log ended further on.
    End,
}

impl DamageKind {
    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Missing => "missing",
            Self::Length => "length",
            Self::Bad => "bad",
            Self::Tail => "tail",
            Self::End => "end",
        }
    }
}

/// A damaged range of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The kind of damage.
    pub kind: DamageKind,
    /// The first physical offset that cannot be read.
    pub from: u64,
    /// One past the last such offset.
    pub to: u64,
    /// The file's path in the store.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
    /// Whole records at its end that are lost with it, because no filler is as short as the damaged range.
    pub records_discarded: u64,
    /// Readable records of the log before it.
    pub records_before: u64,
    /// When the last of them was stored.
    pub stored: TimestampMs,
}

/// A message that a consume queue names and that is missing in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its topic.
    pub topic: String,
    /// Its queue.
    pub queue_id: QueueId,
    /// Its queue offset.
    pub queue_offset: u64,
    /// The physical offset of its record.
    pub physical_offset: u64,
}

/// What an examination found.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// Size of a log file in bytes; 0 if there are no files.
    pub file_size: u64,
    /// The physical offset at which the log begins.
    pub first: u64,
    /// One past its last readable record, or past the damage that a repair fills.
    pub end: u64,
    /// Records that can be read.
    pub records: u64,
    /// Whether the last writer closed the store.
    pub clean: bool,
    /// What is wrong with the log, in its order.
    pub damages: Vec<Damage>,
    /// A torn tail after the known durable end, which the next `open` cuts.
    pub torn: Option<(u64, u64)>,
    /// Derived files that are damaged: path and reason.
    pub derived: Vec<(String, String)>,
    /// The first lost messages, as far as queues name them.
    pub lost: Vec<Lost>,
    /// The number of lost messages.
    pub lost_count: u64,
    /// The queues whose records are in the log, by topic.
    pub queued: BTreeMap<String, BTreeSet<QueueId>>,
    /// Undamaged log files, by their first physical offset.
    pub whole: Vec<u64>,
}
