//! Repair: what is wrong with a store that may not open, and the same store made fit to open again.
//!
//! In:     a directory.
//! Out:    facts, as far as anything can be read; then files mended, each with a copy of what it was.
//! Always: examining writes nothing; what can be read stays at its physical offset; nothing is guessed: where a record
//!         was lost a record stands that no reader shows.
//! Not here: opening, which builds again what is derived; when, and the words for it (Python).

mod examine;
mod filler;
mod mend;
#[cfg(test)]
mod tests;

pub use examine::Examiner;
pub use filler::{TOPIC, is_filler};
pub use mend::{Mended, mend, report};

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{QueueId, TimestampMs};

/// What kind of damage the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Files at the log's front are gone.
    Front,
    /// A file in the middle is gone, or has no byte.
    Missing,
    /// A file has not the length of the others.
    Length,
    /// Bytes that are no record, with records behind them.
    Bad,
    /// Bytes that are no record, with nothing behind them.
    Tail,
    /// The log ended further behind.
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

/// A damaged place of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What kind.
    pub kind: DamageKind,
    /// The first physical offset that cannot be read.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// The file's path in the store.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
    /// Whole records at its end that are given up with it, because no filler is as short as what is damaged.
    pub given_up: u64,
    /// Records of the log in front of it that can be read.
    pub records_before: u64,
    /// When the last of them was stored.
    pub stored: TimestampMs,
}

/// A message that a consume queue names and the log has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its topic.
    pub topic: String,
    /// Its queue.
    pub queue_id: QueueId,
    /// Its entry there.
    pub queue_offset: u64,
    /// Where its record stood.
    pub physical_offset: u64,
}

/// What an examination found.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// Bytes of a file of the log; 0: there is none.
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
    /// A torn end behind what is known to be durable, which the next opening cuts.
    pub torn: Option<(u64, u64)>,
    /// Files that are built from the log and cannot be right: path and what is wrong.
    pub derived: Vec<(String, String)>,
    /// The first messages that are lost, as far as queues name them.
    pub lost: Vec<Lost>,
    /// How many they are.
    pub lost_count: u64,
    /// The queues that the log has records of, by topic.
    pub queued: BTreeMap<String, BTreeSet<QueueId>>,
    /// Files of the log, by their first physical offset, in which nothing is wrong.
    pub whole: Vec<u64>,
}
